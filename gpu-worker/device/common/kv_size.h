// How many blocks `gpu-worker.kv_memory` holds, and the one context limit that follows: what was asked for or
// else what the model allows, and what the blocks can hold. The same rule on every device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/config.h"
#include "gpu-worker/device/device.h"

namespace ringmaster::gpu_worker {

// Sets num_blocks, block_tokens, kv_bytes and context_length of `info`. longest: the model's context. Errors:
// kInvalidArgument: a context beyond `longest`; kResourceExhausted: not one block fits.
Status size_kv(const GpuWorkerConfig& config, uint64_t block_bytes, uint32_t longest, DeviceInfo& info);

}  // namespace ringmaster::gpu_worker
