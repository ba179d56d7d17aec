// CUDA's error codes as our errors. The name of the call is part of the message; memory has a code of its
// own, since its remedy is another.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/status.h"

namespace ringmaster::gpu_worker::cuda {

inline Status check(cudaError_t code, const std::string& what) {
  if (code == cudaSuccess) return ok_status();
  const Code kind = code == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kInternal;
  return Error{kind, what + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")"};
}

}  // namespace ringmaster::gpu_worker::cuda
