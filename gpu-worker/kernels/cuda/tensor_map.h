// Descriptions of matrices for the copy engine (CUDA driver API, "Tensor Map Object Management"): boxes of
// rows of 64 bf16 that land in shared memory with the 128-byte swizzle. Made on the host, passed to kernels
// by value; any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace ringmaster::gpu_worker::cuda {

// data: [rows, columns] bf16 in device memory, 16-byte aligned, columns a multiple of 8. box_rows: 1 to 256.
// Rows beyond the last read as zero. Error: cudaErrorInvalidValue.
cudaError_t describe_rows(const void* data, uint64_t rows, uint64_t columns, uint32_t box_rows,
                          CUtensorMap& map);

}  // namespace ringmaster::gpu_worker::cuda
