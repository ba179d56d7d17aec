// Token ids to text, one token at a time: every piece handed out is valid UTF-8, and all pieces joined equal one full decode.
// Bytes wait until their character is whole; a stop string is matched on text across token borders with the shortest hold-back.
// One object a stream; one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer-worker/text/tokenizer.h"

namespace ringmaster::tokenizer_worker {

struct StreamRules {
  std::vector<std::string> stop;  // non-empty strings
  bool include_stop = false;      // keep the stop string in the text
  bool skip_special = true;       // control tokens leave no text
};

class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, StreamRules rules);

  // Takes the next output token; returns the text that became certain (possibly empty), valid until the next call.
  // After stopped() nothing more may be pushed.
  std::string_view push(TokenId id);
  // The end of the stream without a stop string: what was held back, an incomplete character as U+FFFD.
  std::string_view finish();

  // A stop string was completed by the last push(): which one, and how many tokens count (that one included).
  bool stopped() const { return stop_index_ >= 0; }
  const std::string& stop_string() const { return rules_.stop[static_cast<size_t>(stop_index_)]; }
  uint64_t text_bytes() const { return text_bytes_; }  // handed out so far

 private:
  const Tokenizer& tokenizer_;
  StreamRules rules_;
  std::string held_;   // whole characters that may begin a stop string
  std::string bytes_;  // of an incomplete character
  std::string out_;
  uint64_t text_bytes_ = 0;
  int stop_index_ = -1;
};

}  // namespace ringmaster::tokenizer_worker
