// The contract of `device: fake` in hash mode, shared by the device, the tests of clients and the load
// generator: token k of a request is a function of every id before it, prompt and output, in order. One lost,
// repeated or reordered id, or a KV block that holds another sequence, changes every token after it.
//
//   uint64_t h = kStart;  for (id : prompt) h = mix(h, id);
//   for (;;) { TokenId token = token_of(h, vocab_size, never);  h = mix(h, token); }
//
// `never` are the ids that the fake does not say by itself: silent_ids() of the model, or none without one.
// Not a hash for security or for storage. Pure functions; any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/gguf.h"
#include "base/ids.h"
#include "base/status.h"

namespace ringmaster::context_hash {

inline constexpr uint64_t kStart = 0x243F6A8885A308D3ull;  // pi: nothing up the sleeve

// The state after `id` (finaliser of splitmix64, Steele et al. 2014, over state and id).
constexpr uint64_t mix(uint64_t state, TokenId id) {
  uint64_t z = state + 0x9E3779B97F4A7C15ull * (uint64_t{id} + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// The fake's order of preference after `state`: every next() is another id, none of `never`.
// REQUIRES: `never` is sorted, without repeats, ids below vocab_size, and outlives the Ranking; next() is
// called at most vocab_size - never.size() times.
class Ranking {
 public:
  Ranking(uint64_t state, uint32_t vocab_size, std::span<const TokenId> never)
      : state_(state), vocab_size_(vocab_size), never_(never) {}
  TokenId next();

 private:
  uint64_t state_;
  uint32_t vocab_size_;
  std::span<const TokenId> never_;
  std::vector<TokenId> given_;
};

// The next token: the first of the Ranking.
TokenId token_of(uint64_t state, uint32_t vocab_size, std::span<const TokenId> never);

// What a client should receive for `prompt`: the next `count` tokens.
std::vector<TokenId> expected(std::span<const TokenId> prompt, uint32_t vocab_size,
                              std::span<const TokenId> never, uint32_t count);

// Ids of a model's vocabulary that stand for no text (control, unknown, unused) or end a turn; sorted. Saying
// one by chance would end a stream at a random place. Errors: kMalformed when the vocabulary's tables
// disagree.
Result<std::vector<TokenId>> silent_ids(const Gguf& gguf);

}  // namespace ringmaster::context_hash
