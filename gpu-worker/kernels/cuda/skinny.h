// Matrix products of a few rows: y = x W^T for 1 to 16 rows, where the time is that of reading W once. Each
// multiprocessor takes strips of eight rows of W, which its copy engine brings in a few stages ahead,
// beginning before the kernel before this one has ended; eight warps share the columns of a strip. What
// follows the product is done in the same kernel:
//
//   project_qkv   rms norm of x; rotary embedding; q to a buffer, k and v into the KV blocks
//   add_product   residual += x W^T
//   gated_product rms norm of x; rows of W are (gate, up) alternately; y = act(gate) * up
//   logits        x W^T as float32
//
// W: [n, k] bf16, row-major, as it lies for cuBLAS too. n a multiple of 8, k a multiple of 32. Products in
// bf16, sums in float32. A row's result does not depend on the rows beside it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/cuda/launch.h"
#include "gpu-worker/kernels/cuda/tensors.h"

namespace ringmaster::gpu_worker::cuda {

constexpr uint32_t kSkinnyRows = 16;  // above, cuBLASLt is quicker (bench_cuda_decode)

struct Product {
  const bf16* weights = nullptr;  // [n, k]
  uint32_t n = 0, k = 0;
  const bf16* x = nullptr;  // [rows, k]
  uint32_t rows = 0;        // 1 to kSkinnyRows
  uint32_t row_stride = 0;  // of weights and x; 0: k

  __host__ __device__ size_t stride() const { return row_stride != 0 ? row_stride : k; }
};

// y_i = x_i / sqrt(mean(x^2) + epsilon) * weight_i (Zhang and Sennrich, "Root Mean Square Layer
// Normalization", 2019).
struct Norm {
  const bf16* weight = nullptr;  // [k]; the offset of Gemma's norms is in it
  float epsilon = 0;
};

// Whether the functions below take a product: its rows have to fit a multiprocessor's shared memory beside
// the stages of W. They return cudaErrorInvalidValue for what does not fit.
bool skinny_fits(const Product&);
bool add_product_fits(const Product&);  // takes longer rows, in parts

enum class Gate : uint8_t { kSilu, kGeluTanh };

// W: [(heads + 2 * kv_heads) * head_dim, hidden]: q, k, v. bias: [n] or null. q: [rows, heads * head_dim].
cudaError_t project_qkv(const Launch&, const Product&, const Norm&, const bf16* bias, const TokenView&,
                        const RopeView&, const KvView&, uint32_t layer, uint32_t heads, bf16* q);
// residual: [rows, n], added to in place.
cudaError_t add_product(const Launch&, const Product&, bf16* residual);
// y: [rows, n / 2].
cudaError_t gated_product(const Launch&, const Product&, const Norm&, Gate, bf16* y);
// y: [rows, n]. soft_cap: y = cap * tanh(y / cap) when not 0.
cudaError_t logits(const Launch&, const Product&, float soft_cap, float* y);

}  // namespace ringmaster::gpu_worker::cuda
