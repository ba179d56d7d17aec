// What the AVX2 and AVX-512 tables share, written once over `Vector` (vector_avx2.h or vector_avx512.h,
// included first). Everything is local to the including file and nothing of the standard library is called: a
// function compiled here for a newer processor must never be the copy the linker keeps for everybody. Sums
// run in an order fixed by the row alone: lane by lane from the first element, then across lanes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/half.h"
#include "gpu-worker/kernels/kernels.h"

namespace ringmaster::gpu_worker::kernels {
namespace {

using V = Vector::T;
constexpr size_t kWidth = Vector::kWidth;
constexpr float kInfinity = __builtin_huge_valf();

size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

// e^x for x <= 88; below -87.3 exactly 0, at 0 exactly 1. Relative error below 2e-7 (polynomial of Cephes
// expf).
V exponential(V x) {
  const V y = Vector::max(Vector::set(-87.3f), Vector::min(Vector::set(88.3f), x));
  const V n = Vector::round(Vector::mul(y, Vector::set(1.44269504088896341f)));
  V r = Vector::fma(n, Vector::set(-0.693359375f), y);
  r = Vector::fma(n, Vector::set(2.12194440e-4f), r);
  V p = Vector::set(1.9875691500e-4f);
  p = Vector::fma(p, r, Vector::set(1.3981999507e-3f));
  p = Vector::fma(p, r, Vector::set(8.3334519073e-3f));
  p = Vector::fma(p, r, Vector::set(4.1665795894e-2f));
  p = Vector::fma(p, r, Vector::set(1.6666665459e-1f));
  p = Vector::fma(p, r, Vector::set(5.0000001201e-1f));
  p = Vector::fma(Vector::mul(p, r), r, Vector::add(r, Vector::set(1)));
  return Vector::zero_where_below(Vector::times_power_of_two(p, n), x, -87.3f);
}

// A prepared row of k values for the quantised forms: k signed bytes, then for each block of 32 the scale,
// scale * sum of the bytes (for the minimum of kU4), both float, and -128 * sum (for the offset of kU8),
// int32.
size_t quantized_row_bytes(size_t k) {
  return (k + k / kBlock * 12 + 63) / 64 * 64;
}

struct QuantizedRow {
  const int8_t* values;
  const float* scales;
  const float* scaled_sums;
  const int32_t* offsets;
};

inline QuantizedRow quantized_row(const std::byte* row, size_t k) {
  const std::byte* tail = row + k;
  const size_t blocks = k / kBlock;
  return {reinterpret_cast<const int8_t*>(row), reinterpret_cast<const float*>(tail),
          reinterpret_cast<const float*>(tail + 4 * blocks),
          reinterpret_cast<const int32_t*>(tail + 8 * blocks)};
}

// Symmetric, nearest, ties to even; the largest magnitude of the block becomes 127. A block that is not
// finite gets a scale that is not finite either, which makes the outputs of that row, and of no other, not
// finite.
void quantize(std::byte* row, size_t k, size_t first, const float* x, size_t n) {
  const size_t blocks = k / kBlock;
  auto* scales = reinterpret_cast<float*>(row + k);
  auto* scaled_sums = scales + blocks;
  auto* offsets = reinterpret_cast<int32_t*>(scaled_sums + blocks);
  for (size_t b = first / kBlock; b < (first + n) / kBlock; ++b, x += kBlock) {
    V top = Vector::set(0);
    V poison = Vector::set(0);  // 0 * x is 0, or NaN where x is not finite
    for (size_t i = 0; i < kBlock; i += kWidth) {
      top = Vector::max(top, Vector::abs(Vector::load(x + i)));
      poison = Vector::fma(Vector::set(0), Vector::load(x + i), poison);
    }
    const float largest = Vector::largest(top);
    const float factor = largest > 0 ? 127.0f / largest : 0;
    // A block so small that 127 / largest overflows counts as zero.
    const V inverse = Vector::set(factor < kInfinity ? factor : 0);
    int sum = 0;
    for (size_t i = 0; i < kBlock; i += kWidth) {
      // What is not a number becomes 127: some number, so that the integer sums below stay in range.
      const V scaled = Vector::min(Vector::round(Vector::mul(Vector::load(x + i), inverse)), Vector::set(127));
      Vector::store_int8(reinterpret_cast<int8_t*>(row) + b * kBlock + i, scaled);
      sum += Vector::sum_of_integers(scaled);
    }
    scales[b] = largest / 127.0f + Vector::sum(poison);
    scaled_sums[b] = scales[b] * static_cast<float>(sum);
    offsets[b] = static_cast<int32_t>(static_cast<uint32_t>(sum) * static_cast<uint32_t>(-128));
  }
}

size_t float_row_bytes(size_t k) {
  return (k * sizeof(float) + 63) / 64 * 64;
}

void copy_floats(std::byte* row, size_t, size_t first, const float* x, size_t n) {
  auto* out = reinterpret_cast<float*>(row) + first;
  for (size_t i = 0; i < n; i += kWidth) Vector::store(out + i, Vector::load(x + i));
}

void subtract_quantized(float* x, const std::byte* row, size_t k) {
  const QuantizedRow prepared = quantized_row(row, k);
  for (size_t b = 0; b < k / kBlock; ++b) {
    const V negative_scale = Vector::set(-prepared.scales[b]);
    for (size_t i = b * kBlock; i < (b + 1) * kBlock; i += kWidth)
      Vector::store(x + i,
                    Vector::fma(Vector::load_int8(prepared.values + i), negative_scale, Vector::load(x + i)));
  }
}

void subtract_floats(float* x, const std::byte* row, size_t k) {
  const auto* y = reinterpret_cast<const float*>(row);
  for (size_t i = 0; i < k; i += kWidth)
    Vector::store(x + i, Vector::sub(Vector::load(x + i), Vector::load(y + i)));
}

inline void store_result(float* out, V result, bool increase) {
  Vector::store(out, increase ? Vector::add(result, Vector::load(out)) : result);
}

struct HalfWeights {
  static constexpr size_t kBytes = 2;
  static V load(const std::byte* p) { return Vector::load_half(reinterpret_cast<const uint16_t*>(p)); }
};
struct BrainWeights {
  static constexpr size_t kBytes = 2;
  static V load(const std::byte* p) { return Vector::load_bf16(reinterpret_cast<const uint16_t*>(p)); }
};
struct FloatWeights {
  static constexpr size_t kBytes = 4;
  static V load(const std::byte* p) { return Vector::load(reinterpret_cast<const float*>(p)); }
};

// Rows x one group. Two sums a row, even and odd columns, keep the adders busy when there are few rows.
template <typename Weights, size_t kRows>
void float_tile(float* out, size_t out_stride, const std::byte* rows, size_t row_stride,
                const std::byte* weights, size_t k, bool increase) {
  for (size_t lane = 0; lane < kGroup; lane += kWidth) {
    V even[kRows], odd[kRows];
    for (size_t i = 0; i < kRows; ++i) even[i] = odd[i] = Vector::set(0);
    const std::byte* w = weights + lane * Weights::kBytes;
    for (size_t c = 0; c < k; c += 2, w += 2 * kGroup * Weights::kBytes) {
      const V first = Weights::load(w), second = Weights::load(w + kGroup * Weights::kBytes);
      for (size_t i = 0; i < kRows; ++i) {
        const auto* x = reinterpret_cast<const float*>(rows + i * row_stride) + c;
        even[i] = Vector::fma(Vector::set(x[0]), first, even[i]);
        odd[i] = Vector::fma(Vector::set(x[1]), second, odd[i]);
      }
    }
    for (size_t i = 0; i < kRows; ++i)
      store_result(out + i * out_stride + lane, Vector::add(even[i], odd[i]), increase);
  }
}

template <typename Weights>
void matmul_float(float* out, size_t out_stride, const std::byte* rows, size_t row_stride, size_t m,
                  const std::byte* weights, size_t k, size_t groups, bool increase) {
  for (size_t g = 0; g < groups; ++g, weights += k * kGroup * Weights::kBytes, out += kGroup) {
    size_t i = 0;
    for (; i + 4 <= m; i += 4)
      float_tile<Weights, 4>(out + i * out_stride, out_stride, rows + i * row_stride, row_stride, weights, k,
                             increase);
    for (; i < m; ++i)
      float_tile<Weights, 1>(out + i * out_stride, out_stride, rows + i * row_stride, row_stride, weights, k,
                             increase);
  }
}

void add(float* x, const float* y, size_t n) {
  for (size_t i = 0; i < n; i += kWidth)
    Vector::store(x + i, Vector::add(Vector::load(x + i), Vector::load(y + i)));
}

void rms_norm(float* out, const float* x, const float* weight, size_t n, float epsilon) {
  V squares = Vector::set(0);
  for (size_t i = 0; i < n; i += kWidth) {
    const V value = Vector::load(x + i);
    squares = Vector::fma(value, value, squares);
  }
  const V scale = Vector::set(1.0f / __builtin_sqrtf(Vector::sum(squares) / static_cast<float>(n) + epsilon));
  for (size_t i = 0; i < n; i += kWidth)
    Vector::store(out + i, Vector::mul(Vector::mul(Vector::load(x + i), scale), Vector::load(weight + i)));
}

void silu_mul(float* out, const float* gate, const float* up, size_t n) {
  for (size_t i = 0; i < n; i += kWidth) {
    const V g = Vector::load(gate + i);
    const V below = Vector::add(Vector::set(1), exponential(Vector::sub(Vector::set(0), g)));
    Vector::store(out + i, Vector::mul(Vector::div(g, below), Vector::load(up + i)));
  }
}

void rope_pairs(float* x, const float* cosine, const float* sine, size_t heads, size_t head_dim,
                float scale) {
  const V factor = Vector::set(scale);
  for (size_t h = 0; h < heads; ++h, x += head_dim)
    for (size_t i = 0; i < head_dim; i += kWidth) {
      const V value = Vector::load(x + i);
      const V turned = Vector::fma(value, Vector::load(cosine + i),
                                   Vector::mul(Vector::swap_pairs(value), Vector::load(sine + i)));
      Vector::store(x + i, Vector::mul(turned, factor));
    }
}

void store_kv(uint16_t* k_tile, uint16_t* v_tile, size_t slot, const float* key, const float* value,
              size_t head_dim) {
  const V low = Vector::set(-65504), high = Vector::set(65504);
  for (size_t d = 0; d < head_dim; d += kWidth) {
    uint16_t column[kWidth];
    Vector::store_half(column, Vector::max(low, Vector::min(high, Vector::load(key + d))));
    for (size_t i = 0; i < kWidth; ++i) k_tile[(d + i) * kTile + slot] = column[i];
    Vector::store_half(v_tile + slot * head_dim + d,
                       Vector::max(low, Vector::min(high, Vector::load(value + d))));
  }
}

template <size_t kNq>
void attend_scores(float (*scores)[kSpan], const float* q, size_t q_stride, const uint16_t* const* k_tiles,
                   size_t tiles, size_t head_dim) {
  for (size_t t = 0; t < tiles; ++t)
    for (size_t lane = 0; lane < kTile; lane += kWidth) {
      V even[kNq], odd[kNq];
      for (size_t i = 0; i < kNq; ++i) even[i] = odd[i] = Vector::set(0);
      const uint16_t* key = k_tiles[t] + lane;
      for (size_t d = 0; d < head_dim; d += 2, key += 2 * kTile) {
        const V first = Vector::load_half(key), second = Vector::load_half(key + kTile);
        for (size_t i = 0; i < kNq; ++i) {
          even[i] = Vector::fma(Vector::set(q[i * q_stride + d]), first, even[i]);
          odd[i] = Vector::fma(Vector::set(q[i * q_stride + d + 1]), second, odd[i]);
        }
      }
      for (size_t i = 0; i < kNq; ++i)
        Vector::store(scores[i] + t * kTile + lane, Vector::add(even[i], odd[i]));
    }
}

// Scores of one query become weights in place; what is past its last key counts nothing, whatever was there.
void attend_weights(float* scores, float* max_sum, size_t keys) {
  const size_t padded = (keys + kTile - 1) / kTile * kTile;
  for (size_t j = keys; j < padded; ++j) scores[j] = -kInfinity;
  V top = Vector::set(-kInfinity);
  for (size_t j = 0; j < padded; j += kWidth) top = Vector::max(top, Vector::load(scores + j));
  const float largest = Vector::largest(top);
  V total = Vector::set(0);
  for (size_t j = 0; j < padded; j += kWidth) {
    const V weight = exponential(Vector::sub(Vector::load(scores + j), Vector::set(largest)));
    Vector::store(scores + j, weight);
    total = Vector::add(total, weight);
  }
  max_sum[0] = largest;
  max_sum[1] = Vector::sum(total);
}

// sums[i][d ...] over all keys, key after key; the first `common` keys belong to every query.
template <size_t kNq, size_t kRegisters>
void attend_values(float* sums, const float (*scores)[kSpan], const size_t* keys, size_t common,
                   const uint16_t* const* v_tiles, size_t d, size_t head_dim) {
  V total[kNq][kRegisters];
  for (size_t i = 0; i < kNq; ++i)
    for (size_t r = 0; r < kRegisters; ++r) total[i][r] = Vector::set(0);
  for (size_t j = 0; j < common; ++j) {
    const uint16_t* value = v_tiles[j / kTile] + j % kTile * head_dim + d;
    V v[kRegisters];
    for (size_t r = 0; r < kRegisters; ++r) v[r] = Vector::load_half(value + r * kWidth);
    for (size_t i = 0; i < kNq; ++i)
      for (size_t r = 0; r < kRegisters; ++r)
        total[i][r] = Vector::fma(Vector::set(scores[i][j]), v[r], total[i][r]);
  }
  for (size_t i = 0; i < kNq; ++i) {
    for (size_t j = common; j < keys[i]; ++j) {
      const uint16_t* value = v_tiles[j / kTile] + j % kTile * head_dim + d;
      for (size_t r = 0; r < kRegisters; ++r)
        total[i][r] =
            Vector::fma(Vector::set(scores[i][j]), Vector::load_half(value + r * kWidth), total[i][r]);
    }
    for (size_t r = 0; r < kRegisters; ++r) Vector::store(sums + i * head_dim + d + r * kWidth, total[i][r]);
  }
}

template <size_t kNq>
void attend_queries(float* sums, float* max_sum, const float* q, size_t q_stride, const uint32_t* last_key,
                    const uint16_t* const* k_tiles, const uint16_t* const* v_tiles, size_t first_key,
                    size_t head_dim) {
  alignas(64) float scores[kNq][kSpan];
  size_t keys[kNq], common = kSpan, most = 0;
  for (size_t i = 0; i < kNq; ++i) {
    keys[i] = smaller(kSpan, last_key[i] + size_t{1} - first_key);
    common = smaller(common, keys[i]);
    most = most > keys[i] ? most : keys[i];
  }
  attend_scores<kNq>(scores, q, q_stride, k_tiles, (most + kTile - 1) / kTile, head_dim);
  for (size_t i = 0; i < kNq; ++i) attend_weights(scores[i], max_sum + 2 * i, keys[i]);
  constexpr size_t kWide = Vector::kValueRegisters;
  size_t d = 0;
  for (; d + kWide * kWidth <= head_dim; d += kWide * kWidth)
    attend_values<kNq, kWide>(sums, scores, keys, common, v_tiles, d, head_dim);
  for (; d < head_dim; d += kWidth) attend_values<kNq, 1>(sums, scores, keys, common, v_tiles, d, head_dim);
}

void attend(float* sums, float* max_sum, const float* q, size_t q_stride, const uint32_t* last_key, size_t nq,
            const uint16_t* const* k_tiles, const uint16_t* const* v_tiles, size_t first_key,
            size_t head_dim) {
  static_assert(kQueries == 4);
  constexpr decltype(&attend_queries<1>) kBySize[] = {attend_queries<1>, attend_queries<2>, attend_queries<3>,
                                                      attend_queries<4>};
  kBySize[nq - 1](sums, max_sum, q, q_stride, last_key, k_tiles, v_tiles, first_key, head_dim);
}

float exponential_of_one(float x) {
  float all[kWidth];
  Vector::store(all, exponential(Vector::set(x)));
  return all[0];
}

void attend_merge(float* sums, float* max_sum, const float* later_sums, const float* later_max_sum,
                  size_t head_dim) {
  const float top = max_sum[0] > later_max_sum[0] ? max_sum[0] : later_max_sum[0];
  const float before = exponential_of_one(max_sum[0] - top),
              after = exponential_of_one(later_max_sum[0] - top);
  for (size_t d = 0; d < head_dim; d += kWidth)
    Vector::store(sums + d, Vector::fma(Vector::load(sums + d), Vector::set(before),
                                        Vector::mul(Vector::load(later_sums + d), Vector::set(after))));
  max_sum[1] = max_sum[1] * before + later_max_sum[1] * after;
  max_sum[0] = top;
}

void attend_finish(float* out, const float* sums, const float* max_sum, size_t head_dim) {
  const V inverse = Vector::set(1.0f / max_sum[1]);
  for (size_t d = 0; d < head_dim; d += kWidth)
    Vector::store(out + d, Vector::mul(Vector::load(sums + d), inverse));
}

Extent extent_one_by_one(const float* logits, size_t n) {
  Extent result{-kInfinity, 0, true};
  for (size_t i = 0; i < n; ++i) {
    if (!(logits[i] - logits[i] == 0)) {
      result.finite = false;
    } else if (logits[i] > result.max) {
      result.max = logits[i];
      result.index = static_cast<uint32_t>(i);
    }
  }
  return result;
}

float block_maximum(const float* logits, size_t n) {
  V top = Vector::set(-kInfinity);
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) top = Vector::max(top, Vector::load(logits + i));
  if (i < n) top = Vector::max(top, Vector::load_part(logits + i, n - i, -kInfinity));
  return Vector::largest(top);
}

Extent extent(const float* logits, size_t n) {
  V poison = Vector::set(0);  // stays 0 while every value is finite
  Extent result{-kInfinity, 0, true};
  size_t best = 0;
  for (size_t b = 0; b < n; b += kExtentBlock) {
    const size_t size = smaller(kExtentBlock, n - b);
    size_t i = 0;
    for (; i + kWidth <= size; i += kWidth)
      poison = Vector::fma(Vector::set(0), Vector::load(logits + b + i), poison);
    if (i < size)
      poison = Vector::fma(Vector::set(0), Vector::load_part(logits + b + i, size - i, 0), poison);
    const float top = block_maximum(logits + b, size);
    if (top > result.max) {
      result.max = top;
      best = b;
    }
  }
  if (!(Vector::sum(poison) == 0)) return extent_one_by_one(logits, n);
  while (best + 1 < n && !(logits[best] == result.max)) ++best;
  result.index = static_cast<uint32_t>(best);
  return result;
}

void block_maxima(float* maxima, const float* logits, size_t n) {
  for (size_t b = 0; b < n; b += kExtentBlock)
    maxima[b / kExtentBlock] = block_maximum(logits + b, smaller(kExtentBlock, n - b));
}

void exponentials(float* out, const float* logits, size_t n, float max, float scale) {
  const V top = Vector::set(max), factor = Vector::set(scale);
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth)
    Vector::store(out + i, exponential(Vector::mul(Vector::sub(Vector::load(logits + i), top), factor)));
  if (i < n) {
    const V last = Vector::load_part(logits + i, n - i, max);
    Vector::store_part(out + i, n - i, exponential(Vector::mul(Vector::sub(last, top), factor)));
  }
}

