// A byte-level vocabulary of every byte, a few merges, two control tokens and one that users may write.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#define TEXT_TEST_DATA ""  // of test_data.h; nothing is read from there
#include "tests/tokenizer-worker/text/test_data.h"
#include "tokenizer-worker/text/byte_alphabet.h"

namespace ringmaster::fuzz {

inline std::string letters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes)
    tokenizer_worker::test::append_utf8(text, tokenizer_worker::byte_to_letter(static_cast<uint8_t>(byte)));
  return text;
}

inline tokenizer_worker::test::GgufWriter small_vocabulary() {
  using tokenizer_worker::test::GgufWriter;
  GgufWriter::Texts tokens = {"<|endoftext|>", "<|im_end|>", "<tool>"}, merges;
  GgufWriter::Numbers kinds = {3, 3, 4};
  for (int b = 0; b < 256; ++b)
    tokens.push_back(letters(std::string(1, static_cast<char>(b)))), kinds.push_back(1);
  const std::pair<const char*, const char*> kMerges[] = {{"a", "b"},       {" ", "ab"},          {"ab", "ab"},
                                                         {"abab", "abab"}, {"\n", "\n"},         {" ", " "},
                                                         {"\xC3", "\xA9"}, {"\xF0\x9F", "\x98"}, {"'", "s"}};
  tokens.push_back(letters("\xF0\x9F")), kinds.push_back(1);
  merges.push_back(letters("\xF0") + " " + letters("\x9F"));
  for (const auto& [left, right] : kMerges) {
    merges.push_back(letters(left) + " " + letters(right));
    tokens.push_back(letters(std::string(left) + right)), kinds.push_back(1);
  }
  GgufWriter file;
  file.text("general.architecture", "llama")
      .text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", "smollm");
  file.texts("tokenizer.ggml.tokens", tokens).numbers("tokenizer.ggml.token_type", kinds);
  file.texts("tokenizer.ggml.merges", merges).number("tokenizer.ggml.eos_token_id", 1);
  return file;
}

}  // namespace ringmaster::fuzz
