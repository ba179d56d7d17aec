// Which device a test binary is about. The bodies in this folder run unchanged in the tests of every device:
// each of those (device_cpu, device_cuda) compiles them together with a definition of these functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "gpu-worker/device/device.h"

namespace ringmaster::gpu_worker {

Result<std::unique_ptr<Device>> make_device_under_test(const GpuWorkerConfig& config,
                                                       const std::string& model, shm::Doorbell& bell);

// How far log-probabilities of SmolLM2 may be from the float32 reference.
struct Tolerance {
  double mean_magnitude;  // of the errors
  double mean;            // of the errors with their signs
  double worst;
};
Tolerance tolerance_of_device_under_test();

}  // namespace ringmaster::gpu_worker
