// What a Generate asks for, as checked values. This is the tokenizer-worker's door: the router checked the
// same things, but this process reads the bytes itself, so it trusts nobody. The prompt is not here
// (prompt_builder.h). Pure; any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/sampling.h"
#include "base/status.h"
#include "schemas/codec.h"
#include "tokenizer-worker/text/detokenizer.h"
#include "tokenizer-worker/text/tokenizer.h"

namespace ringmaster::tokenizer_worker {

struct RequestParams {
  Sampling sampling;
  std::optional<uint32_t> max_tokens;  // of output in all; nothing: up to the end of the context
  uint32_t min_tokens = 0;             // holds back stop ids; a stop string ends the stream even before
  StreamRules rules;
  std::vector<TokenId> stop_ids;         // the request's own and, unless it ignores them, the model's end ids
  std::optional<uint32_t> top_logprobs;  // nothing: no log-probabilities
  int32_t priority = 0;
  std::string tenant;
  std::vector<TokenId> received_ids;  // a resumed stream: output that the client already has
  uint64_t received_text_offset = 0;
};

// Every error names the field, the value and the allowed range; the codes are kInvalidArgument, kInvalidUtf8,
// kTooLarge and kUnsupported. The seed is the router's to choose and is not read here.
Result<RequestParams> read_params(const msg::Generate& request, const Tokenizer& tokenizer);

// How a request ends that stops with this code.
msg::FinishReason reason_for(Code code);

}  // namespace ringmaster::tokenizer_worker
