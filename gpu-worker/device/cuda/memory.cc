#include "gpu-worker/device/cuda/memory.h"

#include "gpu-worker/device/cuda/cuda_error.h"

namespace ringmaster::gpu_worker::cuda {

Result<Memory> Memory::create(Kind kind, size_t bytes, const std::string& what) {
  Memory memory;
  if (bytes == 0) return memory;
  void* data = nullptr;
  const cudaError_t code =
      kind == Kind::kDevice ? cudaMalloc(&data, bytes) : cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  const char* const place = kind == Kind::kDevice ? " of device memory" : " of pinned host memory";
  if (Status status = check(code, "taking " + std::to_string(bytes) + " bytes" + place + " for " + what);
      !status) {
    (void)cudaGetLastError();  // it is told; later calls must not report it again
    return status.error();
  }
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  memory.kind_ = kind;
  return memory;
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  if (kind_ == Kind::kDevice) {
    (void)cudaFree(data_);
  } else {
    (void)cudaFreeHost(data_);
  }
}

}  // namespace ringmaster::gpu_worker::cuda
