// Stands for device/cuda in a build without the CUDA toolkit.
#include "gpu-worker/device/cuda/cuda_device.h"

namespace ringmaster::gpu_worker {

namespace {

Error absent() {
  return {Code::kUnsupported,
          "gpu-worker.device is 'cuda', which this build does not have: there was no CUDA toolkit when it "
          "was built (nvcc on the PATH or in /usr/local/cuda/bin)"};
}

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(const GpuWorkerConfig&, const std::string&, shm::Doorbell&) {
  return absent();
}

Result<Budget> plan_cuda_device(const GpuWorkerConfig&, const std::string&) {
  return absent();
}

}  // namespace ringmaster::gpu_worker
