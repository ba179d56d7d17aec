#include "tokenizer-worker/text/vocabulary.h"

#include <algorithm>
#include <optional>

#include "tokenizer-worker/text/byte_alphabet.h"

namespace ringmaster::tokenizer_worker {
namespace {

constexpr size_t kMaxTokenBytes = 4096;  // SmolLM2's longest has 162
constexpr size_t kMaxTokens = 1u << 24;  // Gemma has 2^18, the most so far

// Control tokens that end a turn or a text in the published models; a file's metadata names only one or two
// of them.
constexpr std::string_view kEndNames[] = {
    "</s>",    "<end_of_turn>", "<|end_of_text|>", "<|endoftext|>",
    "<|end|>", "<|eom_id|>",    "<|eot_id|>",      "<|im_end|>",
};

Error malformed(const Gguf& gguf, std::string what) {
  return {Code::kMalformed, gguf.path() + ": " + std::move(what)};
}

std::string quoted(std::string_view text) {
  constexpr size_t kShown = 60;
  return "'" + std::string(text.substr(0, kShown)) + (text.size() > kShown ? "...'" : "'");
}

Status read_tokens(const Gguf& gguf, Vocabulary& vocabulary) {
  auto texts = gguf.texts("tokenizer.ggml.tokens");
  if (!texts) return std::move(texts).error();
  auto kinds = gguf.integers("tokenizer.ggml.token_type");
  if (!kinds) return std::move(kinds).error();
  if (texts->empty() || texts->size() > kMaxTokens) {
    return malformed(gguf, "tokenizer.ggml.tokens has " + std::to_string(texts->size()) +
                               " entries; allowed are 1 to " + std::to_string(kMaxTokens));
  }
  if (kinds->size() != texts->size()) {
    return malformed(gguf, "tokenizer.ggml.token_type has " + std::to_string(kinds->size()) +
                               " entries, tokenizer.ggml.tokens " + std::to_string(texts->size()) +
                               "; they must agree");
  }
  vocabulary.texts.assign(texts->begin(), texts->end());
  vocabulary.kinds.reserve(kinds->size());
  vocabulary.ids.reserve(texts->size());
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.texts[id];
    const int64_t kind = (*kinds)[id];
    const std::string token = "token " + std::to_string(id);
    if (text.empty() || text.size() > kMaxTokenBytes) {
      return malformed(gguf, token + " has " + std::to_string(text.size()) + " bytes; allowed are 1 to " +
                                 std::to_string(kMaxTokenBytes));
    }
    if (kind < 1 || kind > 6) {
      return malformed(
          gguf, token + " " + quoted(text) + " has type " + std::to_string(kind) + "; allowed are 1 to 6");
    }
    vocabulary.kinds.push_back(static_cast<TokenKind>(kind));
    const auto [other, fresh] = vocabulary.ids.emplace(text, id);
    if (!fresh) {
      return malformed(gguf, "tokens " + std::to_string(other->second) + " and " + std::to_string(id) +
                                 " are both " + quoted(text));
    }
  }
  return ok_status();
}

// A merge is written "LEFT RIGHT"; neither holds a blank, since the byte alphabet has none.
Status read_merges(const Gguf& gguf, Vocabulary& vocabulary) {
  auto lines = gguf.texts("tokenizer.ggml.merges");
  if (!lines) return std::move(lines).error();
  std::unordered_map<std::string_view, size_t> seen;
  seen.reserve(lines->size());
  vocabulary.merges.reserve(lines->size());
  std::string whole;
  for (size_t rank = 0; rank < lines->size(); ++rank) {
    const std::string_view line = (*lines)[rank];
    const auto wrong = [&](const std::string& why) {
      return malformed(gguf, "merge " + std::to_string(rank) + " " + quoted(line) + " " + why);
    };
    const size_t blank = line.find(' ');
    if (blank == std::string_view::npos || blank == 0 || blank + 1 == line.size() ||
        line.find(' ', blank + 1) != std::string_view::npos) {
      return wrong("is not two tokens with one blank between them");
    }
    if (const auto [first, fresh] = seen.emplace(line, rank); !fresh) {
      return wrong("is merge " + std::to_string(first->second) + " again");
    }
    const std::string_view left = line.substr(0, blank);
    const std::string_view right = line.substr(blank + 1);
    whole.assign(left).append(right);
    TokenId ids[3];
    const std::string_view parts[3] = {left, right, whole};
    for (int i = 0; i < 3; ++i) {
      const auto found = vocabulary.ids.find(parts[i]);
      if (found == vocabulary.ids.end()) return wrong("needs " + quoted(parts[i]) + ", which is not a token");
      ids[i] = found->second;
    }
    vocabulary.merges.push_back({ids[0], ids[1], ids[2]});
  }
  return ok_status();
}

void find_byte_tokens(Vocabulary& vocabulary) {
  vocabulary.byte_tokens.fill(kNoTokenId);
  std::string bytes;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    bytes.clear();
    if (vocabulary.texts[id].size() <= 2 && vocabulary.kinds[id] == TokenKind::kNormal &&
        letters_to_bytes(vocabulary.texts[id], bytes) && bytes.size() == 1) {
      vocabulary.byte_tokens[static_cast<uint8_t>(bytes[0])] = id;
    }
  }
}

