#include <cuda_fp16.h>

#include "gpu-worker/kernels/cuda/four_bit.h"
#include "gpu-worker/kernels/cuda/mma.cuh"
#include "gpu-worker/model/philox.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRandomBlocks = 4096;

// A warp a unit, a lane its 32 codes.
__global__ void widen_kernel(const FourBitMatrix m, bf16* to) {
  const size_t unit = (blockIdx.x * size_t{kThreads} + threadIdx.x) / kWarp;
  const uint32_t lane = threadIdx.x % kWarp, units = m.shape.units();
  if (unit >= size_t{m.shape.n} / FourBitShape::kUnitRows * units) return;
  wait_for_predecessor();  // who may still read `to`
  const uint32_t row = static_cast<uint32_t>(unit / units) * FourBitShape::kUnitRows + lane / 4,
                 first = static_cast<uint32_t>(unit % units) * FourBitShape::kUnitColumns + lane % 4 * 8;
  const uint4 codes = *reinterpret_cast<const uint4*>(m.data + unit * m.shape.unit_bytes() + lane * 16);
#pragma unroll
  for (uint32_t c = 0; c < 4; ++c) {
    const uint32_t column = first + c * 32, w = (&codes.x)[c];
    if (column >= m.shape.k) return;
    const float2 s =
        __half22float2(*reinterpret_cast<const __half2*>(m.data + m.shape.scale_offset(row, column)));
    uint4 out;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
      (&out.x)[i] = pack(s.x * static_cast<float>(w >> 4 * i & 15) + s.y,
                         s.x * static_cast<float>(w >> (16 + 4 * i) & 15) + s.y);
    *reinterpret_cast<uint4*>(to + size_t{row} * m.shape.k + column) = out;
  }
}

// A thread 16 bytes: codes, or scales of four rows. A column beyond k has scale and offset 0.
__global__ void random_kernel(const FourBitMatrix m, const uint32_t scale_pair, const uint64_t seed) {
  const size_t count = m.shape.bytes() / 16;
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < count;
       i += size_t{kRandomBlocks} * kThreads) {
    const uint32_t in_unit = static_cast<uint32_t>(i * 16 % m.shape.unit_bytes());
    uint4 value{};
    if (in_unit < FourBitShape::kCodeBytes) {
      const auto bits = philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0},
                                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
      value = {bits[0], bits[1], bits[2], bits[3]};
    } else {
      const uint32_t unit = static_cast<uint32_t>(i * 16 / m.shape.unit_bytes() % m.shape.units()),
                     group = (in_unit - FourBitShape::kCodeBytes) / (FourBitShape::kUnitRows * 4);
      if (unit * FourBitShape::kUnitColumns + group * m.shape.group < m.shape.k)
        value = {scale_pair, scale_pair, scale_pair, scale_pair};
    }
    reinterpret_cast<uint4*>(m.data)[i] = value;
  }
}

}  // namespace

cudaError_t widen(const Launch& how, const FourBitMatrix& m, bf16* to) {
  const size_t threads = size_t{m.shape.n} / FourBitShape::kUnitRows * m.shape.units() * kWarp;
  return launch(how, widen_kernel, dim3(static_cast<uint32_t>((threads + kThreads - 1) / kThreads)),
                dim3(kThreads), 0, m, to);
}

cudaError_t fill_random(const FourBitMatrix& m, uint64_t seed) {
  // Codes 0 to 15 have the variance (16^2 - 1) / 12.
  const __half scale = __float2half(1 / sqrtf(255.0f / 12 * static_cast<float>(m.shape.k))),
               offset = __float2half(-7.5f * __half2float(scale));
  const __half2 pair(scale, offset);
  return launch(Launch{.overlap = false}, random_kernel, dim3(kRandomBlocks), dim3(kThreads), 0, m,
                reinterpret_cast<const uint32_t&>(pair), seed);
}

}  // namespace ringmaster::gpu_worker::cuda
