#include "base/context_hash.h"

#include <algorithm>
#include <string>

namespace ringmaster::context_hash {
namespace {

// Draws before falling back to counting upwards: a vocabulary that is nearly all forbidden still ends.
constexpr int kDraws = 64;

bool contains(std::span<const TokenId> sorted, TokenId id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

// Uniform in [0, n) from the high bits (Lemire 2019, without the rejection step: a bias of n / 2^32 does no
// harm here).
TokenId reduce(uint64_t state, uint32_t n) {
  return static_cast<TokenId>(((state >> 32) * n) >> 32);
}

}  // namespace

TokenId Ranking::next() {
  const auto usable = [&](TokenId id) {
    return !contains(never_, id) && std::find(given_.begin(), given_.end(), id) == given_.end();
  };
  TokenId id = reduce(state_, vocab_size_);
  for (int draw = 0; draw < kDraws && !usable(id); ++draw) {
    state_ = mix(state_, id);
    id = reduce(state_, vocab_size_);
  }
  while (!usable(id)) id = id + 1 == vocab_size_ ? 0 : id + 1;
  given_.push_back(id);
  state_ = mix(state_, id);
  return id;
}

TokenId token_of(uint64_t state, uint32_t vocab_size, std::span<const TokenId> never) {
  return Ranking(state, vocab_size, never).next();
}

std::vector<TokenId> expected(std::span<const TokenId> prompt, uint32_t vocab_size,
                              std::span<const TokenId> never, uint32_t count) {
  uint64_t state = kStart;
  for (const TokenId id : prompt) state = mix(state, id);
  std::vector<TokenId> tokens;
  tokens.reserve(count);
  while (tokens.size() < count) {
    tokens.push_back(token_of(state, vocab_size, never));
    state = mix(state, tokens.back());
  }
  return tokens;
}

Result<std::vector<TokenId>> silent_ids(const Gguf& gguf) {
  // Token types of the format: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
  constexpr int64_t kUnknown = 2, kControl = 3, kUnused = 5;
  auto tokens = gguf.texts("tokenizer.ggml.tokens");
  if (!tokens) return std::move(tokens).error();
  auto types = gguf.integers("tokenizer.ggml.token_type");
  if (!types) return std::move(types).error();
  if (types->size() != tokens->size())
    return Error{Code::kMalformed, gguf.path() + ": tokenizer.ggml.token_type has " +
                                       std::to_string(types->size()) + " entries, tokenizer.ggml.tokens " +
                                       std::to_string(tokens->size()) + "; they must be equal"};
  std::vector<TokenId> ids;
  for (size_t id = 0; id < types->size(); ++id) {
    const int64_t type = (*types)[id];
    if (type == kUnknown || type == kControl || type == kUnused) ids.push_back(static_cast<TokenId>(id));
  }
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (gguf.find(key) == nullptr) continue;
    auto id = gguf.integer(key);
    if (!id) return std::move(id).error();
    if (*id >= tokens->size())
      return Error{Code::kMalformed, gguf.path() + ": " + key + " is " + std::to_string(*id) +
                                         "; allowed: below the vocabulary's " +
                                         std::to_string(tokens->size())};
    ids.push_back(static_cast<TokenId>(*id));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace ringmaster::context_hash
