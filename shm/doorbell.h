// A process's doorbell: one futex word in a sealed page that every producer for this process maps and rings.
// It has one owner, who waits, and any number of ringers in any process. Waiting spins for a while, then
// sleeps; it always has a deadline. A ring costs no system call while the owner is awake.
//
// Everything written before ring() is visible to an owner that has seen the new sequence(). No ring is lost:
// a bell rung after sequence() was read ends the wait() that follows. A ringer that is killed inside ring()
// can delay the owner until the next ring or its deadline, no longer.
//
//   owner:   uint32_t seen = bell.sequence();  ...look at every source...  if (nothing) bell.wait(seen,
//   deadline); ringer:  ...publish...  bell.ring();
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "shm/layout.h"
#include "shm/memory_file.h"

namespace ringmaster::shm {

class Doorbell {
 public:
  // A new doorbell of this process.
  static Result<Doorbell> create();
  // Another process's doorbell, from its descriptor (seals and size are checked).
  static Result<Doorbell> attach(UniqueFd fd);

  // Any thread, any process, async-signal-safe.
  void ring() noexcept;
  // Owner only.
  uint32_t sequence() const noexcept;
  // Returns when the bell rang since `seen` was read (true), or at the deadline (false). Owner only.
  bool wait(uint32_t seen, Nanos deadline, Nanos spin = 0) noexcept;

  int fd() const { return file_.fd(); }

 private:
  explicit Doorbell(MemoryFile file) : file_(std::move(file)) {}
  BellPage& page() const { return *reinterpret_cast<BellPage*>(file_.bytes().data()); }
  MemoryFile file_;
};

}  // namespace ringmaster::shm
