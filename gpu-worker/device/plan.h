// `ringmaster plan`: the memory budget of a model, by the functions that count it at a device's start,
// without taking any of it. `ringmaster` runs this program for it, as processes share no code:
//   gpu-worker plan DEVICE MODEL_FILE CONTEXT BATCH MEMORY text|json
// CONTEXT 0: the model's; MEMORY in bytes, 0: an H200's (cuda), this host's (cpu). The budget goes to stdout.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/config.h"
#include "gpu-worker/device/common/budget.h"

namespace ringmaster::gpu_worker {

inline constexpr int kExitDoesNotFit = 5;  // as `ringmaster plan` returns it

// Of max_running sequences of context_length. Errors: of the device, for the model or the configuration.
Result<Budget> plan_device(const GpuWorkerConfig& config, const std::string& model_path);

std::string as_text(const Budget& budget, const GpuWorkerConfig& config);
std::string as_json(const Budget& budget, const GpuWorkerConfig& config);

// 0: it fits; 1, 2: as every process (base/process.h), kExitDoesNotFit. argv[1] is "plan".
int run_plan(int argc, const char* const* argv);

}  // namespace ringmaster::gpu_worker
