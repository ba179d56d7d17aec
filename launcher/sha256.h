// SHA-256 of a file, in lower-case hexadecimal digits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"

namespace ringmaster::launcher {

Result<std::string> sha256_of_file(const std::string& path);

}  // namespace ringmaster::launcher
