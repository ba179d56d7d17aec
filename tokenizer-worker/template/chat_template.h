// Renders a model's chat template (the Jinja language as Hugging Face templates use it) to spans of text
// that say which bytes the template wrote and which came from the conversation, so that a user can never
// spell a control token. Compiled once at load: what the evaluator cannot do is refused there by name.
// Immutable then; any thread may render. Sandboxed: steps, depth, memory and output are bounded (limits.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer-worker/template/limits.h"

namespace ringmaster::tokenizer_worker {

struct RenderedSpan {
  std::string text;
  bool from_template = true;  // false: bytes of the conversation (messages, tools)
};

struct RenderOptions {
  // What strftime_now sees; the local time of the call if empty.
  std::optional<std::tm> now;
  // Ends the text right behind the content of the last message, for the model to go on with it.
  bool continue_final_message = false;
  jinja::RenderLimits limits = {};
};

class ChatTemplate {
 public:
  // `bos`, `eos`: text of the special tokens, visible to the template as bos_token, eos_token. kMalformed:
  // no template. kUnsupported: names the tag, filter or test that this evaluator lacks. kTooLarge.
  static Result<ChatTemplate> compile(std::string_view source, std::string bos, std::string eos);

  // `context` holds messages, add_generation_prompt and whatever else the template may see (tools,
  // documents, ...); bos_token and eos_token in it are ignored. An error raised by the template itself is
  // kInvalidArgument with the template's own message. Neighbouring spans differ in from_template; none is
  // empty.
  Result<std::vector<RenderedSpan>> render(const nlohmann::ordered_json& context,
                                           const RenderOptions& options = {}) const;

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

}  // namespace ringmaster::tokenizer_worker
