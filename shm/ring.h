// A single-producer single-consumer ring of variable-length records over memory that two processes map.
// Try-only: waiting is the caller's policy (shm/doorbell.h). The two roles are move-only objects, so each
// exists once a ring. The peer's words are never trusted: an impossible position or size makes the ring
// `broken`, for good, which ends the pairing, never a read or write out of bounds. Payload bytes are not
// checked here, and a hostile producer may change them while they are read: copy a count before checking it.
//
// Ordering: a record is visible when head passes it (release in commit, acquire in peek); its space is
// reusable when tail passes it (release in pop, acquire in reserve). Thread: one for each role.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "shm/layout.h"

namespace ringmaster::shm {

// REQUIRES: data.size() is 0 or a power of two in [kMinRingBytes, kMaxRingBytes], aligned to kRecordAlign.
struct RingView {
  RingIndex* index = nullptr;
  std::span<std::byte> data;  // capacity bytes, a power of two
};

struct Record {
  uint32_t type = 0;
  std::span<const std::byte> payload;
};

// What the peer wrote that cannot be: the word, its value, and what would have been allowed.
struct RingFault {
  const char* word = nullptr;  // none: the ring is whole
  uint64_t value = 0;
  const char* allowed = nullptr;
  uint64_t limit = 0;  // ends the text of `allowed`
};

class Producer {
 public:
  Producer() = default;  // of no ring: everything is full
  // Continues at the positions in the index; impossible ones make it broken.
  explicit Producer(RingView ring);
  Producer(Producer&& other) noexcept { *this = std::move(other); }
  Producer& operator=(Producer&& other) noexcept;
  Producer(const Producer&) = delete;

  // Space for one record of `payload_bytes`, or nothing when the ring is full now. The space is written, then
  // commit() publishes everything reserved since the last commit. A record larger than largest_payload()
  // never fits. REQUIRES: type != kPadRecord.
  std::optional<std::span<std::byte>> try_reserve(uint32_t type, size_t payload_bytes);
  void commit();
  // Half the ring: what fits at any position once the consumer has caught up.
  size_t largest_payload() const;
  size_t free_bytes();
  // Bytes published since the ring was made; equal to the consumer's position() once that has read all.
  uint64_t position() const { return committed_; }
  bool broken() const { return fault_.word != nullptr; }
  std::string fault() const;  // "head is 100; allowed are multiples of 64"; empty unless broken

 private:
  bool refresh_tail();

  RingView ring_;
  uint64_t head_ = 0;         // reserved up to here
  uint64_t committed_ = 0;    // published up to here
  uint64_t cached_tail_ = 0;  // the consumer's word when last read
  RingFault fault_;
};

class Consumer {
 public:
  Consumer() = default;  // of no ring: always empty
  explicit Consumer(RingView ring);
  Consumer(Consumer&& other) noexcept { *this = std::move(other); }
  Consumer& operator=(Consumer&& other) noexcept;
  Consumer(const Consumer&) = delete;

  // The oldest unread record, or nothing. Its payload stays valid until pop().
  std::optional<Record> peek();
  // Frees the record that peek() returned.
  void pop();
  // Bytes read since the ring was made.
  uint64_t position() const { return tail_; }
  bool broken() const { return fault_.word != nullptr; }
  std::string fault() const;

 private:
  bool refresh_head();
  std::optional<Record> break_ring(const RingFault& fault);

  RingView ring_;
  uint64_t tail_ = 0;
  uint64_t next_ = 0;         // end of the record that peek() returned
  uint64_t cached_head_ = 0;  // the producer's word when last read
  RingFault fault_;
};

}  // namespace ringmaster::shm
