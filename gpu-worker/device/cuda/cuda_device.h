// The cuda device: steps enqueued on one stream and never waited for by the loop thread. A step's inputs are
// copied on a stream of their own while the step before runs; sampled ids stay on the device as the next
// step's input, and reach the host through pinned memory. Decode steps replay graphs, one for each batch size
// class. A watcher thread rings the doorbell when a step is done.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "gpu-worker/device/common/budget.h"
#include "gpu-worker/device/device.h"

namespace ringmaster::gpu_worker {

// Errors: kUnavailable: no GPU or a driver that is too old; kResourceExhausted: does not fit, with the
// numbers; both before weights are read.
Result<std::unique_ptr<Device>> make_cuda_device(const GpuWorkerConfig& config, const std::string& model_path,
                                                 shm::Doorbell& bell);

// What it would take of an H200's memory; needs no GPU (device/plan.h).
Result<Budget> plan_cuda_device(const GpuWorkerConfig& config, const std::string& model_path);

}  // namespace ringmaster::gpu_worker
