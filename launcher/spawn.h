// Starts one child process of the supervisor: cores, niceness and parent-death signal are set between fork
// and exec, so the child's first instruction already runs under them. What the host refuses is reported, not
// fatal. Not for programs with threads: the parent-death signal follows the thread that forked. Thread: the
// supervisor's only one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "launcher/above_standard.h"

namespace ringmaster::launcher {

struct ChildSpec {
  std::string name;               // "gpu-worker.0": log prefix, name in `status`
  std::vector<std::string> argv;  // argv[0]: absolute path of the program
  std::vector<int> cores;         // empty: not bound
  int nice = 0;
  int start_stage = 0;  // a stage starts when all children of the stages before it are ready
  int stop_stage = 0;   // stages are stopped one after the other, lowest first
};

// The child runs in its own session with empty stdin and no descriptors but 0, 1, 2 and kReadyFd.
struct Spawned {
  pid_t pid = 0;
  UniqueFd pidfd;
  UniqueFd output;  // read end: stdout and stderr of the child, not blocking on either side
  UniqueFd ready;   // read end, not blocking: the child announces that it serves (base/ready.h)
  std::vector<std::string> refusals;  // "cores 7: Invalid argument"
};

inline constexpr int kReadyFd = kGivenFd;  // handed over as `--ready-fd 3`

// Errors: out of processes or descriptors, or the program cannot be executed (kNotFound, kPermissionDenied).
Result<Spawned> spawn(const ChildSpec& spec);

}  // namespace ringmaster::launcher
