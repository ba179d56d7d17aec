// What is done with a sum of a matrix product, inside the kernel that made it: q, k and v with their rotary
// embedding, the residual stream, the gated activation, logits. Kernels of every form of weights share it.
//
// of_row() is called once for each row of a thread; before() while a sum is still being made, to fetch what
// it will need; after() with the sum, by neighbouring threads for neighbouring columns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/cuda/mma.cuh"
#include "gpu-worker/kernels/cuda/skinny.h"

namespace ringmaster::gpu_worker::cuda {

struct QkvOut {
  TokenView tokens;
  RopeView rope;
  KvView kv;
  const bf16* bias;
  bf16* q;
  uint32_t layer, q_width, kv_width;

  struct Row {
    float position = 0;
    uint32_t slot = 0;
  };
  struct Ready {
    bf16* to = nullptr;
    float bias = 0, sine = 0, cosine = 1;
  };

  __device__ Row of_row(uint32_t row) const {
    return {static_cast<float>(tokens.position[row]), tokens.kv_slot[row]};
  }
  __device__ Ready before(const Row& of, uint32_t row, uint32_t column) const {
    Ready r;
    const uint32_t d = column % kv.head_dim;  // q_width and kv_width are whole heads
    const bool is_v = column >= q_width + kv_width;
    if (bias != nullptr) r.bias = __bfloat162float(bias[column]);
    if (!is_v && d < rope.dims) {
      sincosf(of.position * rope.inverse_frequency[d / 2], &r.sine, &r.cosine);
      if (d % 2 == 0) r.sine = -r.sine;
    }
    if (column < q_width) {
      r.to = q + size_t{row} * q_width + column;
      return r;
    }
    const uint32_t slot = of.slot, in_kv = column - q_width - (is_v ? kv_width : 0);
    const int token = static_cast<int>(slot % kBlockTokens), dim = static_cast<int>(d),
              size = static_cast<int>(kv.head_dim);
    r.to = kv.piece(slot / kBlockTokens, layer, in_kv / kv.head_dim) +
           (is_v ? value_offset(token, dim, size) : key_offset(token, dim, size));
    return r;
  }
  // (a, b) turned: a cos - b sin, b cos + a sin.
  __device__ void after(const Ready& r, uint32_t, uint32_t, float value, bool live) const {
    value += r.bias;
    const float other = __shfl_xor_sync(0xFFFFFFFF, value, 1);
    if (live) *r.to = __float2bfloat16(value * r.cosine + other * r.sine);
  }
};

struct ResidualOut {
  bf16* residual;
  uint32_t n;
  struct Row {};
  struct Ready {
    float residual;
  };
  __device__ Row of_row(uint32_t) const { return {}; }
  __device__ Ready before(const Row&, uint32_t row, uint32_t column) const {
    return {__bfloat162float(residual[size_t{row} * n + column])};
  }
  __device__ void after(const Ready& r, uint32_t row, uint32_t column, float value, bool live) const {
    if (live) residual[size_t{row} * n + column] = __float2bfloat16(r.residual + value);
  }
};

template <Gate kGate>
struct GatedOut {
  bf16* y;
  uint32_t n;
  struct Row {};
  struct Ready {};
  __device__ Row of_row(uint32_t) const { return {}; }
  __device__ Ready before(const Row&, uint32_t, uint32_t) const { return {}; }
  __device__ void after(const Ready&, uint32_t row, uint32_t column, float value, bool live) const {
    const float up = __shfl_xor_sync(0xFFFFFFFF, value, 1);
    if (!live || column % 2 != 0) return;
    const float gate = kGate == Gate::kSilu ? silu(value) : gelu_tanh(value);
    y[size_t{row} * (n / 2) + column / 2] = __float2bfloat16(gate * up);
  }
};

struct LogitsOut {
  float* y;
  uint32_t n;
  float soft_cap;
  struct Row {};
  struct Ready {};
  __device__ Row of_row(uint32_t) const { return {}; }
  __device__ Ready before(const Row&, uint32_t, uint32_t) const { return {}; }
  __device__ void after(const Ready&, uint32_t row, uint32_t column, float value, bool live) const {
    if (!live) return;
    if (soft_cap != 0) value = soft_cap * tanhf(value / soft_cap);
    y[size_t{row} * n + column] = value;
  }
};

}  // namespace ringmaster::gpu_worker::cuda
