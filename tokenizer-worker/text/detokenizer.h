// Token ids to text, one token at a time: every piece handed out is valid UTF-8, and all pieces joined
// equal one full decode. Bytes wait until their character is whole; a stop string is matched on text
// across token borders with the shortest hold-back. Bytes that no further token can make a character
// become U+FFFD, as many as Python's decode(errors='replace') writes. One object a stream; one thread. A
// token costs O(its bytes x stop strings), however long the stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer-worker/text/stop_matcher.h"
#include "tokenizer-worker/text/tokenizer.h"

namespace ringmaster::tokenizer_worker {

struct StreamRules {
  std::vector<std::string> stop;  // non-empty strings of valid UTF-8 (checked at the door)
  bool include_stop = false;      // keep the stop string in the text
  bool skip_special = true;       // control tokens leave no text
};

class Detokenizer {
 public:
  // `tokenizer` must outlive this object.
  Detokenizer(const Tokenizer& tokenizer, StreamRules rules);

  // Takes the next output token; returns the text that became certain (possibly empty), valid until the next
  // call. After stopped() nothing more may be pushed. REQUIRES: id < vocab_size().
  std::string_view push(TokenId id);
  // The end of the stream without a stop string: what was held back, an incomplete character as U+FFFD. That
  // mark may itself complete a stop string, so stopped() can become true here too. REQUIRES: !stopped(),
  // called once.
  std::string_view finish();

  // A stop string was completed by the last call: which one. Of several, the one completed first; of those
  // completed by the same byte, the longest.
  bool stopped() const { return matcher_.matched(); }
  const std::string& stop_string() const {
    return rules_.stop[static_cast<size_t>(matcher_.matched_index())];
  }
  uint64_t tokens() const {
    return tokens_;
  }  // pushed so far; when stopped, the one that completed the stop is the last
  uint64_t text_bytes() const { return text_bytes_; }  // handed out so far

 private:
  std::string_view release(std::string_view text);

  const Tokenizer& tokenizer_;
  StreamRules rules_;
  StopMatcher matcher_;
  std::string held_;   // whole characters that may begin a stop string; no longer than the longest of them
  std::string bytes_;  // of an incomplete character: at most 3
  std::string text_;   // of the present token
  std::string out_;
  uint64_t tokens_ = 0;
  uint64_t text_bytes_ = 0;
};

}  // namespace ringmaster::tokenizer_worker
