// CUDA's error codes as our errors: the name of the call is part of the message; kResourceExhausted: memory,
// whose remedy is another; kWorkerLost: everything else, as a CUDA context that had an error is of no use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/status.h"

namespace ringmaster::gpu_worker::cuda {

inline Status check(cudaError_t code, const std::string& what) {
  if (code == cudaSuccess) return ok_status();
  const Code kind = code == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kWorkerLost;
  return Error{kind, what + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")"};
}

}  // namespace ringmaster::gpu_worker::cuda
