// What one stream has said and its client may still need: ids, text and log-probabilities from the
// acknowledged position on, and how far they were sent. Positions count from the request's first output token
// and text byte, so they mean the same before and after a resume.
//
//   acknowledged <= sent <= ever sent <= end, for tokens and for text (text may lag behind ids)
//
// Thread: the stream thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "tokenizer-worker/ring_links.h"
#include "tokenizer-worker/tail.h"

namespace ringmaster::tokenizer_worker {

struct TextPosition {
  uint32_t next_token = 0;
  uint64_t text_offset = 0;
  bool operator==(const TextPosition&) const = default;
};

class Output {
 public:
  // The stream continues one of which the client has everything before `received`. REQUIRES: nothing was
  // added yet.
  void start_at(TextPosition received, bool with_logprobs);

  void add_token(TokenId id, float logprob, std::span<const TokenLogprob> top);
  void add_text(std::string_view text) { text_.append(text); }

  uint32_t next_token() const { return static_cast<uint32_t>(ids_.end()); }
  TextPosition end() const { return {next_token(), text_.end()}; }
  TextPosition sent() const { return sent_; }
  TextPosition acknowledged() const { return {static_cast<uint32_t>(ids_.begin()), text_.begin()}; }
  bool all_sent() const { return sent_ == end(); }
  bool all_acknowledged() const { return acknowledged() == end(); }

  // The client has everything before `position`. False, and nothing changes, when that was never sent.
  bool acknowledge(TextPosition position);
  // Send again from `position`, which the client has. kInvalidArgument: it was never sent, is acknowledged
  // and gone, or lies inside a character.
  Status rewind(TextPosition position);
  void mark_sent() { sent_ = ever_sent_ = end(); }
  void release();  // gives unused memory back: the stream has ended

  std::span<const TokenId> unsent_ids() const { return ids_.from(sent_.next_token); }
  std::string_view unsent_text() const {
    const auto text = text_.from(sent_.text_offset);
    return {text.data(), text.size()};
  }
  bool with_logprobs() const { return with_logprobs_; }
  // REQUIRES: with_logprobs(), token not acknowledged.
  float logprob(uint32_t token) const { return rows_[token].chosen; }
  std::span<const TokenLogprob> top_logprobs(uint32_t token) const {
    return tops_.from(rows_[token].first_top).first(rows_[token].top_count);
  }

 private:
  struct LogprobRow {
    float chosen;
    uint32_t top_count;
    uint64_t first_top;  // position in tops_
  };

  Tail<std::vector<TokenId>> ids_;
  Tail<std::string> text_;
  Tail<std::vector<LogprobRow>> rows_;
  Tail<std::vector<TokenLogprob>> tops_;
  TextPosition sent_;
  TextPosition ever_sent_;  // before a rewind: as far as acknowledgements can be of
  bool with_logprobs_ = false;
};

}  // namespace ringmaster::tokenizer_worker
