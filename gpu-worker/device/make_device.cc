#include <string>

#include "gpu-worker/device/cpu/cpu_device.h"
#include "gpu-worker/device/cuda/cuda_device.h"
#include "gpu-worker/device/device.h"
#include "gpu-worker/device/fake/fake_device.h"

namespace ringmaster::gpu_worker {

Result<std::unique_ptr<Device>> make_device(const GpuWorkerConfig& config, const std::string& model_path,
                                            shm::Doorbell& bell) {
  if (config.device == "fake") return make_fake_device(config, model_path);
  if (config.device == "cpu") return make_cpu_device(config, model_path, bell);
  if (config.device == "cuda") return make_cuda_device(config, model_path, bell);
  return Error{Code::kUnsupported, "gpu-worker.device is '" + config.device + "'; allowed: cpu, cuda, fake"};
}

}  // namespace ringmaster::gpu_worker
