// What decode and prefill attention share: scores on their way to weights, and the running softmax. Scores
// lie in tiles of eight keys; of each a lane holds rows g and g + 8 (g = lane / 4) and two columns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/cuda/mma.cuh"

namespace ringmaster::gpu_worker::cuda {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kNoScore = -INFINITY;

// exp2: one instruction, results below the smallest normal number are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What a score is multiplied with on its way to units of log2; a capped one has its scale already.
__device__ __forceinline__ float to_log2(float scale, float soft_cap) {
  return soft_cap != 0 ? kLog2e : scale * kLog2e;
}
// cap tanh(score scale / cap), by tanh x = 1 - 2 / (1 + exp 2 x): right to 1e-7 of the cap.
template <int kTiles>
__device__ __forceinline__ void cap_scores(Accumulator (&s)[kTiles], float scale, float soft_cap) {
  if (soft_cap == 0) return;
  const float factor = 2 * kLog2e * scale / soft_cap;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      s[tile].v[i] = soft_cap - __fdividef(2 * soft_cap, 1 + exp2_fast(s[tile].v[i] * factor));
}
// kNoScore for keys that are not seen: seen(tile, i), i counting a lane's scores of a tile.
template <int kTiles, typename Seen>
__device__ __forceinline__ void mask_scores(Accumulator (&s)[kTiles], const Seen& seen) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (!seen(tile, i)) s[tile].v[i] = kNoScore;
}

// Of rows g and g + 8.
struct RunningSoftmax {
  float max[2] = {kNoScore, kNoScore};  // in units of log2
  float sum[2] = {0, 0};                // of this lane's keys alone until joined

  // Scores become weights; to_log2 > 0 brings them to units of log2. shrink: what the weights given before
  // have to be multiplied with.
  template <int kTiles>
  __device__ __forceinline__ void weigh(Accumulator (&s)[kTiles], float to_log2, float (&shrink)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = fmaxf(s[0].v[2 * row], s[0].v[2 * row + 1]);
#pragma unroll
      for (int tile = 1; tile < kTiles; ++tile)
        largest = fmaxf(largest, fmaxf(s[tile].v[2 * row], s[tile].v[2 * row + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 2));
      const float new_max = fmaxf(max[row], largest * to_log2);
      // A row that has seen no key yet keeps zeros.
      const float base = new_max == kNoScore ? 0 : new_max;
      shrink[row] = exp2_fast(max[row] - base);
      max[row] = new_max;
      float added = 0;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float* const pair = &s[tile].v[2 * row];
        pair[0] = exp2_fast(fmaf(pair[0], to_log2, -base));
        pair[1] = exp2_fast(fmaf(pair[1], to_log2, -base));
        added += pair[0] + pair[1];
      }
      sum[row] = sum[row] * shrink[row] + added;
    }
  }

  // Sums of the four lanes of a row.
  __device__ __forceinline__ void join_lanes() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum[row] += __shfl_xor_sync(0xFFFFFFFF, sum[row], 1);
      sum[row] += __shfl_xor_sync(0xFFFFFFFF, sum[row], 2);
    }
  }
};

// Maxima grow at the beginning and then hardly ever.
template <int kTiles>
__device__ __forceinline__ void shrink_sums(Accumulator (&out)[kTiles], const float (&shrink)[2]) {
  if (!__any_sync(0xFFFFFFFF, shrink[0] != 1 || shrink[1] != 1)) return;
#pragma unroll
  for (int d = 0; d < kTiles; ++d)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[d].v[i] *= shrink[i / 2];
}

// Weights of 16 keys, rounded to bf16: A of the products with their values.
struct Weights16 {
  uint32_t a[4];
};
__device__ __forceinline__ Weights16 rounded(const Accumulator& low, const Accumulator& high) {
  return {{pack(low.v[0], low.v[1]), pack(low.v[2], low.v[3]), pack(high.v[0], high.v[1]),
           pack(high.v[2], high.v[3])}};
}

}  // namespace ringmaster::gpu_worker::cuda
