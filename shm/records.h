// What travels in the three rings of a slot. The payload of a record is the struct named here, followed by
// its arrays in the order listed. A reader treats every count as hostile: it checks it against the record's
// size.
//
//   command ring  tokenizer-worker -> gpu-worker   Start Grant Cancel StopAt Rebind
//   prompt ring   tokenizer-worker -> gpu-worker   Prompt (one for each Start, written before it, same order)
//   token ring    gpu-worker -> tokenizer-worker   Tokens Ended
//
// A request is named by its epoch everywhere here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ringmaster::shm {

enum class RecordType : uint32_t {
  kStart = 1,
  kGrant,
  kCancel,
  kStopAt,
  kRebind,
  kPrompt = 16,
  kTokens = 32,
  kEnded,
};

// Ids of a prompt: `count` x uint32_t follow. Behind the first `prompt_count` come output ids that the client
// already has (a resumed stream); they are context, not prompt, for penalties and usage.
struct PromptRecord {
  uint64_t epoch;
  uint32_t count;
  uint32_t prompt_count;
};
static_assert(sizeof(PromptRecord) == 16);

// Start a request whose ids are the next record of the prompt ring (same epoch, else the request fails).
// Followed by: stop_id_count x uint32_t, bias_count x {uint32_t id, float bias}.
struct StartRecord {
  uint64_t epoch;
  uint64_t seed;
  uint64_t
      cache_salt[2];    // tenant, adapter and rope variant, hashed: blocks are shared only under equal salt
  int64_t deadline;     // CLOCK_MONOTONIC ns; 0: none
  uint32_t max_tokens;  // output tokens in all, those already received included; 0: up to the context's end
  uint32_t min_tokens;  // stop ids are not sampled before this many output tokens
  uint32_t granted;     // output tokens it may produce before a Grant raises the limit
  int32_t priority;     // higher first
  float temperature, top_p, min_p;
  uint32_t top_k;
  float repetition_penalty, frequency_penalty, presence_penalty;
  uint32_t logprobs;  // 0: none; n + 1: chosen and n best
  uint32_t stop_id_count;
  uint32_t bias_count;
};
static_assert(sizeof(StartRecord) == 96);

struct GrantRecord {
  uint64_t epoch;
  uint32_t granted;  // new limit, in output tokens from the start; never shrinks
  uint32_t pad;
};

struct CancelRecord {
  uint64_t epoch;
};

// The stream ends before output token `token_count`: a stop string was found there. The gpu-worker answers
// with Ended(stop); tokens past it are dropped by the tokenizer-worker and not billed.
struct StopAtRecord {
  uint64_t epoch;
  uint32_t token_count;
  uint32_t pad;
};

// The request of a dead tokenizer-worker now belongs to the writer of this record: replay from `next_token`.
struct RebindRecord {
  uint64_t old_epoch;
  uint64_t new_epoch;
  uint32_t next_token;
  uint32_t granted;
};

// One step's tokens for this tokenizer-worker: `count` TokenRow follow, then for each row in order
// row.top_count x {uint32_t id, float logprob}.
struct TokensRecord {
  uint64_t step;  // of the device: for a person who looks at a ring, no reader needs it
  uint32_t count;
  uint32_t pad;
};
struct TokenRow {
  uint64_t epoch;
  uint32_t token_number;  // 0 is the first output token of the request
  uint32_t id;
  float logprob;
  uint32_t top_count;
};
static_assert(sizeof(TokenRow) == 24);

// The last record of an epoch. `message_size` bytes of UTF-8 follow. Epoch 0 names no request: the gpu-worker
// read something impossible and reads nothing more from this tokenizer-worker, whose requests have ended.
struct EndedRecord {
  uint64_t epoch;
  uint8_t reason;  // msg::FinishReason
  uint8_t code;    // ringmaster::Code
  uint16_t pad;
  uint32_t message_size;
  uint32_t prompt_tokens, cached_tokens, output_tokens;
  uint32_t pad2;
  int64_t first_step_at, first_token_at, last_token_at;  // CLOCK_MONOTONIC ns; 0: never
};
static_assert(sizeof(EndedRecord) == 56);

}  // namespace ringmaster::shm
