// Records whose number decides everything about them, so that a reader needs no copy of what was written:
// record n of stream `key` has a type, a size and bytes that follow from (key, n) alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "shm/ring.h"

namespace ringmaster::shm {

class Traffic {
 public:
  static constexpr size_t kSmallest = 2 * sizeof(uint64_t);  // key and number

  // `largest`: what fits into the ring at any position (Producer::largest_payload).
  Traffic(uint64_t key, size_t largest) : key_(key), largest_(largest) {}

  uint64_t key() const { return key_; }
  uint32_t type(uint64_t n) const { return 1 + static_cast<uint32_t>(mix(n) >> 40) % 1000; }
  // Mostly short, one in 61 up to 2,000 bytes, one in 4,093 anything that fits.
  size_t size(uint64_t n) const {
    const uint64_t x = mix(n);
    const size_t range = x % 4093 == 0 ? largest_ : x % 61 == 0 ? 2000 : 112;
    return std::min(kSmallest + static_cast<size_t>((x >> 20) % range), largest_);
  }

  // REQUIRES: space.size() == size(n).
  void fill(uint64_t n, std::span<std::byte> space) const {
    uint64_t word = mix(n);
    std::memcpy(space.data(), &key_, sizeof key_);
    std::memcpy(space.data() + sizeof key_, &n, sizeof n);
    for (auto rest = space.subspan(kSmallest); !rest.empty(); ++word) {
      const size_t bytes = std::min(rest.size(), sizeof word);
      std::memcpy(rest.data(), &word, bytes);
      rest = rest.subspan(bytes);
    }
  }
  // Whether `record` is record n: nothing torn, nothing of another.
  bool is(uint64_t n, const Record& record) const {
    uint64_t word = mix(n), found_key = 0, found_n = 0, wrong = 0;
    if (record.type != type(n) || record.payload.size() != size(n)) return false;
    std::memcpy(&found_key, record.payload.data(), sizeof found_key);
    std::memcpy(&found_n, record.payload.data() + sizeof found_key, sizeof found_n);
    for (auto rest = record.payload.subspan(kSmallest); !rest.empty(); ++word) {
      const size_t bytes = std::min(rest.size(), sizeof word);
      uint64_t expected = 0, found = 0;
      std::memcpy(&expected, &word, bytes);
      std::memcpy(&found, rest.data(), bytes);
      wrong |= expected ^ found;
      rest = rest.subspan(bytes);
    }
    return found_key == key_ && found_n == n && wrong == 0;
  }
  // The stream that a record says it belongs to.
  static uint64_t key_of(const Record& record) {
    uint64_t key = UINT64_MAX;
    if (record.payload.size() >= kSmallest) std::memcpy(&key, record.payload.data(), sizeof key);
    return key;
  }

  // Writes record n, or nothing when the ring is full.
  bool write(uint64_t n, Producer& producer) const {
    const auto space = producer.try_reserve(type(n), size(n));
    if (space) fill(n, *space);
    return space.has_value();
  }

 private:
  uint64_t mix(uint64_t n) const {  // splitmix64
    uint64_t x = (key_ << 40) + (n + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  }

  uint64_t key_;
  size_t largest_;
};

}  // namespace ringmaster::shm
