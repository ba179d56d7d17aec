// What a device needs of memory, part by part: computed once at start from the model and the configuration
// and held against what there is, and without a device by `ringmaster plan`. Plain values; any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/config.h"
#include "base/status.h"

namespace ringmaster::gpu_worker {

struct Budget {
  std::string device;  // "cpu", "cuda"
  std::string model;   // what the file calls itself
  // Bytes of the device's memory.
  uint64_t weights = 0;
  uint64_t step_buffers = 0;  // activations, inputs of steps, lanes
  uint64_t kv = 0;            // all blocks
  uint64_t reserve = 0;       // what cannot be counted before: the driver, graphs, stacks
  uint64_t free = 0;          // of it
  uint64_t total = 0;         // 0: unknown
  // Bytes of the host's memory, beside the weights' file.
  uint64_t pinned = 0;

  uint64_t block_bytes = 0;
  uint32_t block_tokens = 0;
  uint32_t context_length = 0;  // of a sequence
  uint32_t lanes = 0;           // sequences at once

  uint64_t needed() const { return weights + step_buffers + kv + reserve; }
  uint64_t blocks_of_a_sequence() const { return (context_length + block_tokens - 1) / block_tokens; }
  // Sequences of context_length whose blocks would fit if all that is left were theirs.
  uint64_t sequences_that_fit() const;
};

// kResourceExhausted, in one line with the numbers, when it does not fit.
Status check_fits(const Budget& budget);

// kv_memory with which `max_running` sequences of context_length (0: `longest`) have all their blocks.
uint64_t kv_memory_of_all(const GpuWorkerConfig& config, uint64_t block_bytes, uint32_t longest);

// Rounded up: "12 MiB".
std::string mebibytes(uint64_t bytes);

}  // namespace ringmaster::gpu_worker
