// Text to token ids and back for one vocabulary. Immutable after load; any thread may encode (the encode
// pool does). Byte-level BPE (GPT-2 alphabet) from GGUF metadata; the pre-tokenizer is chosen by name and
// one that is not implemented is refused by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/gguf.h"
#include "base/ids.h"
#include "base/status.h"

namespace ringmaster::tokenizer_worker {

// No token: an id that is never in a vocabulary.
inline constexpr TokenId kNoTokenId = ~TokenId{0};

// A stretch of a prompt. Text that users wrote never becomes a control token; the template's own text may.
struct TextSpan {
  std::string_view text;
  bool control = false;  // control tokens spelled in it are recognised
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text` to `ids`. With `control`, control tokens spelled in the text are recognised.
  // REQUIRES: `text` is valid UTF-8 (checked at the door).
  virtual void encode(std::string_view text, bool control, std::vector<TokenId>& ids) const = 0;
  // The bytes that `id` stands for, which need not be whole characters. `id` < vocab_size().
  virtual std::string_view bytes(TokenId id) const = 0;
  virtual bool is_control(TokenId id) const = 0;

  virtual uint32_t vocab_size() const = 0;
  virtual const std::vector<TokenId>& end_ids() const = 0;  // end of text and end of turn, ascending
  virtual bool adds_bos() const = 0;
  virtual TokenId bos() const = 0;  // kNoTokenId when the model has none; then adds_bos() is false
  virtual TokenId eos() const = 0;
};

// Everything is checked here: unknown kinds of tokenizer are refused by name, a vocabulary that contradicts
// itself is malformed, and a file without `tokenizer.ggml.pre` is refused, since guessing it gives wrong ids
// without any sign. The tokenizer keeps nothing of `gguf`.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const Gguf& gguf);

}  // namespace ringmaster::tokenizer_worker
