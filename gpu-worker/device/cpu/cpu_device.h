// The cpu device: SIMD kernels behind the step interface. One executor thread runs the steps in order, helped
// by the team; both sleep when there is nothing to do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "gpu-worker/device/common/budget.h"
#include "gpu-worker/device/device.h"
#include "gpu-worker/kernels/kernels.h"

namespace ringmaster::gpu_worker {

Result<std::unique_ptr<Device>> make_cpu_device(const GpuWorkerConfig& config, const std::string& model_path,
                                                shm::Doorbell& bell);

// The same with a given table of kernels instead of the fastest one: for tests. REQUIRES: this processor runs
// it.
Result<std::unique_ptr<Device>> make_cpu_device(const GpuWorkerConfig& config, const std::string& model_path,
                                                shm::Doorbell& bell, const kernels::Table& table);

// What it would take of this host's memory for max_running sequences of context_length (device/plan.h).
Result<Budget> plan_cpu_device(const GpuWorkerConfig& config, const std::string& model_path);

}  // namespace ringmaster::gpu_worker
