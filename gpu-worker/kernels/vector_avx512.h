// Sixteen floats in a register, in the words simd_body.h is written in. Only for files compiled for AVX-512.
// In min and max a NaN in the second operand comes through (as the instructions have it).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace ringmaster::gpu_worker::kernels {
namespace {

struct Vector {
  using T = __m512;
  static constexpr size_t kWidth = 16;
  static constexpr size_t kValueRegisters = 4;  // of one token's value held at once in attend()

  static T set(float x) { return _mm512_set1_ps(x); }
  static T load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, T x) { _mm512_storeu_ps(p, x); }
  static T load_part(const float* p, size_t n, float fill) {
    return _mm512_mask_loadu_ps(_mm512_set1_ps(fill), static_cast<__mmask16>((1u << n) - 1), p);
  }
  static void store_part(float* p, size_t n, T x) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), x);
  }
  static T load_half(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static T load_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
  }
  static void store_half(uint16_t* p, T x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static T add(T a, T b) { return _mm512_add_ps(a, b); }
  static T sub(T a, T b) { return _mm512_sub_ps(a, b); }
  static T mul(T a, T b) { return _mm512_mul_ps(a, b); }
  static T div(T a, T b) { return _mm512_div_ps(a, b); }
  static T fma(T a, T b, T c) { return _mm512_fmadd_ps(a, b, c); }
  static T min(T a, T b) { return _mm512_min_ps(a, b); }
  static T max(T a, T b) { return _mm512_max_ps(a, b); }
  static T abs(T a) { return _mm512_abs_ps(a); }
  static T round(T a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static T times_power_of_two(T a, T exponent) { return _mm512_scalef_ps(a, exponent); }
  static T zero_where_below(T value, T x, float limit) {
    return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_LT_OQ),
                              _mm512_setzero_ps());
  }
  static T swap_pairs(T a) { return _mm512_permute_ps(a, 0xB1); }
  static float sum(T a) { return _mm512_reduce_add_ps(a); }
  static float largest(T a) { return _mm512_reduce_max_ps(a); }
  // Rounds to the nearest integer, ties to even, and keeps the low 8 bits.
  static void store_int8(int8_t* p, T a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
  }
  static T load_int8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static int sum_of_integers(T a) { return _mm512_reduce_add_epi32(_mm512_cvtps_epi32(a)); }
};

}  // namespace
}  // namespace ringmaster::gpu_worker::kernels
