// A tiny process that outlives the supervisor: it holds the supervisor's pidfd and those of the children.
// When the supervisor is gone, however it ended, the janitor kills what is left of the children, removes
// sockets and state files and releases the lock of the state directory. It ignores interrupts and runs in its
// own session. The children themselves die with the supervisor by their parent-death signal; the janitor
// makes sure of it. Thread: the supervisor's only one (it forks).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace ringmaster::launcher {

class Janitor {
 public:
  struct Duties {
    std::string state_dir;
    std::vector<std::string> sockets;  // outside the state directory
    int lock_fd = -1;                  // shared with the supervisor: held until the work is done
    LogConfig log;
  };
  struct Watched {
    std::string name;  // of the child; a newer one of the same name replaces the older
    int pidfd = -1;    // borrowed
  };

  // Forks the janitor, which knows `children` from the beginning (it replaces one that was killed).
  static Result<Janitor> start(const Duties& duties, const std::vector<Watched>& children);

  Status watch(const Watched& child);
  int pidfd() const { return pidfd_.get(); }  // readable: the janitor has ended
  // Tells it that the supervisor ends in order, and waits until it has cleaned up.
  Status finish(Nanos limit);

 private:
  Janitor(pid_t pid, UniqueFd pidfd, UniqueFd channel)
      : pid_(pid), pidfd_(std::move(pidfd)), channel_(std::move(channel)) {}
  pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd channel_;
};

}  // namespace ringmaster::launcher
