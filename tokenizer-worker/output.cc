#include "tokenizer-worker/output.h"

#include <algorithm>

#include "tokenizer-worker/text/utf8.h"

namespace ringmaster::tokenizer_worker {

void Output::start_at(TextPosition received, bool with_logprobs) {
  ids_.start_at(received.next_token);
  rows_.start_at(received.next_token);
  text_.start_at(received.text_offset);
  sent_ = ever_sent_ = received;
  with_logprobs_ = with_logprobs;
}

void Output::add_token(TokenId id, float logprob, std::span<const TokenLogprob> top) {
  ids_.push_back(id);
  if (!with_logprobs_) return;
  rows_.push_back({logprob, static_cast<uint32_t>(top.size()), tops_.end()});
  tops_.append(top);
}

bool Output::acknowledge(TextPosition position) {
  if (position.next_token > ever_sent_.next_token || position.text_offset > ever_sent_.text_offset)
    return false;
  ids_.trim(position.next_token);
  text_.trim(position.text_offset);
  if (with_logprobs_) {
    // Acknowledgements come late, too: one of less than is left must not look at rows that are gone.
    const uint64_t first_left = std::max<uint64_t>(position.next_token, rows_.begin());
    tops_.trim(first_left >= rows_.end() ? tops_.end() : rows_[first_left].first_top);
    rows_.trim(position.next_token);
  }
  // What a rewind was about to send again need not be sent.
  sent_.next_token = std::max(sent_.next_token, position.next_token);
  sent_.text_offset = std::max(sent_.text_offset, position.text_offset);
  return true;
}

Status Output::rewind(TextPosition position) {
  const TextPosition first = acknowledged();
  if (position.next_token < first.next_token || position.next_token > ever_sent_.next_token)
    return Error{Code::kInvalidArgument, "resume from token " + std::to_string(position.next_token) +
                                             "; kept are " + std::to_string(first.next_token) + " to " +
                                             std::to_string(ever_sent_.next_token)};
  if (position.text_offset < first.text_offset || position.text_offset > ever_sent_.text_offset)
    return Error{Code::kInvalidArgument, "resume from text byte " + std::to_string(position.text_offset) +
                                             "; kept are " + std::to_string(first.text_offset) + " to " +
                                             std::to_string(ever_sent_.text_offset)};
  const auto text = text_.from(position.text_offset);
  if (!is_character_border({text.data(), text.size()}, 0))
    return Error{Code::kInvalidArgument, "resume from text byte " + std::to_string(position.text_offset) +
                                             ", which is inside a character"};
  acknowledge(position);
  sent_ = position;
  return ok_status();
}

void Output::release() {
  ids_.release();
  text_.release();
  rows_.release();
  tops_.release();
}

}  // namespace ringmaster::tokenizer_worker
