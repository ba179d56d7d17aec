#include "tokenizer-worker/prompt_builder.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace ringmaster::tokenizer_worker {
namespace {

// The limit of design section 4, for all texts of a prompt together.
Status check_size(size_t bytes) {
  if (bytes <= msg::kMaxPromptBytes) return ok_status();
  return Error{Code::kTooLarge, "prompt has " + std::to_string(bytes) + " bytes; allowed: at most " +
                                    std::to_string(msg::kMaxPromptBytes)};
}

// One small message may be referred to many times, so their number is bounded apart from their bytes. The
// same number as the router's.
constexpr size_t kMaxChatMessages = 16'384;

Result<nlohmann::ordered_json> chat_context(const msg::ChatPrompt& prompt) {
  if (prompt.messages()->size() == 0 || prompt.messages()->size() > kMaxChatMessages)
    return Error{Code::kInvalidArgument, "messages has " + std::to_string(prompt.messages()->size()) +
                                             " entries; allowed: 1 to " + std::to_string(kMaxChatMessages)};
  size_t bytes = 0;
  auto messages = nlohmann::ordered_json::array();
  for (flatbuffers::uoffset_t i = 0; i < prompt.messages()->size(); ++i) {
    const msg::ChatMessage* message = prompt.messages()->Get(i);
    const std::string field = "messages[" + std::to_string(i) + "]";
    bytes += message->role()->size() + message->content()->size();
    if (auto ok = check_size(bytes); !ok) return std::move(ok).error();
    if (auto ok = check_utf8(field + ".role", message->role()->string_view()); !ok)
      return std::move(ok).error();
    if (auto ok = check_utf8(field + ".content", message->content()->string_view()); !ok)
      return std::move(ok).error();
    messages.push_back({{"role", message->role()->str()}, {"content", message->content()->str()}});
  }
  return nlohmann::ordered_json{{"messages", std::move(messages)},
                                {"add_generation_prompt", prompt.add_generation_prompt()}};
}

}  // namespace

PromptBuilder::PromptBuilder(const Tokenizer& tokenizer, RenderChat render_chat)
    : tokenizer_(tokenizer), render_chat_(std::move(render_chat)) {
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_control(id)) continue;
    const std::string_view text = tokenizer.bytes(id);
    if (!text.empty()) controls_[static_cast<unsigned char>(text[0])].push_back({text, id});
  }
  for (auto& same_first : controls_)
    std::sort(same_first.begin(), same_first.end(),
              [](const Control& a, const Control& b) { return a.text.size() > b.text.size(); });
}

Result<std::vector<TokenId>> PromptBuilder::build(PromptView prompt,
                                                  const std::atomic<bool>& cancelled) const {
  if (cancelled.load(std::memory_order_relaxed)) return Error{Code::kCancelled, "cancelled before encoding"};
  switch (prompt.type) {
    case msg::Prompt::TextPrompt:
      return build_text(*static_cast<const msg::TextPrompt*>(prompt.table));
    case msg::Prompt::ChatPrompt:
      return build_chat(*static_cast<const msg::ChatPrompt*>(prompt.table), cancelled);
    case msg::Prompt::IdsPrompt:
      return build_ids(*static_cast<const msg::IdsPrompt*>(prompt.table));
    default:
      return Error{Code::kUnsupported, "prompt of kind " + std::to_string(static_cast<int>(prompt.type)) +
                                           "; allowed: text, chat, ids"};
  }
}

Result<std::vector<TokenId>> PromptBuilder::build_text(const msg::TextPrompt& prompt) const {
  const std::string_view text = prompt.text()->string_view();
  if (auto ok = check_size(text.size()); !ok) return std::move(ok).error();
  if (auto ok = check_utf8("prompt", text); !ok) return std::move(ok).error();
  std::vector<TokenId> ids;
  add_bos(ids);
  tokenizer_.encode(text, /*control=*/false, ids);
  return ids;
}

