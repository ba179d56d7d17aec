#include "tokenizer-worker/text/stop_matcher.h"

#include <algorithm>

namespace ringmaster::tokenizer_worker {
namespace {

uint32_t advance(std::string_view text, const std::vector<uint32_t>& border, uint32_t state, char byte) {
  while (state > 0 && text[state] != byte) state = border[state];
  return text[state] == byte ? state + 1 : 0;
}

}  // namespace

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  patterns_.reserve(stops.size());
  for (const std::string& stop : stops) {
    Pattern pattern{stop, std::vector<uint32_t>(stop.size() + 1, 0)};
    for (size_t i = 1; i < stop.size(); ++i) {
      pattern.border[i + 1] = advance(stop, pattern.border, pattern.border[i], stop[i]);
    }
    patterns_.push_back(std::move(pattern));
  }
}

size_t StopMatcher::push(std::string_view text) {
  if (patterns_.empty()) return text.size();
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t longest = 0;
    for (size_t k = 0; k < patterns_.size(); ++k) {
      Pattern& pattern = patterns_[k];
      pattern.state = advance(pattern.text, pattern.border, pattern.state, text[i]);
      if (pattern.state == pattern.text.size() && pattern.state > longest) {
        longest = pattern.state;
        matched_ = static_cast<int>(k);
      }
    }
    if (matched()) {
      pending_ = 0;
      return i + 1;
    }
  }
  pending_ = 0;
  for (const Pattern& pattern : patterns_) pending_ = std::max<size_t>(pending_, pattern.state);
  return text.size();
}

}  // namespace ringmaster::tokenizer_worker
