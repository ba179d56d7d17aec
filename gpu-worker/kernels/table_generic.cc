// The reference: plain loops in double precision on unrounded activations. Slow on purpose; every fast table
// is tested against it, and it runs anywhere.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gpu-worker/kernels/half.h"
#include "gpu-worker/kernels/tables.h"

namespace ringmaster::gpu_worker::kernels {
namespace {

size_t row_bytes(size_t k) {
  return (k * sizeof(float) + 63) / 64 * 64;
}

void prepare(std::byte* row, size_t, size_t first, const float* x, size_t n) {
  std::memcpy(row + first * sizeof(float), x, n * sizeof(float));
}

void subtract_prepared(float* x, const std::byte* row, size_t k) {
  for (size_t i = 0; i < k; ++i) x[i] -= reinterpret_cast<const float*>(row)[i];
}

uint16_t u16_at(const std::byte* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

// Value (lane, column) of a packed group of k columns (packing.h).
struct U4 {
  static size_t group_bytes(size_t k) { return k / kBlock * 320; }
  static double at(const std::byte* group, size_t, size_t lane, size_t column) {
    const std::byte* block = group + column / kBlock * 320;
    const size_t c = column % kBlock;
    const auto byte = static_cast<uint8_t>(block[64 * (c / 8) + 4 * lane + c % 4]);
    const int nibble = c % 8 < 4 ? byte & 15 : byte >> 4;
    return static_cast<double>(float_of_half(u16_at(block + 256 + 2 * lane))) * nibble +
           static_cast<double>(float_of_half(u16_at(block + 288 + 2 * lane)));
  }
};

struct U8 {
  static size_t group_bytes(size_t k) { return k / kBlock * 512 + (k + 63) / 64 * 64; }
  static double at(const std::byte* group, size_t k, size_t lane, size_t column) {
    const size_t b = column / kBlock, c = column % kBlock;
    const int value = static_cast<uint8_t>(group[b * 512 + 64 * (c / 4) + 4 * lane + c % 4]) - 128;
    return static_cast<double>(float_of_half(u16_at(group + k / kBlock * 512 + 2 * (b * kGroup + lane)))) *
           value;
  }
};

struct F16 {
  static size_t group_bytes(size_t k) { return k * kGroup * 2; }
  static double at(const std::byte* group, size_t, size_t lane, size_t column) {
    return static_cast<double>(float_of_half(u16_at(group + 2 * (column * kGroup + lane))));
  }
};

struct BF16 {
  static size_t group_bytes(size_t k) { return k * kGroup * 2; }
  static double at(const std::byte* group, size_t, size_t lane, size_t column) {
    return static_cast<double>(float_of_bf16(u16_at(group + 2 * (column * kGroup + lane))));
  }
};

struct F32 {
  static size_t group_bytes(size_t k) { return k * kGroup * 4; }
  static double at(const std::byte* group, size_t, size_t lane, size_t column) {
    float value;
    std::memcpy(&value, group + 4 * (column * kGroup + lane), 4);
    return static_cast<double>(value);
  }
};

template <typename Form>
void matmul(float* out, size_t out_stride, const std::byte* rows, size_t row_stride, size_t m,
            const std::byte* weights, size_t k, size_t groups, bool increase) {
  for (size_t i = 0; i < m; ++i) {
    const auto* x = reinterpret_cast<const float*>(rows + i * row_stride);
    for (size_t j = 0; j < groups * kGroup; ++j) {
      const std::byte* group = weights + j / kGroup * Form::group_bytes(k);
      double sum = 0;
      for (size_t c = 0; c < k; ++c) sum += static_cast<double>(x[c]) * Form::at(group, k, j % kGroup, c);
      float& result = out[i * out_stride + j];
      result = static_cast<float>(sum) + (increase ? result : 0);
    }
  }
}

void add(float* x, const float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] += y[i];
}

void rms_norm(float* out, const float* x, const float* weight, size_t n, float epsilon) {
  double squares = 0;
  for (size_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(epsilon));
  for (size_t i = 0; i < n; ++i)
    out[i] = static_cast<float>(static_cast<double>(x[i]) * scale * static_cast<double>(weight[i]));
}

void silu_mul(float* out, const float* gate, const float* up, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(gate[i]);
    out[i] = static_cast<float>(g / (1 + std::exp(-g)) * static_cast<double>(up[i]));
  }
}

void rope_pairs(float* x, const float* cosine, const float* sine, size_t heads, size_t head_dim,
                float scale) {
  for (size_t h = 0; h < heads; ++h, x += head_dim)
    for (size_t i = 0; i < head_dim; i += 2) {
      const float a = x[i], b = x[i + 1];
      x[i] = (a * cosine[i] + b * sine[i]) * scale;
      x[i + 1] = (b * cosine[i + 1] + a * sine[i + 1]) * scale;
    }
}

uint16_t saturated_half(float value) {
  return half_of_float(value > 65504 ? 65504 : value < -65504 ? -65504 : value);
}

void store_kv(uint16_t* k_tile, uint16_t* v_tile, size_t slot, const float* key, const float* value,
              size_t head_dim) {
  for (size_t d = 0; d < head_dim; ++d) {
    k_tile[d * kTile + slot] = saturated_half(key[d]);
    v_tile[slot * head_dim + d] = saturated_half(value[d]);
  }
}

void attend(float* sums, float* max_sum, const float* q, size_t q_stride, const uint32_t* last_key, size_t nq,
            const uint16_t* const* k_tiles, const uint16_t* const* v_tiles, size_t first_key,
            size_t head_dim) {
  for (size_t i = 0; i < nq; ++i) {
    const size_t keys = std::min<size_t>(kSpan, last_key[i] + 1 - first_key);
    double scores[kSpan];
    double top = -HUGE_VAL;
    for (size_t j = 0; j < keys; ++j) {
      scores[j] = 0;
      for (size_t d = 0; d < head_dim; ++d)
        scores[j] += static_cast<double>(q[i * q_stride + d]) *
                     static_cast<double>(float_of_half(k_tiles[j / kTile][d * kTile + j % kTile]));
      top = std::max(top, scores[j]);
    }
    double total = 0;
    double row[kMaxHeadDim] = {};
    for (size_t j = 0; j < keys; ++j) {
      const double weight = std::exp(scores[j] - top);
      total += weight;
      for (size_t d = 0; d < head_dim; ++d)
        row[d] += weight * static_cast<double>(float_of_half(v_tiles[j / kTile][j % kTile * head_dim + d]));
    }
    for (size_t d = 0; d < head_dim; ++d) sums[i * head_dim + d] = static_cast<float>(row[d]);
    max_sum[2 * i] = static_cast<float>(top);
    max_sum[2 * i + 1] = static_cast<float>(total);
  }
}

void attend_merge(float* sums, float* max_sum, const float* later_sums, const float* later_max_sum,
                  size_t head_dim) {
  const float top = std::max(max_sum[0], later_max_sum[0]);
  const float before = std::exp(max_sum[0] - top), after = std::exp(later_max_sum[0] - top);
  for (size_t d = 0; d < head_dim; ++d) sums[d] = sums[d] * before + later_sums[d] * after;
  max_sum[1] = max_sum[1] * before + later_max_sum[1] * after;
  max_sum[0] = top;
}

void attend_finish(float* out, const float* sums, const float* max_sum, size_t head_dim) {
  for (size_t d = 0; d < head_dim; ++d) out[d] = sums[d] / max_sum[1];
}

Extent extent(const float* logits, size_t n) {
  Extent result;
  result.max = -HUGE_VALF;
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(logits[i])) {
      result.finite = false;
    } else if (logits[i] > result.max) {
      result.max = logits[i];
      result.index = static_cast<uint32_t>(i);
    }
  }
  return result;
}

void block_maxima(float* maxima, const float* logits, size_t n) {
  for (size_t i = 0; i < n; i += kExtentBlock)
    maxima[i / kExtentBlock] = *std::max_element(logits + i, logits + std::min(n, i + kExtentBlock));
}

void exponentials(float* out, const float* logits, size_t n, float max, float scale) {
  for (size_t i = 0; i < n; ++i) out[i] = std::exp((logits[i] - max) * scale);
}

void block_exp_sums(double* sums, const float* logits, size_t n, float max, float scale) {
  for (size_t i = 0; i < n; i += kExtentBlock) {
    double sum = 0;
    for (size_t j = i; j < std::min(n, i + kExtentBlock); ++j)
      sum += static_cast<double>(std::exp((logits[j] - max) * scale));
    sums[i / kExtentBlock] = sum;
  }
}

}  // namespace

const Table kGenericTable = {
    .name = "generic",
    .row_bytes = {row_bytes, row_bytes},
    .prepare = {prepare, prepare},
    .subtract_prepared = {subtract_prepared, subtract_prepared},
    .matmul = {matmul<U4>, matmul<U8>, matmul<F16>, matmul<BF16>, matmul<F32>},
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

}  // namespace ringmaster::gpu_worker::kernels
