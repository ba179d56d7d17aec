// Fills weights: at random, or with one value. At start only, on the default stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu-worker/kernels/cuda/launch.h"
#include "gpu-worker/kernels/cuda/tensors.h"

namespace ringmaster::gpu_worker::cuda {

// Uniform in [-limit, limit]; value i is a function of seed and i (Philox, model/philox.h).
cudaError_t fill_uniform(bf16* to, size_t count, float limit, uint64_t seed);
cudaError_t fill_constant(bf16* to, size_t count, float value);

}  // namespace ringmaster::gpu_worker::cuda
