// Stands for device/cuda in a build without the CUDA toolkit.
#include "gpu-worker/device/cuda/cuda_device.h"

namespace ringmaster::gpu_worker {

Result<std::unique_ptr<Device>> make_cuda_device(const GpuWorkerConfig&, const std::string&, shm::Doorbell&) {
  return Error{Code::kUnsupported,
               "gpu-worker.device is 'cuda', which this build does not have: there was no CUDA toolkit when it "
               "was built (nvcc on the PATH or in /usr/local/cuda/bin)"};
}

}  // namespace ringmaster::gpu_worker
