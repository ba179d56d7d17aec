#include "tokenizer-worker/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "tokenizer-worker/text/added_tokens.h"
#include "tokenizer-worker/text/bpe.h"
#include "tokenizer-worker/text/byte_alphabet.h"
#include "tokenizer-worker/text/pretokenizer.h"
#include "tokenizer-worker/text/vocabulary.h"

namespace ringmaster::tokenizer_worker {
namespace {

// The bytes of every token, end to end. Ordinary tokens are spelled in the byte alphabet; one that is not
// (and every control and user-defined token) stands for its own text, as in the reference decoder.
struct TokenBytes {
  std::string all;
  std::vector<size_t> ends;  // by id

  explicit TokenBytes(const Vocabulary& vocabulary) {
    ends.reserve(vocabulary.size());
    for (TokenId id = 0; id < vocabulary.size(); ++id) {
      const std::string_view text = vocabulary.texts[id];
      const TokenKind kind = vocabulary.kinds[id];
      const bool literal = kind == TokenKind::kControl || kind == TokenKind::kUserDefined;
      if (literal || !letters_to_bytes(text, all)) all.append(text);
      ends.push_back(all.size());
    }
  }
  std::string_view of(TokenId id) const {
    const size_t begin = id == 0 ? 0 : ends[id - 1];
    return {all.data() + begin, ends[id] - begin};
  }
};

// Tokens found by their spelling: user-defined ones in every text, control ones only where the caller allows
// it.
AddedTokens spelled_tokens(const Vocabulary& vocabulary, bool with_control) {
  std::vector<std::pair<std::string_view, TokenId>> tokens;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const TokenKind kind = vocabulary.kinds[id];
    const bool control = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    if (kind == TokenKind::kUserDefined || (with_control && control))
      tokens.emplace_back(vocabulary.texts[id], id);
  }
  return AddedTokens(std::move(tokens));
}

class ByteLevelTokenizer final : public Tokenizer {
 public:
  ByteLevelTokenizer(const Vocabulary& vocabulary, const PreTokenizer& pretokenizer)
      : pretokenizer_(pretokenizer),
        token_bytes_(vocabulary),
        bpe_(vocabulary.merges, vocabulary.byte_tokens),
        user_defined_(spelled_tokens(vocabulary, false)),
        with_control_(spelled_tokens(vocabulary, true)),
        end_ids_(vocabulary.end_ids),
        bos_(vocabulary.bos),
        eos_(vocabulary.eos),
        adds_bos_(vocabulary.adds_bos) {
    control_.reserve(vocabulary.size());
    for (TokenId id = 0; id < vocabulary.size(); ++id) {
      const TokenKind kind = vocabulary.kinds[id];
      control_.push_back(kind == TokenKind::kControl || kind == TokenKind::kUnknown);
      if (kind == TokenKind::kNormal) bpe_.add_word(token_bytes_.of(id), id);
    }
  }

  void encode(std::string_view text, bool control, std::vector<TokenId>& ids) const override {
    const AddedTokens& spelled = control ? with_control_ : user_defined_;
    Bpe::Scratch scratch;
    size_t at = 0;
    while (at < text.size()) {
      const AddedTokens::Match match = spelled.find(text, at);
      encode_plain(text.substr(at, match.at - at), scratch, ids);
      if (match.size > 0) ids.push_back(match.id);
      at = match.at + match.size;
    }
  }

  std::string_view bytes(TokenId id) const override { return token_bytes_.of(id); }
  bool is_control(TokenId id) const override { return control_[id]; }
  uint32_t vocab_size() const override { return static_cast<uint32_t>(token_bytes_.ends.size()); }
  const std::vector<TokenId>& end_ids() const override { return end_ids_; }
  bool adds_bos() const override { return adds_bos_; }
  TokenId bos() const override { return bos_; }
  TokenId eos() const override { return eos_; }

 private:
  void encode_plain(std::string_view text, Bpe::Scratch& scratch, std::vector<TokenId>& ids) const {
    while (!text.empty()) {
      const size_t size = pretokenizer_.next(text);
      bpe_.encode(text.substr(0, size), scratch, ids);
      text.remove_prefix(size);
    }
  }

  const PreTokenizer& pretokenizer_;  // static
  const TokenBytes token_bytes_;      // bpe_ points into it
  Bpe bpe_;                           // constant once constructed
  const AddedTokens user_defined_;
  const AddedTokens with_control_;
  std::vector<bool> control_;
  const std::vector<TokenId> end_ids_;
  const TokenId bos_;
  const TokenId eos_;
  const bool adds_bos_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const Gguf& gguf) {
  auto model = gguf.text("tokenizer.ggml.model");
  if (!model) return std::move(model).error();
  if (*model != "gpt2") {
    return Error{Code::kUnsupported, gguf.path() + ": tokenizer.ggml.model is '" + std::string(*model) +
                                         "'; implemented is 'gpt2' (byte-level BPE)"};
  }
  if (gguf.find("tokenizer.ggml.pre") == nullptr) {
    return Error{
        Code::kUnsupported,
        gguf.path() +
            ": tokenizer.ggml.pre is missing, so how text is cut before merging is unknown and any guess "
            "would "
            "give wrong token ids silently; convert the model again with a converter that writes it"};
  }
  auto pre = gguf.text("tokenizer.ggml.pre");
  if (!pre) return std::move(pre).error();
  const PreTokenizer* pretokenizer = PreTokenizer::named(*pre);
  if (pretokenizer == nullptr) {
    return Error{Code::kUnsupported, gguf.path() + ": tokenizer.ggml.pre is '" + std::string(*pre) +
                                         "'; implemented are " + PreTokenizer::known_names()};
  }
  auto vocabulary = read_vocabulary(gguf);
  if (!vocabulary) return std::move(vocabulary).error();
  return std::unique_ptr<Tokenizer>(std::make_unique<ByteLevelTokenizer>(*vocabulary, *pretokenizer));
}

}  // namespace ringmaster::tokenizer_worker
