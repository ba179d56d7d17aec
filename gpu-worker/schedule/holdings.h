// What the scheduler holds at a moment, counted from the sequences themselves, so that an audit can hold it
// against what the pool, the router and the tokenizer-workers say. Plain values; made by
// Scheduler::holdings().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "gpu-worker/kv/kv_cache.h"
#include "gpu-worker/schedule/sequence.h"

namespace ringmaster::gpu_worker {

struct SequenceHolding {
  Epoch epoch = 0;
  uint32_t owner = 0;
  SequenceState state = SequenceState::kWaiting;
  uint32_t blocks = 0;  // entries of its table
  bool lane = false;
};

struct Holdings {
  std::vector<SequenceHolding> sequences;  // by epoch, those that have ended with rows in flight included
  uint32_t lanes_taken = 0;                // by the list of free ones
  KvHoldings kv;
};

}  // namespace ringmaster::gpu_worker