void block_exp_sums(double* sums, const float* logits, size_t n, float max, float scale) {
  alignas(64) float block[kExtentBlock];
  const V top = Vector::set(max), factor = Vector::set(scale);
  for (size_t b = 0; b < n; b += kExtentBlock) {
    const size_t size = smaller(kExtentBlock, n - b);
    if (size < kExtentBlock) {
      exponentials(block, logits + b, size, max, scale);
      float sum = 0;
      for (size_t i = 0; i < size; ++i) sum += block[i];
      sums[b / kExtentBlock] = static_cast<double>(sum);
      continue;
    }
    V total = Vector::set(0);
    for (size_t i = 0; i < kExtentBlock; i += kWidth)
      total = Vector::add(total,
                          exponential(Vector::mul(Vector::sub(Vector::load(logits + b + i), top), factor)));
    sums[b / kExtentBlock] = static_cast<double>(Vector::sum(total));
  }
}

// The table but for the quantised products, which each instruction set has its own way of.
constexpr Table make_table(const char* name, Matmul u4, Matmul u8) {
  return {
      .name = name,
      .row_bytes = {quantized_row_bytes, float_row_bytes},
      .prepare = {quantize, copy_floats},
      .subtract_prepared = {subtract_quantized, subtract_floats},
      .matmul = {u4, u8, matmul_float<HalfWeights>, matmul_float<BrainWeights>, matmul_float<FloatWeights>},
      .add = add,
      .rms_norm = rms_norm,
      .silu_mul = silu_mul,
      .rope_pairs = rope_pairs,
      .store_kv = store_kv,
      .attend = attend,
      .attend_merge = attend_merge,
      .attend_finish = attend_finish,
      .extent = extent,
      .block_maxima = block_maxima,
      .exponentials = exponentials,
      .block_exp_sums = block_exp_sums,
  };
}

}  // namespace
}  // namespace ringmaster::gpu_worker::kernels
