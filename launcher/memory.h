// How much memory this process and its children may still use: the host's MemAvailable, or less where a
// control group (version 2) sets a limit. Page cache counts as available on both sides.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ringmaster::launcher {

struct AvailableMemory {
  uint64_t bytes = 0;
  std::string limit;  // what sets it: "MemAvailable of the host", "memory.max of control group /x"
};

// Nothing: /proc does not say. `root` is "" but in tests.
std::optional<AvailableMemory> available_memory(const std::string& root = "");

}  // namespace ringmaster::launcher
