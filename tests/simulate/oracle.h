// What a request must get, computed without a cluster: the ids from the contract of the fake device in hash
// mode (base/context_hash.h), the text from one pass of the detokenizer over them. Pure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/cpp/ringmaster.h"
#include "tokenizer-worker/text/detokenizer.h"

namespace ringmaster::simulate {

class Oracle {
 public:
  Oracle(const client::Request& request, const tokenizer_worker::Tokenizer& tokenizer,
         uint32_t context_length);

  bool fits() const { return fits_; }  // else it must be refused: context_length_exceeded
  uint32_t prompt_tokens() const { return prompt_tokens_; }
  // Of the whole stream.
  const std::vector<TokenId>& ids() const { return ids_; }
  client::FinishReason reason() const { return reason_; }
  const std::string& stop() const { return stop_; }
  const std::string& whole_text() const { return text_up_to(static_cast<uint32_t>(ids_.size())); }

  // The text of a stream that ends after `tokens`. Every text of a client that has these tokens is a
  // beginning of it. REQUIRES: tokens <= ids().size().
  const std::string& text_up_to(uint32_t tokens) const { return texts_[tokens]; }

 private:
  bool fits_ = true;
  uint32_t prompt_tokens_ = 0;
  std::vector<TokenId> ids_;
  std::vector<std::string> texts_;  // [ids + 1]
  client::FinishReason reason_ = client::FinishReason::kLength;
  std::string stop_;
};

}  // namespace ringmaster::simulate
