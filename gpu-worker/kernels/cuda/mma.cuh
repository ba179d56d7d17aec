// What every CUDA kernel here shares: bf16 pairs, the warp-level matrix product, and dependent launch.
//
// Fragments of m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane = 4 * g + j holds of A rows g
// and g + 8, of B column g, of C rows g and g + 8, columns 2j and 2j + 1. Which k a register stands for is
// our choice as long as A and B agree, so a lane takes eight neighbouring k (16 bytes) of a row: `chunk` j of
// 32 values serves two products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "gpu-worker/kernels/cuda/mma_layout.h"

namespace ringmaster::gpu_worker::cuda {

using bf16 = __nv_bfloat16;

constexpr int kWarp = 32;

struct Accumulator {  // C of m16n8k16
  float v[4] = {0, 0, 0, 0};
};

__device__ __forceinline__ void mma(Accumulator& c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ float2 unpack(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
}

// Programmatic dependent launch: what comes before wait_for_predecessor() runs beside the end of the kernel
// before, and may only read what no kernel of the step writes (weights, tables). Both do nothing in a launch
// without the attribute.
__device__ __forceinline__ void wait_for_predecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void let_successor_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ float silu(float v) {
  return v / (1 + __expf(-v));
}
// The tanh form of Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
__device__ __forceinline__ float gelu_tanh(float v) {
  return 0.5f * v * (1 + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xFFFFFFFF, v, offset);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFF, v, offset));
  return v;
}

}  // namespace ringmaster::gpu_worker::cuda
