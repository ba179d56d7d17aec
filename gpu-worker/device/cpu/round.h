// A round: the tokens of a step that are computed together, and the pieces its attention is divided into.
// Built once from the plan, then the same for every layer. Plain data, tested by worked example.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpu-worker/schedule/step_plan.h"

namespace ringmaster::gpu_worker {

struct RoundToken {
  TokenId id = 0;
  uint32_t position = 0;
  uint32_t row = 0;  // of the plan
};

// Attention of neighbouring tokens of one sequence to one key-value head, over spans [first_span, last_span].
struct AttentionPiece {
  uint32_t row = 0;  // of the plan
  uint32_t kv_head = 0;
  uint32_t first_token = 0;  // of the round
  uint32_t tokens = 0;
  uint32_t first_span = 0;
  uint32_t last_span = 0;
  // Where the partial result of each span goes; kWhole: this piece covers every span and finishes the job.
  uint32_t part = kWhole;
  static constexpr uint32_t kWhole = 0xFFFFFFFF;
};

// Joins the parts of one token and head, in order of the spans.
struct AttentionMerge {
  uint32_t token = 0;
  uint32_t kv_head = 0;
  uint32_t part = 0;
  uint32_t spans = 0;
};

struct RoundSample {
  uint32_t token = 0;   // of the round
  uint32_t row = 0;     // of the plan
  uint32_t result = 0;  // among the plan's sampling rows
};

struct Round {
  std::vector<RoundToken> tokens;
  std::vector<AttentionPiece> pieces;
  std::vector<AttentionMerge> merges;
  std::vector<RoundSample> samples;
};

struct RoundLimits {
  uint32_t tokens = 0;        // of a round
  uint32_t query_tokens = 0;  // of a piece
  uint32_t parts = 0;
  uint32_t kv_heads = 0;
  uint32_t threads = 0;
};

// The rounds of a plan, in order. Ids that are kFromLane are left for the device to resolve.
std::vector<Round> make_rounds(const StepPlan& plan, const RoundLimits& limits);

}  // namespace ringmaster::gpu_worker
