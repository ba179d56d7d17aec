// What happened to sequences, for the worker's loop to write into token rings. Appended to by Scheduler; the
// caller clears it and hands it in again, so that its vectors keep their memory.
//
// Order: all of `tokens`, then all of `endings`. That is the order of events too, because a sequence that has
// ended produces no more tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "gpu-worker/schedule/step_plan.h"

namespace ringmaster::gpu_worker {

// Same order as msg::FinishReason (schemas/common.fbs).
enum class EndReason : uint8_t { kStop = 0, kLength, kCancelled, kDeadline, kRefused, kError };

struct TokenEvent {
  Epoch epoch = 0;
  uint32_t owner = 0;
  uint32_t token_number = 0;  // 0 is the first output token of the request; no gaps, no repeats
  TokenId id = 0;             // a stop id is delivered and counted like any other
  float logprob = 0;
  std::vector<TopToken> top;
};

struct EndEvent {
  Epoch epoch = 0;
  uint32_t owner = 0;
  EndReason reason = EndReason::kStop;
  Code code = Code::kOk;
  std::string message;
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t output_tokens = 0;  // ids given at the start of a resumed stream included
  Nanos first_step_at = 0;     // these are 0 when it never came to that
  Nanos first_token_at = 0;
  Nanos last_token_at = 0;
};

struct Events {
  std::vector<TokenEvent> tokens;
  std::vector<EndEvent> endings;
  void clear() {
    tokens.clear();
    endings.clear();
  }
  bool empty() const { return tokens.empty() && endings.empty(); }
};

}  // namespace ringmaster::gpu_worker
