// Renders a model's chat template (the Jinja language as Hugging Face templates use it) to spans of text that say which bytes the
// template wrote and which came from the conversation, so that a user can never spell a control token.
// Compiled once at load: what the evaluator cannot do is refused there by name. Immutable then; any thread may render.
// Sandboxed: steps, depth and output are bounded.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ringmaster::tokenizer_worker {

struct RenderedSpan {
  std::string text;
  bool from_template = true;  // false: bytes of the conversation (messages, tools)
};

class ChatTemplate {
 public:
  // `bos`, `eos`: text of the special tokens, visible to the template as bos_token, eos_token.
  static Result<ChatTemplate> compile(std::string_view source, std::string bos, std::string eos);

  // `context` holds messages, add_generation_prompt and whatever else the template may see (tools, documents, ...).
  // An error raised by the template itself is kInvalidArgument with the template's own message.
  Result<std::vector<RenderedSpan>> render(const nlohmann::ordered_json& context) const;

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

}  // namespace ringmaster::tokenizer_worker
