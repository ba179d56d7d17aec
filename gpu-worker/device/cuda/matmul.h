// Large matrix products, y = x W^T (+ y), by cuBLASLt: above the rows that kernels/cuda/skinny.h takes. The
// algorithm for a shape is what cuBLASLt thinks best, asked once and kept. One owner, the device's loop
// thread; work is enqueued on the stream given.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>

#include <map>
#include <tuple>

#include "base/status.h"
#include "gpu-worker/device/cuda/memory.h"
#include "gpu-worker/kernels/cuda/tensors.h"

namespace ringmaster::gpu_worker::cuda {

class Matmul {
 public:
  static Result<Matmul> create();
  Matmul(Matmul&& other) noexcept;
  Matmul& operator=(Matmul&&) = delete;
  ~Matmul();

  // y: [rows, n], x: [rows, k], weights: [n, k], all row-major. add: y is added to.
  Status run(cudaStream_t stream, bf16* y, const bf16* x, const bf16* weights, uint32_t rows, uint32_t n,
             uint32_t k, bool add);
  // The same with y in float32.
  Status run(cudaStream_t stream, float* y, const bf16* x, const bf16* weights, uint32_t rows, uint32_t n,
             uint32_t k);

 private:
  struct Plan;
  using Key = std::tuple<uint32_t, uint32_t, uint32_t, bool>;  // rows, n, k, float32

  Matmul() = default;
  Status run_as(cudaStream_t stream, void* y, cudaDataType_t y_type, const bf16* x, const bf16* weights,
                uint32_t rows, uint32_t n, uint32_t k, bool add);
  Result<Plan*> plan_for(const Key& key);

  cublasLtHandle_t handle_ = nullptr;
  Memory workspace_;
  std::map<Key, Plan> plans_;
};

}  // namespace ringmaster::gpu_worker::cuda
