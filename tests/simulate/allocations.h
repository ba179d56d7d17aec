// Which allocations of a run are made by the code of the cluster, in one of its processes, and which by the
// world that is simulated around it. Only counts: tests/failures/in_process lets one of the former fail. Any
// thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace ringmaster::simulate {

inline thread_local bool in_process = false;

// While it lives, this thread runs as a process (true), or as the network and the observers (false).
class Runs {
 public:
  explicit Runs(bool as_process) : before_(std::exchange(in_process, as_process)) {}
  ~Runs() { in_process = before_; }
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

 private:
  const bool before_;
};

}  // namespace ringmaster::simulate
