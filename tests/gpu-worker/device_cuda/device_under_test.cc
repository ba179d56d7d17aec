#include "tests/gpu-worker/device/device_under_test.h"

#include "gpu-worker/device/cuda/cuda_device.h"

namespace ringmaster::gpu_worker {

Result<std::unique_ptr<Device>> make_device_under_test(const GpuWorkerConfig& config,
                                                       const std::string& model, shm::Doorbell& bell) {
  return make_cuda_device(config, model, bell);
}

// Weights, activations and the residual stream rounded to bf16; the reference rounds nothing.
Tolerance tolerance_of_device_under_test() {
  return {.mean_magnitude = 0.08, .mean = 0.01, .worst = 1.0};
}

}  // namespace ringmaster::gpu_worker
