// The token tables of a GGUF file, checked: every claim that the encoder and decoder rely on holds
// afterwards. Plain data for the loader of the tokenizer; nobody else needs it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/gguf.h"
#include "base/ids.h"
#include "base/status.h"
#include "tokenizer-worker/text/bpe.h"

namespace ringmaster::tokenizer_worker {

enum class TokenKind : uint8_t {  // numbers of the format
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct Vocabulary {
  std::vector<std::string_view> texts;  // by id, as the file spells them; point into the Gguf
  std::vector<TokenKind> kinds;         // by id
  std::unordered_map<std::string_view, TokenId> ids;
  std::vector<Bpe::Merge> merges;  // in rank order
  std::array<TokenId, 256> byte_tokens;
  std::vector<TokenId> end_ids;  // ascending
  TokenId bos = kNoTokenId;
  TokenId eos = kNoTokenId;
  bool adds_bos = false;

  uint32_t size() const { return static_cast<uint32_t>(texts.size()); }
};

// Byte-level BPE only (`tokenizer.ggml.model` = gpt2). Errors: kUnsupported, kMalformed, or what the look-up
// said.
Result<Vocabulary> read_vocabulary(const Gguf& gguf);

}  // namespace ringmaster::tokenizer_worker