Result<std::vector<TokenId>> PromptBuilder::build_chat(const msg::ChatPrompt& prompt,
                                                       const std::atomic<bool>& cancelled) const {
  if (!render_chat_)
    return Error{Code::kUnsupported, "the model has no chat template; send the prompt as text or ids"};
  auto context = chat_context(prompt);
  if (!context) return std::move(context).error();
  auto spans = render_chat_(*context);
  if (!spans) return std::move(spans).error();

  std::vector<TokenId> ids;
  std::string plain;  // text since the last control token, across spans
  const auto encode_plain = [&] {
    if (!plain.empty()) tokenizer_.encode(plain, /*control=*/false, ids);
    plain.clear();
  };
  for (const RenderedSpan& span : *spans) {
    if (!span.from_template) {
      plain += span.text;
      continue;
    }
    for (size_t at = 0; at < span.text.size();) {
      const Control* control = control_at(std::string_view(span.text).substr(at));
      if (control == nullptr) {
        plain.push_back(span.text[at++]);
        continue;
      }
      if (cancelled.load(std::memory_order_relaxed))
        return Error{Code::kCancelled, "cancelled while encoding"};
      encode_plain();
      ids.push_back(control->id);
      at += control->text.size();
    }
  }
  encode_plain();
  if (tokenizer_.adds_bos() && (ids.empty() || ids.front() != tokenizer_.bos()))
    ids.insert(ids.begin(), tokenizer_.bos());
  return ids;
}

Result<std::vector<TokenId>> PromptBuilder::build_ids(const msg::IdsPrompt& prompt) const {
  std::vector<TokenId> ids;
  ids.reserve(prompt.ids()->size());
  for (flatbuffers::uoffset_t i = 0; i < prompt.ids()->size(); ++i) {
    const TokenId id = prompt.ids()->Get(i);
    if (id >= tokenizer_.vocab_size())
      return Error{Code::kInvalidArgument,
                   "ids[" + std::to_string(i) + "] is " + std::to_string(id) + "; allowed: 0 to " +
                       std::to_string(tokenizer_.vocab_size() - 1) + " (the model's vocabulary)"};
    ids.push_back(id);
  }
  return ids;
}

const PromptBuilder::Control* PromptBuilder::control_at(std::string_view text) const {
  for (const Control& control : controls_[static_cast<unsigned char>(text[0])])
    if (text.starts_with(control.text)) return &control;
  return nullptr;
}

void PromptBuilder::add_bos(std::vector<TokenId>& ids) const {
  if (tokenizer_.adds_bos()) ids.push_back(tokenizer_.bos());
}

Result<FittedPrompt> fit_prompt(std::vector<TokenId> ids, const RequestParams& params,
                                uint32_t context_length, const Tokenizer& tokenizer) {
  // Only of a model that begins its texts with BOS: elsewhere the token means something else (SmolLM2 opens a
  // turn with it).
  if (ids.empty() && !tokenizer.adds_bos())
    return Error{
        Code::kInvalidArgument,
        "the prompt is empty and the model begins no text with a BOS token to start from; send some text"};
  if (ids.empty()) ids.push_back(tokenizer.bos());
  const std::string numbers = "prompt has " + std::to_string(ids.size()) + " tokens, the context holds " +
                              std::to_string(context_length) + " (prompt and output together)";
  if (ids.size() >= context_length)
    return Error{Code::kContextLengthExceeded, numbers + "; shorten the prompt"};
  const uint32_t room = context_length - static_cast<uint32_t>(ids.size());
  const uint32_t max_tokens = params.max_tokens.value_or(room);
  if (max_tokens > room)
    return Error{Code::kContextLengthExceeded, numbers + ", max_tokens is " + std::to_string(max_tokens) +
                                                   "; allowed: at most " + std::to_string(room) +
                                                   ", or leave max_tokens out"};
  return FittedPrompt{std::move(ids), max_tokens};
}

}  // namespace ringmaster::tokenizer_worker
