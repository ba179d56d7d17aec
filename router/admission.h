// The door for requests: everything about a Generate or Tokenize that is wrong is said here, once, with the
// field, the value and what is allowed. What passes is safe for the workers to take as it is, but for the
// length of a text in tokens, which the tokenizer-worker alone can know. Pure functions over a verified
// message; no state, no clock. Work is bounded by the message's size although one string may be referred to
// many times: sums are checked before anything is walked.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/sampling.h"
#include "base/status.h"
#include "schemas/codec.h"

namespace ringmaster::router {

inline constexpr size_t kMaxTenantBytes = 128;
inline constexpr size_t kMaxRoleBytes = 64;
inline constexpr size_t kMaxChatMessages = 16'384;
inline constexpr uint32_t kMaxResumeGraceMs = 10 * 60 * 1000;  // an abandoned stream holds blocks that long

// Of the workers that are ready; 0: none has told yet.
struct ModelLimits {
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;
};

// What can be said without a model: ranges, counts, sizes, UTF-8.
Status check_request(const msg::Generate& request);
// Ids within the vocabulary; what is known of the length within the context. A limit that is 0 is not
// checked.
Status check_against_model(const msg::Generate& request, const ModelLimits& limits);

// The prompt alone, as `Tokenize` carries it too.
Status check_prompt(msg::Prompt type, const void* prompt);

Sampling to_sampling(const msg::Sampling* wire);  // null: the defaults

}  // namespace ringmaster::router