// The token id under `key`; kNoTokenId when the file has no such key.
Result<TokenId> read_id(const Gguf& gguf, std::string_view key, uint32_t vocab_size) {
  if (gguf.find(key) == nullptr) return kNoTokenId;
  auto id = gguf.integer(key);
  if (!id) return std::move(id).error();
  if (*id >= vocab_size) {
    return malformed(gguf, std::string(key) + " is " + std::to_string(*id) +
                               "; the vocabulary has ids 0 to " + std::to_string(vocab_size - 1));
  }
  return static_cast<TokenId>(*id);
}

Status read_special_ids(const Gguf& gguf, Vocabulary& vocabulary) {
  const struct {
    std::string_view key;
    TokenId* kept;
    bool ends;
  } wanted[] = {
      {"tokenizer.ggml.bos_token_id", &vocabulary.bos, false},
      {"tokenizer.ggml.eos_token_id", &vocabulary.eos, true},
      {"tokenizer.ggml.eot_token_id", nullptr, true},
      {"tokenizer.ggml.eom_token_id", nullptr, true},
      {"tokenizer.ggml.unknown_token_id", nullptr, false},
      {"tokenizer.ggml.padding_token_id", nullptr, false},
  };
  for (const auto& want : wanted) {
    auto id = read_id(gguf, want.key, vocabulary.size());
    if (!id) return std::move(id).error();
    if (want.kept != nullptr) *want.kept = *id;
    if (want.ends && *id != kNoTokenId) vocabulary.end_ids.push_back(*id);
  }
  if (vocabulary.eos == kNoTokenId) {
    return malformed(gguf, "tokenizer.ggml.eos_token_id is missing; without it no answer would ever end");
  }
  for (const std::string_view name : kEndNames) {
    const auto found = vocabulary.ids.find(name);
    if (found != vocabulary.ids.end() && vocabulary.kinds[found->second] == TokenKind::kControl) {
      vocabulary.end_ids.push_back(found->second);
    }
  }
  std::sort(vocabulary.end_ids.begin(), vocabulary.end_ids.end());
  vocabulary.end_ids.erase(std::unique(vocabulary.end_ids.begin(), vocabulary.end_ids.end()),
                           vocabulary.end_ids.end());

  if (const Gguf::Value* value = gguf.find("tokenizer.ggml.add_bos_token")) {
    const bool* adds = std::get_if<bool>(value);
    if (adds == nullptr) return malformed(gguf, "tokenizer.ggml.add_bos_token is not a boolean");
    vocabulary.adds_bos = *adds;
  }
  if (vocabulary.adds_bos && vocabulary.bos == kNoTokenId) {
    return malformed(gguf, "tokenizer.ggml.add_bos_token is set, but tokenizer.ggml.bos_token_id is missing");
  }
  return ok_status();
}

}  // namespace

Result<Vocabulary> read_vocabulary(const Gguf& gguf) {
  Vocabulary vocabulary;
  if (Status status = read_tokens(gguf, vocabulary); !status) return std::move(status).error();
  if (Status status = read_merges(gguf, vocabulary); !status) return std::move(status).error();
  if (Status status = read_special_ids(gguf, vocabulary); !status) return std::move(status).error();
  find_byte_tokens(vocabulary);
  if (std::all_of(vocabulary.byte_tokens.begin(), vocabulary.byte_tokens.end(),
                  [](TokenId id) { return id == kNoTokenId; })) {
    return malformed(gguf,
                     "tokenizer.ggml.tokens has no token for any byte; this is not a byte-level vocabulary");
  }
  return vocabulary;
}

}  // namespace ringmaster::tokenizer_worker
