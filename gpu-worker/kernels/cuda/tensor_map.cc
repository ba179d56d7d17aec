#include "gpu-worker/kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>

namespace ringmaster::gpu_worker::cuda {
namespace {

// Asked from the driver that is there, so that nothing links against it. Null: a driver without it.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                              cudaEnableDefault, &result);
    return code == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)
               : nullptr;
  }();
  return found;
}

}  // namespace

cudaError_t describe_rows(const void* data, uint64_t rows, uint64_t columns, uint32_t box_rows,
                          CUtensorMap& map) {
  const auto encode = encoder();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {columns, rows}, strides[] = {columns * 2};
  const cuuint32_t box[] = {64, box_rows}, steps[] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace ringmaster::gpu_worker::cuda
