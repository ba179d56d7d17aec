// What the cuda device puts where, counted without a GPU: sizes from model and configuration, places from a
// base. Only start.cc and the plan use it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "base/config.h"
#include "gpu-worker/device/common/budget.h"
#include "gpu-worker/device/cuda/decoder.h"
#include "gpu-worker/device/cuda/graphs.h"
#include "gpu-worker/device/device.h"

namespace ringmaster::gpu_worker::cuda {

// Of one chip.
struct StepPlaces {
  StepBuffers buffers;
  LaneTables lanes;
  uint32_t* context = nullptr;
  std::array<std::byte*, DecodeGraphs::kSets> inputs{};

  static StepPlaces place(const ModelDescription& description, const DeviceInfo& info,
                          const StepLimits& limits, Layout& layout);
};

struct Sizes {
  StepLimits limits;
  KvView kv;  // without its data
  // Of a step's inputs and results in pinned memory, and of all sets of both.
  uint64_t input_bytes = 0, result_bytes = 0;
  Budget budget;  // without `free` and `total`
};

// Sets what a configuration decides of `info`. Errors: kInvalidArgument, kResourceExhausted (not one block).
Result<Sizes> size_device(const GpuWorkerConfig& config, const ModelDescription& description,
                          uint64_t weight_bytes, int multiprocessors, DeviceInfo& info);

}  // namespace ringmaster::gpu_worker::cuda
