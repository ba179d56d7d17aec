// How kernels are launched: on which stream, and whether the kernel may start beside the end of the one
// before it (programmatic dependent launch). Every launcher returns the error of its launch; nothing here
// synchronises.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

namespace ringmaster::gpu_worker::cuda {

struct Launch {
  cudaStream_t stream = nullptr;
  bool overlap =
      true;  // every kernel of this folder waits for its predecessor before it touches what that writes
  int multiprocessors = 0;
};

// shared_bytes: of dynamic shared memory, up to all that a block can have.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(const Launch& how, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   size_t shared_bytes, Arguments&&... arguments) {
  if (shared_bytes > 0)  // above 48 KB it has to be asked for
    if (cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(shared_bytes));
        e != cudaSuccess)
      return e;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = how.stream;
  config.attrs = &attribute;
  config.numAttrs = how.overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace ringmaster::gpu_worker::cuda
