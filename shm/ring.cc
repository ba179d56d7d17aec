#include "shm/ring.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>

namespace ringmaster::shm {
namespace {

constexpr uint64_t align_up(uint64_t bytes) {
  return (bytes + kRecordAlign - 1) & ~(kRecordAlign - 1);
}
constexpr bool aligned(uint64_t position) {
  return position % kRecordAlign == 0;
}

[[maybe_unused]] bool usable(const RingView& ring) {
  const uint64_t capacity = ring.data.size();
  return ring.index != nullptr && capacity >= kMinRingBytes && capacity <= kMaxRingBytes &&
         (capacity & (capacity - 1)) == 0 &&
         reinterpret_cast<uintptr_t>(ring.data.data()) % kRecordAlign == 0;
}

void put_header(std::byte* at, uint64_t size, uint32_t type) {
  const RecordHeader header{static_cast<uint32_t>(size), type};
  std::memcpy(at, &header, sizeof header);
}

constexpr const char* kMultiples = "multiples of ";
static_assert(kRecordAlign == 64);
constexpr RingFault unaligned(const char* word, uint64_t position) {
  return {word, position, kMultiples, kRecordAlign};
}

std::string describe(const RingFault& fault) {
  if (fault.word == nullptr) return {};
  return std::string(fault.word) + " is " + std::to_string(fault.value) + "; allowed are " + fault.allowed +
         std::to_string(fault.limit);
}

}  // namespace

std::string Producer::fault() const {
  return describe(fault_);
}

std::string Consumer::fault() const {
  return describe(fault_);
}

Producer::Producer(RingView ring) : ring_(ring) {
  assert(usable(ring));
  head_ = committed_ = ring.index->head.load(std::memory_order_relaxed);  // our own word
  cached_tail_ = ring.index->tail.load(std::memory_order_acquire);  // pairs with: release in Consumer::pop
  if (!aligned(head_)) {
    fault_ = unaligned("head", head_);
  } else if (!aligned(cached_tail_)) {
    fault_ = unaligned("tail", cached_tail_);
  } else if (head_ - cached_tail_ > ring.data.size()) {
    fault_ = {"the distance of head from tail", head_ - cached_tail_, "0 to ", ring.data.size()};
  }
}

Producer& Producer::operator=(Producer&& other) noexcept {
  ring_ = std::exchange(other.ring_, {});  // the moved-from role is gone: two producers must never exist
  head_ = std::exchange(other.head_, 0);
  committed_ = std::exchange(other.committed_, 0);
  cached_tail_ = std::exchange(other.cached_tail_, 0);
  fault_ = std::exchange(other.fault_, {});
  return *this;
}

size_t Producer::largest_payload() const {
  return ring_.data.empty() ? 0 : ring_.data.size() / 2 - sizeof(RecordHeader);
}

// The consumer's word must lie between where it was and what is published.
bool Producer::refresh_tail() {
  const uint64_t tail =
      ring_.index->tail.load(std::memory_order_acquire);  // pairs with: release in Consumer::pop
  if (!aligned(tail)) {
    fault_ = unaligned("tail", tail);
    return false;
  }
  if (tail - cached_tail_ > committed_ - cached_tail_) {
    fault_ = {"what tail has gone on by", tail - cached_tail_, "0 to ", committed_ - cached_tail_};
    return false;
  }
  cached_tail_ = tail;
  return true;
}

std::optional<std::span<std::byte>> Producer::try_reserve(uint32_t type, size_t payload_bytes) {
  assert(type != kPadRecord);
  if (broken() || payload_bytes > largest_payload() || ring_.data.empty()) return std::nullopt;
  const uint64_t capacity = ring_.data.size();
  const uint64_t size = sizeof(RecordHeader) + payload_bytes;
  const uint64_t need = align_up(size);
  uint64_t offset = head_ & (capacity - 1);
  const uint64_t to_end = capacity - offset;
  const uint64_t pad = need > to_end ? to_end : 0;  // records are contiguous: skip to the ring's start
  if (capacity - (head_ - cached_tail_) < pad + need) {
    if (!refresh_tail() || capacity - (head_ - cached_tail_) < pad + need) return std::nullopt;
  }
  if (pad != 0) {
    put_header(ring_.data.data() + offset, pad, kPadRecord);
    head_ += pad;
    offset = 0;
  }
  put_header(ring_.data.data() + offset, size, type);
  head_ += need;
  return ring_.data.subspan(offset + sizeof(RecordHeader), payload_bytes);
}

void Producer::commit() {
  if (head_ == committed_) return;
  committed_ = head_;
  ring_.index->head.store(head_, std::memory_order_release);  // pairs with: acquire in Consumer::refresh_head
}

size_t Producer::free_bytes() {
  if (ring_.data.empty() || broken() || !refresh_tail()) return 0;
  return ring_.data.size() - (head_ - cached_tail_);
}

Consumer::Consumer(RingView ring) : ring_(ring) {
  assert(usable(ring));
  tail_ = next_ = cached_head_ = ring.index->tail.load(std::memory_order_relaxed);  // our own word
  if (!aligned(tail_)) fault_ = unaligned("tail", tail_);
}

Consumer& Consumer::operator=(Consumer&& other) noexcept {
  ring_ = std::exchange(other.ring_, {});
  tail_ = std::exchange(other.tail_, 0);
  next_ = std::exchange(other.next_, 0);
  cached_head_ = std::exchange(other.cached_head_, 0);
  fault_ = std::exchange(other.fault_, {});
  return *this;
}

std::optional<Record> Consumer::break_ring(const RingFault& fault) {
  fault_ = fault;
  return std::nullopt;
}

// Whether something is published. Called when all that was known is read, so a head that went back shows as a
// distance beyond the capacity.
bool Consumer::refresh_head() {
  const uint64_t head =
      ring_.index->head.load(std::memory_order_acquire);  // pairs with: release in Producer::commit
  if (!aligned(head)) {
    fault_ = unaligned("head", head);
    return false;
  }
  if (head - tail_ > ring_.data.size()) {
    fault_ = {"the distance of head from tail", head - tail_, "0 to ", ring_.data.size()};
    return false;
  }
  cached_head_ = head;
  return head != tail_;
}

std::optional<Record> Consumer::peek() {
  if (broken() || ring_.data.empty()) return std::nullopt;
  const uint64_t capacity = ring_.data.size();
  for (;;) {
    if (tail_ == cached_head_ && !refresh_head()) return std::nullopt;
    const uint64_t offset = tail_ & (capacity - 1);
    const uint64_t available = cached_head_ - tail_;
    const uint64_t to_end = capacity - offset;
    RecordHeader header;  // a copy: the producer could change it between check and use
    std::memcpy(&header, ring_.data.data() + offset, sizeof header);
    asm volatile("" : "+m"(header));  // so that the compiler keeps it one
    if (header.type == kPadRecord) {
      // At the start a pad would be a whole empty lap, which no producer writes; refusing it also bounds this
      // loop.
      if (offset == 0) return break_ring({"the place of a pad", 0, "64 to ", capacity - kRecordAlign});
      if (header.size != to_end) return break_ring({"the size of a pad", header.size, "", to_end});
      if (to_end > available) return break_ring({"the size of a pad", header.size, "0 to ", available});
      tail_ = next_ = tail_ + header.size;
      continue;
    }
    const uint64_t need = align_up(header.size);
    if (header.size < sizeof(RecordHeader) || need > available || need > to_end) {
      return break_ring({"the size of a record", header.size, "8 to ", std::min(available, to_end)});
    }
    next_ = tail_ + need;
    __builtin_prefetch(ring_.data.data() + (next_ & (capacity - 1)));
    return Record{header.type,
                  ring_.data.subspan(offset + sizeof(RecordHeader), header.size - sizeof(RecordHeader))};
  }
}

void Consumer::pop() {
  if (broken() || next_ == tail_ || ring_.data.empty()) return;
  tail_ = next_;
  ring_.index->tail.store(tail_, std::memory_order_release);  // pairs with: acquire in Producer::refresh_tail
}

}  // namespace ringmaster::shm
