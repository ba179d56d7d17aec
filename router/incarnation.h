// Which life of the router this is: a number in STATE/incarnation that grows with each start. It is the upper
// half of every epoch, so that nothing of a former life can be mistaken for something of this one. Blocking
// file access; main() calls it once before the loop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace ringmaster::router {

// Reads, increments and durably writes the number; the first life is 1. Needs no room on the disk from the
// second life on. A file that cannot be read as a
// number is an error, never a restart from 1: that could repeat epochs of workers that still run.
Result<uint32_t> next_incarnation(const std::string& state_dir);

}  // namespace ringmaster::router
