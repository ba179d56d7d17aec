// Ends a running cluster from outside, through its supervisor's pidfd: asks to drain, then insists, then
// kills. Any process of the same user.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace ringmaster::launcher {

struct StopOptions {
  Nanos drain = 0;   // what the supervisor was configured to allow: supervisor.drain_timeout
  bool now = false;  // do not drain
};

// Returns when supervisor and janitor have ended and the state directory is free. Errors: kNotFound (no
// cluster runs there), kUnavailable (it is just starting or ending), kDeadlineExceeded (something is left;
// the message says what).
Status stop_cluster(const std::string& state_dir, const StopOptions& options);

}  // namespace ringmaster::launcher
