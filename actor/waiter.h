// What a Loop sleeps on, one of two:
//   on_bell         the process's doorbell, which other processes ring through shared memory. Descriptors
//                   reach it through a thread (FdBell), so each message costs one wake-up more. (Sleeping in
//                   epoll on a wake socket beside the page was tried: what a message gained, a ring lost.)
//   on_descriptors  epoll, for a process that nobody rings: one wake-up less a message
//
// Thread: the loop's; wake() any. A descriptor is removed before it is closed.
// Invariant: what comes after sequence() was read ends the wait() that follows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "shm/doorbell.h"

namespace ringmaster::actor {

class Waiter {
 public:
  static Result<std::unique_ptr<Waiter>> on_bell(shm::Doorbell& bell);  // `bell` outlives it
  // Error: kUnsupported before Linux 5.11.
  static Result<std::unique_ptr<Waiter>> on_descriptors();
  virtual ~Waiter() = default;

  // As FdBell: watched for edges, ready at once; forgotten; those with an edge since the last call.
  virtual Status add(int fd) = 0;
  virtual void remove(int fd) = 0;
  virtual const std::vector<int>& take_ready() = 0;

  virtual uint32_t sequence() = 0;
  // Returns when something came since `seen` was read, or at the deadline, or early. Spins before it sleeps.
  virtual void wait(uint32_t seen, Nanos deadline, Nanos spin) = 0;
  // Ends a wait(). Async-signal-safe.
  virtual void wake() = 0;
};

}  // namespace ringmaster::actor
