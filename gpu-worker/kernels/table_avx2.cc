// Quantised products without dot-product instructions: vpmaddubsw for 4-bit weights (15 * 127 * 2 fits its 16
// bits), widening to 16 bits and vpmaddwd for 8-bit weights (255 * 127 * 2 would not). Integer sums a block
// are exact, so every tile size does the same arithmetic for a row.
#include "gpu-worker/kernels/tables.h"
#include "gpu-worker/kernels/vector_avx2.h"
//
#include "gpu-worker/kernels/simd_body.h"

namespace ringmaster::gpu_worker::kernels {
namespace {

__m256i four_columns(const int8_t* x) {
  int32_t bytes;
  __builtin_memcpy(&bytes, x, 4);
  return _mm256_set1_epi32(bytes);
}

__m256 scales_at(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}

__m256i bytes_at(const std::byte* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

template <size_t kRows>
void u4_tile(float* out, size_t out_stride, const std::byte* rows, size_t row_stride,
             const std::byte* weights, size_t k, bool increase) {
  const __m256i low_nibbles = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  for (size_t half = 0; half < 2; ++half) {
    __m256 total[kRows];
    for (size_t i = 0; i < kRows; ++i) total[i] = _mm256_setzero_ps();
    const std::byte* w = weights;
    for (size_t b = 0; b < k / kBlock; ++b, w += 320) {
      const __m256 scales = scales_at(w + 256 + 16 * half), minima = scales_at(w + 288 + 16 * half);
      __m256i dot[kRows];
      for (size_t i = 0; i < kRows; ++i) dot[i] = _mm256_setzero_si256();
      for (size_t j = 0; j < 4; ++j) {
        const __m256i bytes = bytes_at(w + 64 * j + 32 * half);
        const __m256i low = _mm256_and_si256(bytes, low_nibbles);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low_nibbles);
        for (size_t i = 0; i < kRows; ++i) {
          const int8_t* values = quantized_row(rows + i * row_stride, k).values + b * kBlock + 8 * j;
          // Each sum of two products is at most 2 * 15 * 127, so two of them still fit 16 bits.
          const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low, four_columns(values)),
                                                 _mm256_maddubs_epi16(high, four_columns(values + 4)));
          dot[i] = _mm256_add_epi32(dot[i], _mm256_madd_epi16(pairs, ones));
        }
      }
      for (size_t i = 0; i < kRows; ++i) {
        const QuantizedRow x = quantized_row(rows + i * row_stride, k);
        const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[i]), _mm256_set1_ps(x.scales[b]));
        total[i] = _mm256_fmadd_ps(scaled, scales, total[i]);
        total[i] = _mm256_fmadd_ps(_mm256_set1_ps(x.scaled_sums[b]), minima, total[i]);
      }
    }
    for (size_t i = 0; i < kRows; ++i) store_result(out + i * out_stride + 8 * half, total[i], increase);
  }
}

// Four columns of eight rows as 16-bit pairs: rows 0 and 1, 4 and 5 of the half in one register, the others
// in the other.
template <size_t kRows>
void u8_tile(float* out, size_t out_stride, const std::byte* rows, size_t row_stride,
             const std::byte* weights, size_t k, bool increase) {
  const __m256i zero = _mm256_setzero_si256();
  const std::byte* scale_rows = weights + k / kBlock * 512;
  for (size_t half = 0; half < 2; ++half) {
    __m256 total[kRows];
    for (size_t i = 0; i < kRows; ++i) total[i] = _mm256_setzero_ps();
    for (size_t b = 0; b < k / kBlock; ++b) {
      const __m256 scales = scales_at(scale_rows + 32 * b + 16 * half);
      __m256i first[kRows], second[kRows];
      for (size_t i = 0; i < kRows; ++i) first[i] = second[i] = zero;
      for (size_t j = 0; j < 8; ++j) {
        const __m256i bytes = bytes_at(weights + 512 * b + 64 * j + 32 * half);
        const __m256i left = _mm256_unpacklo_epi8(bytes, zero), right = _mm256_unpackhi_epi8(bytes, zero);
        for (size_t i = 0; i < kRows; ++i) {
          const int8_t* values = quantized_row(rows + i * row_stride, k).values + b * kBlock + 4 * j;
          const __m256i wide = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(four_columns(values)));
          first[i] = _mm256_add_epi32(first[i], _mm256_madd_epi16(left, wide));
          second[i] = _mm256_add_epi32(second[i], _mm256_madd_epi16(right, wide));
        }
      }
      for (size_t i = 0; i < kRows; ++i) {
        const QuantizedRow x = quantized_row(rows + i * row_stride, k);
        const __m256i dot =
            _mm256_add_epi32(_mm256_hadd_epi32(first[i], second[i]), _mm256_set1_epi32(x.offsets[b]));
        const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(x.scales[b]));
        total[i] = _mm256_fmadd_ps(scaled, scales, total[i]);
      }
    }
    for (size_t i = 0; i < kRows; ++i) store_result(out + i * out_stride + 8 * half, total[i], increase);
  }
}

using Tile = void (*)(float*, size_t, const std::byte*, size_t, const std::byte*, size_t, bool);

void matmul_tiles(Tile four, Tile one, size_t group_bytes, float* out, size_t out_stride,
                  const std::byte* rows, size_t row_stride, size_t m, const std::byte* weights, size_t k,
                  size_t groups, bool increase) {
  for (size_t g = 0; g < groups; ++g, weights += group_bytes, out += kGroup) {
    size_t i = 0;
    for (; i + 4 <= m; i += 4)
      four(out + i * out_stride, out_stride, rows + i * row_stride, row_stride, weights, k, increase);
    for (; i < m; ++i)
      one(out + i * out_stride, out_stride, rows + i * row_stride, row_stride, weights, k, increase);
  }
}

void matmul_u4(float* out, size_t out_stride, const std::byte* rows, size_t row_stride, size_t m,
               const std::byte* weights, size_t k, size_t groups, bool increase) {
  matmul_tiles(u4_tile<4>, u4_tile<1>, k / kBlock * 320, out, out_stride, rows, row_stride, m, weights, k,
               groups, increase);
}

void matmul_u8(float* out, size_t out_stride, const std::byte* rows, size_t row_stride, size_t m,
               const std::byte* weights, size_t k, size_t groups, bool increase) {
  matmul_tiles(u8_tile<4>, u8_tile<1>, k / kBlock * 512 + (k + 63) / 64 * 64, out, out_stride, rows,
               row_stride, m, weights, k, groups, increase);
}

}  // namespace

const Table kAvx2Table = make_table("avx2", matmul_u4, matmul_u8);

}  // namespace ringmaster::gpu_worker::kernels
