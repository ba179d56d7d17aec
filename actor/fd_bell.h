// Turns readable descriptors (ZMQ_FD, pidfds, listening sockets, signalfd) into rings of the process's
// Doorbell, so that the process's loop has one thing to wait on. One thread that sleeps in epoll
// (edge-triggered) and touches nothing but its own notes; the descriptors stay the caller's.
//
// Thread: every method is called from one thread, the owner of the doorbell. Lifetime: `bell` outlives this;
// a descriptor is removed before it is closed.
// Invariant: after add() and after each edge take_ready() reports the descriptor. Several edges may be one
// report, and a report may find nothing left to read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "shm/doorbell.h"

namespace ringmaster::actor {

class FdBell {
 public:
  static Result<std::unique_ptr<FdBell>> start(shm::Doorbell& bell);
  // Stops the thread (see stop()).
  ~FdBell();
  FdBell(const FdBell&) = delete;
  FdBell& operator=(const FdBell&) = delete;

  // Watches `fd` for becoming readable, hung up or broken. It counts as ready at once, so that nothing that
  // came before is missed. kAlreadyExists when it is watched already.
  Status add(int fd);
  // Forgets `fd`; take_ready() does not report it any more. Unknown descriptors are ignored.
  void remove(int fd);
  // Descriptors with an edge since the last call, in the order of add(). Cheap (one load) when there are
  // none.
  const std::vector<int>& take_ready();
  // Ends the thread: true when it has ended before `deadline`. Idempotent.
  bool stop(Nanos deadline);

 private:
  struct State;
  explicit FdBell(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ringmaster::actor
