// The one source of chance of a simulated run. Small, and the same on every platform: what a seed means must
// not depend on a library's distributions. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace ringmaster::simulate {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // SplitMix64 (Steele, Lea, Flood 2014).
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return n == 0 ? 0 : next() % n; }
  // Both ends included. REQUIRES: least <= most.
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(below(static_cast<uint64_t>(most - least) + 1));
  }
  uint32_t count(uint32_t least, uint32_t most) { return static_cast<uint32_t>(between(least, most)); }
  bool percent(uint32_t chance) { return below(100) < chance; }
  template <typename T, size_t N>
  const T& pick(const T (&values)[N]) {
    return values[below(N)];
  }
  Random fork() { return Random(next()); }

 private:
  uint64_t state_;
};

}  // namespace ringmaster::simulate
