// A vocabulary that fits in a head: four control tokens, every byte, and a few longer pieces.
//   0 <s> (BOS)   1 <end> (ends a turn)   2 <user>   3 <bot>   10 + b: the byte b   kPiece + i: kPieces[i]
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer-worker/text/tokenizer.h"

namespace ringmaster::tokenizer_worker {

inline constexpr TokenId kBos = 0, kEnd = 1, kUser = 2, kBot = 3, kByte = 10, kPiece = kByte + 256;
inline constexpr std::array<std::string_view, 6> kPieces = {"Obs",   "ervation", ": x",
                                                            "hello", " world",   "er\nhi"};
inline constexpr uint32_t kTinyVocabulary = kPiece + kPieces.size();

inline TokenId byte_id(char byte) {
  return kByte + static_cast<unsigned char>(byte);
}
inline TokenId piece_id(std::string_view piece) {
  return kPiece + static_cast<TokenId>(std::find(kPieces.begin(), kPieces.end(), piece) - kPieces.begin());
}
// One id a byte.
inline std::vector<TokenId> byte_ids(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char byte : text) ids.push_back(byte_id(byte));
  return ids;
}

class TinyTokenizer final : public Tokenizer {
 public:
  enum class Bos { kAdded, kKnown, kNone };
  explicit TinyTokenizer(Bos bos = Bos::kAdded) : bos_(bos) {
    for (int b = 0; b < 256; ++b) byte_texts_.push_back(std::string(1, static_cast<char>(b)));
  }

  // The longest piece at each place, else a byte.
  void encode(std::string_view text, bool control, std::vector<TokenId>& ids) const override {
    while (!text.empty()) {
      TokenId best = byte_id(text[0]);
      for (TokenId id = kPiece; id < kTinyVocabulary; ++id)
        if (text.starts_with(bytes(id))) best = id;
      for (TokenId id = 0; control && id < kControls.size(); ++id)
        if (text.starts_with(kControls[id])) best = id;
      ids.push_back(best);
      text.remove_prefix(bytes(best).size());
    }
  }
  std::string_view bytes(TokenId id) const override {
    if (id < kControls.size()) return kControls[id];
    if (id >= kPiece) return kPieces[id - kPiece];
    return id < kByte ? std::string_view() : std::string_view(byte_texts_[id - kByte]);
  }
  bool is_control(TokenId id) const override { return id < kControls.size(); }
  uint32_t vocab_size() const override { return kTinyVocabulary; }
  const std::vector<TokenId>& end_ids() const override { return end_ids_; }
  bool adds_bos() const override { return bos_ == Bos::kAdded; }
  TokenId bos() const override { return bos_ == Bos::kNone ? kNoTokenId : kBos; }
  TokenId eos() const override { return kEnd; }

 private:
  static constexpr std::array<std::string_view, 4> kControls = {"<s>", "<end>", "<user>", "<bot>"};
  Bos bos_;
  std::vector<std::string> byte_texts_;
  std::vector<TokenId> end_ids_ = {kEnd};
};

}  // namespace ringmaster::tokenizer_worker
