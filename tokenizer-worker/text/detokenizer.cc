#include "tokenizer-worker/text/detokenizer.h"

#include <utility>

#include "tokenizer-worker/text/utf8.h"

namespace ringmaster::tokenizer_worker {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, StreamRules rules)
    : tokenizer_(tokenizer), rules_(std::move(rules)), matcher_(rules_.stop) {}

std::string_view Detokenizer::push(TokenId id) {
  ++tokens_;
  if (rules_.skip_special && tokenizer_.is_control(id)) return {};  // a character may go on behind it
  bytes_.append(tokenizer_.bytes(id));
  text_.clear();
  bytes_.erase(0, append_lossy(bytes_, text_));
  return release(text_);
}

std::string_view Detokenizer::finish() {
  const std::string_view last = bytes_.empty() ? std::string_view() : kReplacement;
  bytes_.clear();
  std::string_view out = release(last);
  if (stopped() || held_.empty()) return out;
  text_bytes_ += held_.size();
  out_.append(held_);
  held_.clear();
  return out_;
}

// Hands out held_ and `text` up to a stop string, or up to what may still become one.
std::string_view Detokenizer::release(std::string_view text) {
  held_.append(text.substr(0, matcher_.push(text)));
  size_t certain = held_.size() - matcher_.pending();
  if (stopped() && !rules_.include_stop) certain -= stop_string().size();
  out_.assign(held_, 0, certain);
  held_.erase(0, stopped() ? held_.size() : certain);
  text_bytes_ += certain;
  return out_;
}

}  // namespace ringmaster::tokenizer_worker
