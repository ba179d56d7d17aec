// Runs another program to its end, for `pull`. Interrupts typed meanwhile are the program's; we stay to clean
// up after it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace ringmaster::launcher {

enum class Output { kShown, kHidden };  // shown: on our stderr, both streams

// The exit status (128 + signal when killed). Errors: kNotFound (no such program on PATH), kDeadlineExceeded
// (killed).
Result<int> run_command(const std::vector<std::string>& argv, Output output, Nanos limit);

}  // namespace ringmaster::launcher
