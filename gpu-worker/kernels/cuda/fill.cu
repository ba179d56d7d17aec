#include "gpu-worker/kernels/cuda/fill.h"

#include "gpu-worker/model/philox.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 4096;

__global__ void uniform_kernel(bf16* to, const size_t count, const float limit, const uint64_t seed) {
  for (size_t i = (blockIdx.x * size_t{kThreads} + threadIdx.x) * 4; i < count;
       i += size_t{kBlocks} * kThreads * 4) {
    const auto bits = philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0},
                                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    for (size_t n = 0; n < 4 && i + n < count; ++n)
      to[i + n] = __float2bfloat16((static_cast<float>(bits[n]) * 0x1p-31f - 1) * limit);
  }
}

__global__ void constant_kernel(bf16* to, const size_t count, const float value) {
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < count; i += size_t{kBlocks} * kThreads)
    to[i] = __float2bfloat16(value);
}

}  // namespace

cudaError_t fill_uniform(bf16* to, size_t count, float limit, uint64_t seed) {
  return launch(Launch{.overlap = false}, uniform_kernel, dim3(kBlocks), dim3(kThreads), 0, to, count, limit,
                seed);
}

cudaError_t fill_constant(bf16* to, size_t count, float value) {
  return launch(Launch{.overlap = false}, constant_kernel, dim3(kBlocks), dim3(kThreads), 0, to, count,
                value);
}

}  // namespace ringmaster::gpu_worker::cuda
