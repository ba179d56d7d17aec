#include "gpu-worker/kv/siphash.h"

#include <bit>

#include "base/ids.h"

namespace ringmaster::gpu_worker {

SipHash128::SipHash128(const Key& key)
    : v0_(key[0] ^ 0x736f6d6570736575),  // "somepseudorandomlygeneratedbytes", as in the paper
      v1_(key[1] ^ 0x646f72616e646f6d ^
          0xee),  // 0xee and 0xdd below tell the 128-bit variant from the 64-bit one
      v2_(key[0] ^ 0x6c7967656e657261),
      v3_(key[1] ^ 0x7465646279746573) {}

void SipHash128::round() {
  v0_ += v1_;
  v1_ = std::rotl(v1_, 13) ^ v0_;
  v0_ = std::rotl(v0_, 32);
  v2_ += v3_;
  v3_ = std::rotl(v3_, 16) ^ v2_;
  v0_ += v3_;
  v3_ = std::rotl(v3_, 21) ^ v0_;
  v2_ += v1_;
  v1_ = std::rotl(v1_, 17) ^ v2_;
  v2_ = std::rotl(v2_, 32);
}

void SipHash128::add(uint64_t word) {
  v3_ ^= word;
  round();
  round();
  v0_ ^= word;
  bytes_ += 8;
}

Hash128 SipHash128::finish() {
  const uint64_t last = bytes_ << 56;  // the length modulo 256 in the top byte, no bytes left over
  v3_ ^= last;
  round();
  round();
  v0_ ^= last;
  Hash128 out;
  v2_ ^= 0xee;
  for (int i = 0; i < 4; ++i) round();
  out.lo = v0_ ^ v1_ ^ v2_ ^ v3_;
  v1_ ^= 0xdd;
  for (int i = 0; i < 4; ++i) round();
  out.hi = v0_ ^ v1_ ^ v2_ ^ v3_;
  return out;
}

SipHash128::Key random_siphash_key() {
  return {random_number(), random_number()};
}

}  // namespace ringmaster::gpu_worker
