// Why a running cluster does not serve, a line for each cause, from what the supervisor and the router say.
// Pure; for `status`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "client/cpp/ringmaster.h"
#include "launcher/record.h"

namespace ringmaster::launcher {

// Empty: it serves. `now` in unix nanoseconds.
std::vector<std::string> not_ready_reasons(const SupervisorRecord& record,
                                           const Result<client::ClusterStatus>& service, int64_t now);

}  // namespace ringmaster::launcher
