// Cuts text into the pieces that BPE merges never cross. A hand-written scanner with one table entry a
// scheme, equal to the published regular expressions over the frozen Unicode classes; not a
// regular-expression engine. Immutable value; any thread. `next` is linear in the piece it returns (one
// character more at most).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ringmaster::tokenizer_worker {

class PreTokenizer {
 public:
  // By `tokenizer.ggml.pre`; nullptr when it is not implemented. The result is static.
  static const PreTokenizer* named(std::string_view name);
  static std::string known_names();  // "gpt-2, smollm": for messages

  // Bytes of the first piece of `text`. REQUIRES: `text` is not empty. Invalid UTF-8 is cut somehow, never
  // read past.
  size_t next(std::string_view text) const;

  constexpr PreTokenizer(std::string_view name, bool digits_alone)
      : name_(name), digits_alone_(digits_alone) {}

 private:
  enum class Class : unsigned char { kOther, kLetter, kNumber, kSpace };
  struct Step {
    Class cls;
    unsigned char size;
  };

  Step step(std::string_view text, size_t at) const;
  size_t run_end(std::string_view text, size_t at, Class cls) const;
  size_t space_piece(std::string_view text) const;

  std::string_view name_;
  // Every digit is a piece and ends the stretch that GPT-2's pattern sees, so `\s+(?!\S)` takes all blanks
  // before it.
  bool digits_alone_;

  static const PreTokenizer kSchemes[];
};

}  // namespace ringmaster::tokenizer_worker
