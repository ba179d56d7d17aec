// The products of skinny.h with weights of four bits (four_bit_layout.h): the time is that of reading them
// once, at a quarter of the bytes. Codes become bf16 by two logical operations a pair (128 + code, exact),
// the tensor cores multiply them with x, and scale and offset are applied to the float32 sum of each group:
//
//   sum of x (scale code + offset) = scale sum of x (128 + code) + (offset - 128 scale) sum of x
//
// so that weights are never rounded. More rows than one launch takes are taken in passes, of which the first
// leaves the weights in L2 for the others. A row's result does not depend on the rows beside it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/cuda/four_bit_layout.h"
#include "gpu-worker/kernels/cuda/launch.h"
#include "gpu-worker/kernels/cuda/skinny.h"
#include "gpu-worker/kernels/cuda/tensors.h"

namespace ringmaster::gpu_worker::cuda {

struct FourBitMatrix {
  FourBitShape shape;
  std::byte* data = nullptr;  // [shape.bytes()]
};

struct FourBitProduct {
  FourBitMatrix weights;
  const bf16* x = nullptr;  // [rows, k]
  uint32_t rows = 0;
};

// Whether the functions below take a product; they return cudaErrorInvalidValue for what does not fit.
bool four_bit_fits(const FourBitProduct&);
bool add_four_bit_fits(const FourBitProduct&);  // takes longer rows, in parts

cudaError_t project_qkv(const Launch&, const FourBitProduct&, const Norm&, const bf16* bias, const TokenView&,
                        const RopeView&, const KvView&, uint32_t layer, uint32_t heads, bf16* q);
cudaError_t add_product(const Launch&, const FourBitProduct&, bf16* residual);
cudaError_t gated_product(const Launch&, const FourBitProduct&, const Norm&, Gate, bf16* y);
cudaError_t logits(const Launch&, const FourBitProduct&, float soft_cap, float* y);

// For products of many rows: the weights as [n, k] bf16, rounded.
cudaError_t widen(const Launch&, const FourBitMatrix&, bf16* to);

// Codes drawn uniformly, a scale with which a weight has the variance 1 / k, the offset -7.5 scales. At start
// only, on the default stream.
cudaError_t fill_random(const FourBitMatrix&, uint64_t seed);

}  // namespace ringmaster::gpu_worker::cuda
