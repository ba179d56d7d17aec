// Watches a text, byte by byte, for any of several stop strings. The match that is completed first wins;
// of those completed by the same byte, the longest. Knows at every point how many of the last bytes may
// still begin a match. Knuth-Morris-Pratt for each string: O(number of strings) a byte, amortised. One
// object a stream; one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringmaster::tokenizer_worker {

class StopMatcher {
 public:
  // REQUIRES: no empty string.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Takes more text. Returns the bytes taken: all of them, or up to and with the byte that completed a match.
  // After a match nothing more may be given.
  size_t push(std::string_view text);

  bool matched() const { return matched_ >= 0; }
  int matched_index() const { return matched_; }  // into `stops`; -1: none
  size_t pending() const { return pending_; }     // last bytes that may be the beginning of a match

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> border;  // of the first i bytes: the longest proper prefix that is also a suffix
    uint32_t state = 0;            // bytes matched so far
  };
  std::vector<Pattern> patterns_;
  size_t pending_ = 0;
  int matched_ = -1;
};

}  // namespace ringmaster::tokenizer_worker
