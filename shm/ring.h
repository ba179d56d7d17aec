// A single-producer single-consumer ring of variable-length records over memory that two processes map. Try-only:
// waiting is the caller's policy (shm/doorbell.h). The two roles are move-only objects, so each exists once a ring.
// The peer's words are never trusted: an impossible position or size makes the ring `broken`, which ends the
// pairing, never a read out of bounds.
//
// Ordering: a record is visible when head passes it (release in commit, acquire in peek); its space is reusable when
// tail passes it (release in pop, acquire in reserve).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "shm/layout.h"

namespace ringmaster::shm {

struct RingView {
  RingIndex* index = nullptr;
  std::span<std::byte> data;  // capacity bytes, a power of two
};

struct Record {
  uint32_t type = 0;
  std::span<const std::byte> payload;
};

class Producer {
 public:
  Producer() = default;
  explicit Producer(RingView ring);
  Producer(Producer&&) noexcept = default;
  Producer& operator=(Producer&&) noexcept = default;
  Producer(const Producer&) = delete;

  // Space for one record of `payload_bytes`, or nothing when the ring is full now. The space is written, then
  // commit() publishes everything reserved since the last commit. A record larger than largest_payload() never fits.
  std::optional<std::span<std::byte>> try_reserve(uint32_t type, size_t payload_bytes);
  void commit();
  size_t largest_payload() const;
  size_t free_bytes();
  bool broken() const { return broken_; }

 private:
  RingView ring_;
  uint64_t head_ = 0;         // reserved up to here
  uint64_t cached_tail_ = 0;  // the consumer's word when last read
  bool broken_ = false;
};

class Consumer {
 public:
  Consumer() = default;
  explicit Consumer(RingView ring);
  Consumer(Consumer&&) noexcept = default;
  Consumer& operator=(Consumer&&) noexcept = default;
  Consumer(const Consumer&) = delete;

  // The oldest unread record, or nothing. Its payload stays valid until pop().
  std::optional<Record> peek();
  // Frees the record that peek() returned.
  void pop();
  bool broken() const { return broken_; }

 private:
  RingView ring_;
  uint64_t tail_ = 0;
  uint64_t next_ = 0;         // end of the record that peek() returned
  uint64_t cached_head_ = 0;  // the producer's word when last read
  bool broken_ = false;
};

}  // namespace ringmaster::shm
