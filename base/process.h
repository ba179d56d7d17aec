// How the supervisor starts every process: `BINARY --config FILE --name NAME [--ready-fd N]`. FILE is the
// resolved STATE/cluster.yaml, NAME the process's own name in it ("gpu-worker.0"). Called once, first thing
// in main().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ringmaster {

struct ProcessArguments {
  std::string config_path;
  std::string name;    // "router", "gpu-worker.0", ...
  uint32_t index = 0;  // the number after the dot; 0 without one
  int ready_fd = -1;   // for ReadyLine (base/ready.h); -1: started by hand, nobody waits
};

// kInvalidArgument names the argument and shows the usage.
Result<ProcessArguments> parse_process_arguments(int argc, const char* const* argv);

// Exit codes by which a process says that it is not to blame: the supervisor repeats their names. 0: ended as
// asked, 1: failed, 2: wrong arguments or configuration.
inline constexpr int kExitDeviceFailed = 20;  // the device reported an error
inline constexpr int kExitDeviceMemory = 21;  // the device ran out of memory in a step
inline constexpr int kExitDeviceHung = 22;    // a step did not end within gpu-worker.step_timeout
// Empty: no name, the number says it all.
std::string_view exit_name(int exit_code);

// The soft limit of open descriptors becomes the hard one: the usual soft limit of 1,024 is for programs that
// use select(), which none here does. Returns what is allowed now.
uint64_t raise_descriptor_limit();

}  // namespace ringmaster
