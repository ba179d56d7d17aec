// 16-bit floats to and from float, one value at a time and exactly rounded (ties to even), for load time and
// for the generic kernels. Freestanding: included by files compiled for other instruction sets, so everything
// is static.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

namespace ringmaster::gpu_worker::kernels {

static inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

static inline float float_of_bf16(uint16_t h) {
  return float_of_bits(static_cast<uint32_t>(h) << 16);
}

static inline float float_of_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t rest = h & 0x7FFF;
  if (rest >= 0x7C00) return float_of_bits(sign | 0x7F800000 | (rest & 0x3FF) << 13);  // infinity, NaN
  if (rest >= 0x0400) return float_of_bits(sign | ((rest << 13) + (112u << 23)));
  const float magnitude = static_cast<float>(rest) * 0x1p-24f;  // subnormal: exact
  return float_of_bits(sign | bits_of_float(magnitude));
}

static inline uint16_t half_of_float(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t rest = bits & 0x7FFFFFFF;
  if (rest > 0x7F800000) return sign | 0x7E00;
  if (rest >= 0x477FF000) return sign | 0x7C00;  // 65520 and above round to infinity
  if (rest >= 0x38800000) {
    const uint32_t rounded = rest + 0xFFF + (rest >> 13 & 1);
    return static_cast<uint16_t>(sign | (rounded - (112u << 23)) >> 13);
  }
  // Subnormal: adding 0.5 leaves the wanted bits, rounded to even, at the bottom of the sum's mantissa.
  return static_cast<uint16_t>(sign | (bits_of_float(float_of_bits(rest) + 0.5f) - 0x3F000000));
}

}  // namespace ringmaster::gpu_worker::kernels
