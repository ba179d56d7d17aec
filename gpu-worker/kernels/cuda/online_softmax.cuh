// The part that decode and prefill attention share: scores of up to 16 queries against the 16 keys of a
// block, the running softmax, and the weighted values, all in registers. A lane holds queries g and g + 8 (g
// = lane / 4).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/cuda/mma.cuh"

namespace ringmaster::gpu_worker::cuda {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kNoScore = -INFINITY;

template <int kHeadDim>
struct Queries {
  // [dim / 32][low row, high row]: chunks of eight dims.
  uint4 low[kHeadDim / 32], high[kHeadDim / 32];
};

template <int kHeadDim>
struct KeyFragments {
  uint4 v[2][kHeadDim / 32];  // tokens 0-7, 8-15
};
template <int kHeadDim>
struct ValueFragments {
  uint4 v[kHeadDim / 16];
};

// A lane's share of a block's piece (mma_layout.h), in device or shared memory: keys, and behind them values.
template <int kHeadDim>
__device__ __forceinline__ void load_keys(KeyFragments<kHeadDim>& k, const uint4* piece) {
  const uint4* const from = piece + threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) k.v[i / (kHeadDim / 32)][i % (kHeadDim / 32)] = from[i * kWarp];
}
template <int kHeadDim>
__device__ __forceinline__ void load_values(ValueFragments<kHeadDim>& v, const uint4* piece) {
  const uint4* const from = piece + kHeadDim / 16 * kWarp + threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) v.v[i] = from[i * kWarp];
}

// Of kTiles tiles of 16 queries against the two tiles of eight keys of block number kBlock; not scaled yet. A
// product waits for the one before on the same accumulator, so they take turns.
template <int kHeadDim, int kBlock, int kTiles, int kWidth>
__device__ __forceinline__ void scores(Accumulator (&all)[kTiles][kWidth],
                                       const Queries<kHeadDim> (&q)[kTiles],
                                       const KeyFragments<kHeadDim>& k) {
  const auto at = [&](int t, int tile) -> Accumulator& { return all[t][2 * kBlock + tile]; };
#pragma unroll
  for (int t = 0; t < kTiles; ++t) at(t, 0) = at(t, 1) = {};
#pragma unroll
  for (int i = 0; i < kHeadDim / 32; ++i) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
        mma(at(t, tile), q[t].low[i].x, q[t].high[i].x, q[t].low[i].y, q[t].high[i].y, k.v[tile][i].x,
            k.v[tile][i].y);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
        mma(at(t, tile), q[t].low[i].z, q[t].high[i].z, q[t].low[i].w, q[t].high[i].w, k.v[tile][i].z,
            k.v[tile][i].w);
  }
}

// Zeros for keys from `end` on. Their weight is zero, but a former owner of the block may have left NaN
// there.
template <int kHeadDim>
__device__ __forceinline__ void clear_from(ValueFragments<kHeadDim>& v, uint32_t first_key, uint32_t end) {
  const uint32_t key = first_key + threadIdx.x % 4 * 2;
  const auto kept = [&](uint32_t n) { return (n < end ? 0xFFFFu : 0u) | (n + 1 < end ? 0xFFFF0000u : 0u); };
  const uint32_t low = kept(key), high = kept(key + 8);
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i)
    v.v[i] = {v.v[i].x & low, v.v[i].y & high, v.v[i].z & low, v.v[i].w & high};
}

// exp2 for arguments of at most 0: one instruction, results below the smallest normal number are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Weights of keys, rounded to bf16: A of the products with the values of a block.
struct Weights16 {
  uint32_t a[4];
};

template <int kHeadDim>
struct Running {
  float max[2] = {kNoScore, kNoScore};  // of rows g and g + 8, in units of log2
  float sum[2] = {0, 0};                // of this lane's keys alone until joined
  Accumulator out[kHeadDim / 8];

  // s: scores of kBlocks blocks, kNoScore where a key is not seen; to_log2 > 0 brings them to units of log2.
  template <int kBlocks>
  __device__ __forceinline__ void weigh(const Accumulator (&s)[2 * kBlocks], float to_log2,
                                        Weights16 (&weights)[kBlocks]) {
    float shrink[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = kNoScore;
#pragma unroll
      for (int tile = 0; tile < 2 * kBlocks; ++tile)
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
      for (int tile = 0; tile < 2 * kBlocks; ++tile) {
        const float low = exp2_fast(fmaf(s[tile].v[2 * row], to_log2, -base));
        const float high = exp2_fast(fmaf(s[tile].v[2 * row + 1], to_log2, -base));
        added += low + high;
        weights[tile / 2].a[tile % 2 * 2 + row] = pack(low, high);
      }
      sum[row] = sum[row] * shrink[row] + added;
    }
    // Maxima grow at the beginning and then hardly ever.
    if (__any_sync(0xFFFFFFFF, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
      for (int d = 0; d < kHeadDim / 8; ++d)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[d].v[i] *= shrink[i / 2];
    }
  }

  __device__ __forceinline__ void add(const Weights16& w, const ValueFragments<kHeadDim>& v) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      mma(out[2 * i], w.a[0], w.a[1], w.a[2], w.a[3], v.v[i].x, v.v[i].y);
      mma(out[2 * i + 1], w.a[0], w.a[1], w.a[2], w.a[3], v.v[i].z, v.v[i].w);
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

// What a score is multiplied with on its way to units of log2; a capped one has its scale already.
__device__ __forceinline__ float to_log2(float scale, float soft_cap) {
  return soft_cap != 0 ? kLog2e : scale * kLog2e;
}
template <int kWidth>
__device__ __forceinline__ void cap_scores(Accumulator (&s)[kWidth], float scale, float soft_cap) {
  if (soft_cap == 0) return;
#pragma unroll
  for (int tile = 0; tile < kWidth; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[tile].v[i] = soft_cap * tanhf(s[tile].v[i] * scale / soft_cap);
}
// kNoScore for keys that are not seen. first_key: of the first block; seen(row 0 or 1, key).
template <int kWidth, typename Seen>
__device__ __forceinline__ void mask_scores(Accumulator (&s)[kWidth], uint32_t first_key, const Seen& seen) {
  const uint32_t column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < kWidth; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (!seen(i / 2, first_key + tile * 8 + column + i % 2)) s[tile].v[i] = kNoScore;
}

}  // namespace ringmaster::gpu_worker::cuda
