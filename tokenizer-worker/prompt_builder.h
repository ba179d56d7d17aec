// A prompt as it came (text, chat or ids) to token ids. What users wrote never becomes a control token:
// control tokens come only from the chat template's own text, from ids the client gave as ids, and from BOS.
//
//   text   encoded as plain text; BOS in front if the model adds one
//   chat   the template's spans: control tokens are looked for in template text only, span by span; all text
//   between
//          two of them is encoded as one piece, as the reference tokenizer does. BOS in front if the model
//          adds one and the template did not write it
//   ids    as they are, each checked against the vocabulary
//   empty  BOS alone if the model adds one (fit_prompt), else refused
//
// Immutable; any thread. The tokenizer and the template outlive it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "schemas/codec.h"
#include "tokenizer-worker/request_params.h"
#include "tokenizer-worker/template/chat_template.h"
#include "tokenizer-worker/text/tokenizer.h"

namespace ringmaster::tokenizer_worker {

// A Prompt inside a verified message that somebody else keeps.
struct PromptView {
  msg::Prompt type = msg::Prompt::NONE;
  const void* table = nullptr;
};

// ChatTemplate::render of the model's template. Any thread.
using RenderChat = std::function<Result<std::vector<RenderedSpan>>(const nlohmann::ordered_json& context)>;

class PromptBuilder {
 public:
  // `render_chat` may be empty: the model has no template and chat prompts are refused.
  PromptBuilder(const Tokenizer& tokenizer, RenderChat render_chat);

  // `cancelled` is looked at between the pieces; then the error is kCancelled.
  Result<std::vector<TokenId>> build(PromptView prompt, const std::atomic<bool>& cancelled) const;

 private:
  struct Control {
    std::string_view text;
    TokenId id;
  };
  Result<std::vector<TokenId>> build_text(const msg::TextPrompt& prompt) const;
  Result<std::vector<TokenId>> build_chat(const msg::ChatPrompt& prompt,
                                          const std::atomic<bool>& cancelled) const;
  Result<std::vector<TokenId>> build_ids(const msg::IdsPrompt& prompt) const;
  const Control* control_at(std::string_view text) const;
  void add_bos(std::vector<TokenId>& ids) const;

  const Tokenizer& tokenizer_;
  RenderChat render_chat_;
  std::array<std::vector<Control>, 256> controls_;  // by first byte, longest first
};

struct FittedPrompt {
  std::vector<TokenId> ids;
  uint32_t max_tokens = 0;  // of output in all
};

// The prompt in the context, with the number of output tokens it leaves room for. Errors:
// kContextLengthExceeded with all numbers, kInvalidArgument for an empty prompt of a model that adds no BOS.
Result<FittedPrompt> fit_prompt(std::vector<TokenId> ids, const RequestParams& params,
                                uint32_t context_length, const Tokenizer& tokenizer);

}  // namespace ringmaster::tokenizer_worker
