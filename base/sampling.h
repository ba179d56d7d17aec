// How the next token of a request is chosen. Plain values: they travel in `Generate` (FlatBuffers) and in the
// start command (shm/records.h), and reach the sampler unchanged.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace ringmaster {

struct LogitBias {
  TokenId id = 0;
  float bias = 0;
};

inline constexpr uint32_t kMaxTopLogprobs = 20;
inline constexpr uint32_t kMaxLogitBias = 1024;
inline constexpr uint32_t kMaxStopIds = 64;
inline constexpr uint32_t kMaxStopStrings = 16;
inline constexpr uint32_t kMaxStopStringBytes = 1024;

struct Sampling {
  float temperature = 0;         // 0 = greedy; values below 1e-5 mean greedy too
  uint32_t top_k = 0;            // 0 = off
  float top_p = 1;               // (0, 1]
  float min_p = 0;               // [0, 1]
  float repetition_penalty = 1;  // > 0, over prompt and output (CTRL paper, as in Hugging Face)
  float frequency_penalty = 0;   // [-2, 2], over output (OpenAI)
  float presence_penalty = 0;    // [-2, 2], over output (OpenAI)
  uint64_t seed = 0;             // the router draws one when the client gives none
  std::vector<LogitBias> logit_bias;
};

// Checks every range above except ids against a vocabulary; the message names the field, value and range.
Status check(const Sampling& sampling);

}  // namespace ringmaster
