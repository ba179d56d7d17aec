// Matrix products of some rows: y = x W^T for 1 to 64 rows, where the time is still that of reading W once,
// but a multiprocessor's instructions can no longer keep up with it (kernels/cuda/skinny.h is for fewer).
// Each multiprocessor takes an equal share of the rows of W, all at once, and goes through their columns; x
// comes along from the cache. Both meet in the asynchronous matrix cores (wgmma), fed by the copy engine,
// which begins with W before the kernel before this one has ended.
//
// The same products as in skinny.h, but x is normed already. W: [n, k] bf16, row-major. Products in bf16,
// sums in float32, in an order of the columns that is always the same: a row's result does not depend on the
// rows beside it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/cuda/skinny.h"

namespace ringmaster::gpu_worker::cuda {

constexpr uint32_t kWideRows = 64;

// Whether the functions below take a product: k has to be a multiple of 256, and n one of the shares that
// there are kernels for, so that nearly all of the device's multiprocessors have one each. They return
// cudaErrorInvalidValue for what does not fit.
bool wide_fits(const Product&, int multiprocessors);

cudaError_t wide_project_qkv(const Launch&, const Product&, const bf16* bias, const TokenView&,
                             const RopeView&, const KvView&, uint32_t layer, uint32_t heads, bf16* q);
cudaError_t wide_add_product(const Launch&, const Product&, bf16* residual);
cudaError_t wide_gated_product(const Launch&, const Product&, Gate, bf16* y);

}  // namespace ringmaster::gpu_worker::cuda
