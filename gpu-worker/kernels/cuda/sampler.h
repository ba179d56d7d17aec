// Chooses the next token of each sampling row on the device: the same order of operations as
// gpu-worker/model/sampler.h and the same generator, so that the same logits and seed give the same token on
// every device. Probabilities are summed as whole numbers of 2^-40 of the likeliest token's, so a sum does
// not depend on its order and a choice not on how threads met.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/sampling.h"
#include "gpu-worker/kernels/cuda/launch.h"

namespace ringmaster::gpu_worker::cuda {

inline constexpr uint32_t kMaxSuppressed = 128;

// What a lane's sampler knows; device memory, [lanes]. The lists of a lane lie in tables of their own.
struct LaneState {
  float temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
  uint32_t top_k;
  uint32_t min_tokens;
  uint32_t num_bias, num_suppressed;
  uint32_t logprobs;   // 0: none; n + 1: of the chosen and the n best
  uint32_t penalises;  // counts are kept
  uint64_t seed;
};

struct LaneTables {
  LaneState* state = nullptr;      // [lanes]
  LogitBias* bias = nullptr;       // [lanes, kMaxLogitBias]
  uint32_t* suppressed = nullptr;  // [lanes, kMaxSuppressed]
  // [lanes, vocab]: 0: never seen; n + 1: seen, n times in the output. Sticks at its largest.
  uint16_t* seen = nullptr;
  uint32_t* last_id = nullptr;  // [lanes]
};

struct SampleRow {
  uint32_t lane = 0;
  uint32_t token_number = 0;
};

struct SampledToken {
  uint32_t id = 0;
  float logprob = 0;    // of the raw logits
  uint32_t failed = 0;  // logits not finite, or every id suppressed
  uint32_t num_top = 0;
  uint32_t top_id[kMaxTopLogprobs];
  float top_logprob[kMaxTopLogprobs];
};

// A lane begins: last_id = the last of context; if it penalises, counts are made from context, of which
// prompt_count ids are the prompt. context: [count], device memory. LaneState is there already.
cudaError_t open_lane(const Launch&, const LaneTables&, uint32_t lane, uint32_t vocab,
                      const uint32_t* context, uint32_t count, uint32_t prompt_count);

// logits: [count, width], of which the first vocab count; unchanged. adjusted: the same shape, scratch. rows:
// [count]; out: [count], device or pinned memory. A lane occurs at most once.
cudaError_t sample(const Launch&, const LaneTables&, const float* logits, float* adjusted, uint32_t vocab,
                   uint32_t width, const SampleRow* rows, uint32_t count, SampledToken* out);

}  // namespace ringmaster::gpu_worker::cuda
