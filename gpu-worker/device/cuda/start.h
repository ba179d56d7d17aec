// From a configuration to everything a running cuda device consists of: the GPU checked, memory counted and
// taken, weights resident. All refusals come before weights are read, each one line with the numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <string>

#include "base/config.h"
#include "gpu-worker/device/cuda/budget.h"
#include "gpu-worker/device/device.h"

namespace ringmaster::gpu_worker::cuda {

struct Started {
  ModelDescription description;
  DeviceInfo info;
  int device = 0;
  int multiprocessors = 0;
  StepLimits limits;
  Weights weights;
  StepBuffers buffers;
  KvView kv;
  LaneTables lanes;
  uint32_t* context = nullptr;  // [context_length], device: ids of a lane that is being opened
  std::array<std::byte*, DecodeGraphs::kSets> pinned_inputs{}, device_inputs{};
  std::array<SampledToken*, DecodeGraphs::kSets> results{};  // [rows], pinned
  std::unique_ptr<Matmul> matmul;
  Memory weight_memory, step_memory, kv_memory, pinned_memory;
};

// The budget of max_running sequences of context_length on an H200, without one; config.kv_memory is not
// looked at.
Result<Budget> plan(GpuWorkerConfig config, const std::string& model_path);

Result<Started> start(const GpuWorkerConfig& config, const std::string& model_path);

}  // namespace ringmaster::gpu_worker::cuda
