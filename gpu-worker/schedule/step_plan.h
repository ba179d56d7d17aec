// One step as data: what the scheduler (plain CPU code) asks a device to compute, and what comes back. The
// only thing that crosses the line between schedule/ and device/.
//
// A lane is a device-side place for one running sequence: sampler state, penalty counts and the id sampled
// last, which stays on the device as the input of the next step (kFromLane), so that step n+1 can be planned
// while n runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/sampling.h"
#include "base/status.h"

namespace ringmaster::gpu_worker {

using BlockId = uint32_t;
using Lane = uint32_t;

// In StepPlan::ids: the id that this row's lane sampled last.
inline constexpr TokenId kFromLane = 0xFFFFFFFF;

// Everything the sampler of a lane needs to know when a sequence takes the lane (first start, or again after
// preemption).
struct LaneOpen {
  Lane lane = 0;
  Epoch epoch = 0;
  Sampling sampling;
  std::vector<TokenId> suppressed;  // stop ids, not sampled while token number < min_tokens
  uint32_t min_tokens = 0;
  uint32_t logprobs = 0;         // 0: none; n + 1: chosen and n best
  std::vector<TokenId> context;  // prompt, then output so far: penalty counts start from these
  uint32_t prompt_count = 0;     // of `context`
};

// One sequence's share of a step.
struct StepRow {
  Lane lane = 0;
  uint32_t first_id = 0;        // into StepPlan::ids
  uint32_t num_tokens = 0;      // >= 1; decode rows have 1, prefill chunks more
  uint32_t first_position = 0;  // position of the first of them in the sequence
  uint32_t first_block = 0;     // into StepPlan::blocks: the sequence's block table
  uint32_t num_blocks = 0;      // covers positions [0, first_position + num_tokens)
  bool samples = false;         // sample after the row's last token
  uint32_t token_number = 0;    // of the output token to sample: the generator's counter
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<LaneOpen> opens;  // applied before the rows
  std::vector<StepRow> rows;
  std::vector<TokenId> ids;     // [sum of num_tokens]
  std::vector<BlockId> blocks;  // [sum of num_blocks]
};

struct TopToken {
  TokenId id = 0;
  float logprob = 0;
};

struct SampledRow {
  Lane lane = 0;
  TokenId id = 0;
  float logprob = 0;          // log-softmax of the raw logits at `id`
  std::vector<TopToken> top;  // LaneOpen::logprobs - 1 entries, best first
  bool failed = false;        // logits were not finite: the request ends alone, with an error
};

struct StepResult {
  uint64_t step = 0;
  std::vector<SampledRow> rows;  // of the rows with `samples`, in plan order
  std::optional<Error> error;    // the device is lost; the worker ends
};

}  // namespace ringmaster::gpu_worker
