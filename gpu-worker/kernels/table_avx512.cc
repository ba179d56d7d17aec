// Quantised products with vpdpbusd: unsigned weight bytes times signed activation bytes, four columns of
// sixteen rows at a time, the activation broadcast from memory. Every tile size does the same arithmetic for
// a row: integer sums a block (exact), then two fused multiply-adds in order of the blocks.
#include "gpu-worker/kernels/tables.h"
#include "gpu-worker/kernels/vector_avx512.h"
//
#include "gpu-worker/kernels/simd_body.h"

namespace ringmaster::gpu_worker::kernels {
namespace {

// How far ahead of use weights are asked for when one row streams them from memory: the best of 0.5 to 8 KiB
// measured by bench/cpu_decode on Zen 5; the processor's own prefetcher stops at page borders.
constexpr size_t kPrefetch = 4096;

__m512i four_columns(const int8_t* x) {
  int32_t bytes;
  __builtin_memcpy(&bytes, x, 4);
  return _mm512_set1_epi32(bytes);
}

__m512 scales_at(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}

template <size_t kRows>
void u4_tile(float* out, size_t out_stride, const std::byte* rows, size_t row_stride,
             const std::byte* weights, size_t k, bool increase) {
  const __m512i low_nibbles = _mm512_set1_epi8(15);
  QuantizedRow x[kRows];
  __m512 total[kRows];
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
    x[i] = quantized_row(rows + i * row_stride, k);
    total[i] = _mm512_setzero_ps();
  }
  for (size_t b = 0; b < k / kBlock; ++b, weights += 320) {
    __m512i low[4], high[4];
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      const __m512i bytes = _mm512_load_si512(weights + 64 * j);
      low[j] = _mm512_and_si512(bytes, low_nibbles);
      high[j] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_nibbles);
      _mm_prefetch(reinterpret_cast<const char*>(weights) + kPrefetch + 64 * j, _MM_HINT_T0);
    }
    _mm_prefetch(reinterpret_cast<const char*>(weights) + kPrefetch + 256, _MM_HINT_T0);
    const __m512 scales = scales_at(weights + 256), minima = scales_at(weights + 288);
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) {
      const int8_t* values = x[i].values + b * kBlock;
      __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (size_t j = 0; j < 4; ++j) {
        even = _mm512_dpbusd_epi32(even, low[j], four_columns(values + 8 * j));
        odd = _mm512_dpbusd_epi32(odd, high[j], four_columns(values + 8 * j + 4));
      }
      const __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
      total[i] = _mm512_fmadd_ps(_mm512_mul_ps(dot, _mm512_set1_ps(x[i].scales[b])), scales, total[i]);
      total[i] = _mm512_fmadd_ps(_mm512_set1_ps(x[i].scaled_sums[b]), minima, total[i]);
    }
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) store_result(out + i * out_stride, total[i], increase);
}

template <size_t kRows>
void u8_tile(float* out, size_t out_stride, const std::byte* rows, size_t row_stride,
             const std::byte* weights, size_t k, bool increase) {
  QuantizedRow x[kRows];
  __m512 total[kRows];
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
    x[i] = quantized_row(rows + i * row_stride, k);
    total[i] = _mm512_setzero_ps();
  }
  const std::byte* scale_row = weights + k / kBlock * 512;
  for (size_t b = 0; b < k / kBlock; ++b, weights += 512, scale_row += 32) {
    __m512i bytes[8];
#pragma GCC unroll 8
    for (size_t j = 0; j < 8; ++j) {
      bytes[j] = _mm512_load_si512(weights + 64 * j);
      _mm_prefetch(reinterpret_cast<const char*>(weights) + kPrefetch + 64 * j, _MM_HINT_T0);
    }
    const __m512 scales = scales_at(scale_row);
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) {
      const int8_t* values = x[i].values + b * kBlock;
      __m512i even = _mm512_set1_epi32(x[i].offsets[b]), odd = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (size_t j = 0; j < 8; j += 2) {
        even = _mm512_dpbusd_epi32(even, bytes[j], four_columns(values + 4 * j));
        odd = _mm512_dpbusd_epi32(odd, bytes[j + 1], four_columns(values + 4 * j + 4));
      }
      const __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
      total[i] = _mm512_fmadd_ps(_mm512_mul_ps(dot, _mm512_set1_ps(x[i].scales[b])), scales, total[i]);
    }
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) store_result(out + i * out_stride, total[i], increase);
}

using Tile = void (*)(float*, size_t, const std::byte*, size_t, const std::byte*, size_t, bool);
constexpr size_t kTileRows = 8;  // 8 sums, 8 unpacked weight registers and 8 temporaries of 32
constexpr Tile kU4Tiles[] = {u4_tile<1>, u4_tile<2>, u4_tile<3>, u4_tile<4>,
                             u4_tile<5>, u4_tile<6>, u4_tile<7>, u4_tile<8>};
constexpr Tile kU8Tiles[] = {u8_tile<1>, u8_tile<2>, u8_tile<3>, u8_tile<4>,
                             u8_tile<5>, u8_tile<6>, u8_tile<7>, u8_tile<8>};

void matmul_tiles(const Tile* tiles, size_t group_bytes, float* out, size_t out_stride, const std::byte* rows,
                  size_t row_stride, size_t m, const std::byte* weights, size_t k, size_t groups,
                  bool increase) {
  for (size_t g = 0; g < groups; ++g, weights += group_bytes, out += kGroup)
    for (size_t i = 0; i < m; i += kTileRows)
      tiles[smaller(kTileRows, m - i) - 1](out + i * out_stride, out_stride, rows + i * row_stride,
                                           row_stride, weights, k, increase);
}

void matmul_u4(float* out, size_t out_stride, const std::byte* rows, size_t row_stride, size_t m,
               const std::byte* weights, size_t k, size_t groups, bool increase) {
  matmul_tiles(kU4Tiles, k / kBlock * 320, out, out_stride, rows, row_stride, m, weights, k, groups,
               increase);
}

void matmul_u8(float* out, size_t out_stride, const std::byte* rows, size_t row_stride, size_t m,
               const std::byte* weights, size_t k, size_t groups, bool increase) {
  matmul_tiles(kU8Tiles, k / kBlock * 512 + (k + 63) / 64 * 64, out, out_stride, rows, row_stride, m, weights,
               k, groups, increase);
}

}  // namespace

const Table kAvx512Table = make_table("avx512", matmul_u4, matmul_u8);

}  // namespace ringmaster::gpu_worker::kernels
