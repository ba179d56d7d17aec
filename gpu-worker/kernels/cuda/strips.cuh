// What the kernels of skinny products share, whatever the form of their weights: how the sums of a strip of
// eight rows of W go from the warps that multiply, each of which has a share of the columns, to the warps
// that do what follows. Two buffers, handed over at named barriers, so that neither waits for the other's
// last strip.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/cuda/mma.cuh"
#include "gpu-worker/kernels/cuda/pipeline.cuh"

namespace ringmaster::gpu_worker::cuda {

constexpr uint32_t kStrip = 8;     // rows of W
constexpr uint32_t kOutWarps = 2;  // that add up and do what follows

// In shared memory. Of kRows rows of x.
template <uint32_t kMathWarps, uint32_t kRows>
struct StripSums {
  // 0 is __syncthreads().
  static constexpr uint32_t kSummed = 1, kTaken = 3, kThreads = (kMathWarps + kOutWarps) * kWarp;

  float values[2][kMathWarps][kRows * kStrip];  // [row of x][row of W]

  // A math warp's, for its strip number s: where its sums go; and that they are there.
  __device__ __forceinline__ float* begin(uint32_t s, uint32_t warp) {
    if (s >= 2) sync_named(kTaken + s % 2, kThreads);
    return &values[s % 2][warp][0];
  }
  __device__ __forceinline__ void end(uint32_t s) { arrive_named(kSummed + s % 2, kThreads); }

  // The out warps', thread `first` of them, for all `strips` of the block. factor: of each row, or null.
  template <bool kFactor, typename Out>
  __device__ __forceinline__ void take(const Out& out, const float* factor, uint32_t num_rows,
                                       uint32_t strips, uint32_t first) {
    constexpr uint32_t kEach = kRows * kStrip / (kOutWarps * kWarp);  // values of a thread
    typename Out::Row rows[kEach];
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      const uint32_t row = first / kStrip + i * kOutWarps * kWarp / kStrip;
      if (row < num_rows) rows[i] = out.of_row(row);
    }
    for (uint32_t s = 0; s < strips; ++s) {
      const uint32_t column = (blockIdx.x + s * gridDim.x) * kStrip + first % kStrip;
      typename Out::Ready ready[kEach];
#pragma unroll
      for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t row = first / kStrip + i * kOutWarps * kWarp / kStrip;
        if (row < num_rows) ready[i] = out.before(rows[i], row, column);
      }
      sync_named(kSummed + s % 2, kThreads);
#pragma unroll
      for (uint32_t i = 0; i < kEach; ++i) {
        float value = 0;
#pragma unroll
        for (uint32_t w = 0; w < kMathWarps; ++w) value += values[s % 2][w][first + i * kOutWarps * kWarp];
        const uint32_t row = first / kStrip + i * kOutWarps * kWarp / kStrip;
        if constexpr (kFactor) value *= factor[row];
        out.after(ready[i], row, column, value, row < num_rows);
      }
      if (s + 2 < strips) arrive_named(kTaken + s % 2, kThreads);
    }
  }
};

}  // namespace ringmaster::gpu_worker::cuda
