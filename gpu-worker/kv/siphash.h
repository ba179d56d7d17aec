// SipHash-2-4 with 128-bit output (Aumasson and Bernstein, "SipHash: a fast short-input PRF", and its 128-bit
// variant in the authors' reference code). A keyed pseudo-random function: without the key nobody can
// construct two inputs with equal output, and one that comes about by chance needs about 2^64 blocks. Only
// whole little-endian 64-bit words are hashed: that is all that the prefix index needs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace ringmaster::gpu_worker {

struct Hash128 {
  uint64_t lo = 0;
  uint64_t hi = 0;
  auto operator<=>(const Hash128&) const = default;
};

class SipHash128 {
 public:
  using Key = std::array<uint64_t, 2>;
  explicit SipHash128(const Key& key);
  void add(uint64_t word);
  Hash128 finish();  // REQUIRES: called once, last

 private:
  void round();
  uint64_t v0_, v1_, v2_, v3_;
  uint64_t bytes_ = 0;
};

// 128 bits from the kernel.
SipHash128::Key random_siphash_key();

}  // namespace ringmaster::gpu_worker
