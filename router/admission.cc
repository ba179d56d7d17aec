#include "router/admission.h"

#include <algorithm>
#include <string>

#include "base/utf8.h"

namespace ringmaster::router {
namespace {

Error invalid(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}

Error too_large(const std::string& what, size_t value, const std::string& unit, size_t limit) {
  return {Code::kTooLarge, what + " has " + std::to_string(value) + " " + unit + "; allowed: at most " +
                               std::to_string(limit)};
}

// A name that appears in logs and metrics: no control characters, so that it cannot forge lines or headers.
Status check_label(const std::string& what, std::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes) return too_large(what, text.size(), "bytes", max_bytes);
  if (auto utf8 = check_utf8(what, text); !utf8) return utf8;
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      return invalid(what + " holds the control character " + std::to_string(static_cast<int>(c)) +
                     "; none is allowed");
  return ok_status();
}

Status check_text(const msg::TextPrompt& prompt) {
  const std::string_view text = prompt.text()->string_view();
  if (text.size() > msg::kMaxPromptBytes)
    return too_large("prompt", text.size(), "bytes", msg::kMaxPromptBytes);
  return check_utf8("prompt", text);
}

Status check_chat(const msg::ChatPrompt& prompt) {
  const auto& messages = *prompt.messages();
  if (messages.size() == 0) return invalid("messages is empty; it must hold at least one message");
  if (messages.size() > kMaxChatMessages)
    return too_large("messages", messages.size(), "entries", kMaxChatMessages);
  size_t total = 0;
  for (const auto* message : messages) total += message->role()->size() + message->content()->size();
  if (total > msg::kMaxPromptBytes)
    return too_large("messages together", total, "bytes", msg::kMaxPromptBytes);
  for (flatbuffers::uoffset_t i = 0; i < messages.size(); ++i) {
    const std::string at = "messages[" + std::to_string(i) + "]";
    const auto* message = messages.Get(i);
    if (message->role()->size() == 0) return invalid(at + ".role is empty");
    if (auto role = check_label(at + ".role", message->role()->string_view(), kMaxRoleBytes); !role)
      return role;
    if (auto text = check_utf8(at + ".content", message->content()->string_view()); !text) return text;
  }
  return ok_status();
}

Status check_ids(const msg::IdsPrompt& prompt) {
  constexpr size_t kMaxIds = msg::kMaxPromptBytes / sizeof(TokenId);
  const size_t count = prompt.ids()->size();
  if (count > kMaxIds) return too_large("prompt", count, "ids", kMaxIds);
  return ok_status();
}

Status check_stops(const msg::Generate& request) {
  if (const auto* stop = request.stop()) {
    if (stop->size() > kMaxStopStrings) return too_large("stop", stop->size(), "strings", kMaxStopStrings);
    for (flatbuffers::uoffset_t i = 0; i < stop->size(); ++i) {
      const std::string at = "stop[" + std::to_string(i) + "]";
      const std::string_view text = stop->Get(i)->string_view();
      if (text.empty()) return invalid(at + " is empty; a stop string has at least one character");
      if (text.size() > kMaxStopStringBytes) return too_large(at, text.size(), "bytes", kMaxStopStringBytes);
      if (auto utf8 = check_utf8(at, text); !utf8) return utf8;
    }
  }
  if (request.stop_ids() && request.stop_ids()->size() > kMaxStopIds)
    return too_large("stop_ids", request.stop_ids()->size(), "ids", kMaxStopIds);
  return ok_status();
}

Status check_lengths(const msg::Generate& request) {
  const auto max_tokens = request.max_tokens();
  if (!max_tokens) return ok_status();
  if (*max_tokens == 0)
    return invalid("max_tokens is 0; allowed: at least 1, or absent for up to the end of the context");
  if (request.min_tokens() > *max_tokens)
    return invalid("min_tokens is " + std::to_string(request.min_tokens()) +
                   "; allowed: at most max_tokens, which is " + std::to_string(*max_tokens));
  const size_t received = request.received_ids() ? request.received_ids()->size() : 0;
  if (received > *max_tokens)
    return invalid("received_ids has " + std::to_string(received) + " ids, more than max_tokens, which is " +
                   std::to_string(*max_tokens));
  return ok_status();
}

Status check_sampling(const msg::Sampling* wire) {
  if (wire && wire->logit_bias() && wire->logit_bias()->size() > kMaxLogitBias)
    return too_large("logit_bias", wire->logit_bias()->size(), "entries", kMaxLogitBias);
  return check(to_sampling(wire));
}

Status check_vocabulary(const char* what, const flatbuffers::Vector<uint32_t>* ids, uint32_t vocab_size) {
  if (!ids) return ok_status();
  for (flatbuffers::uoffset_t i = 0; i < ids->size(); ++i)
    if (ids->Get(i) >= vocab_size)
      return invalid(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(ids->Get(i)) +
                     "; the vocabulary has the ids 0 to " + std::to_string(vocab_size - 1));
  return ok_status();
}

Status check_context(const msg::Generate& request, uint32_t context_length) {
  // A text or chat has at least one token; the tokenizer-worker checks the real number.
  const auto* ids = request.prompt_as_IdsPrompt();
  const uint64_t prompt = ids ? ids->ids()->size() : 1;
  const uint64_t received = request.received_ids() ? request.received_ids()->size() : 0;
  const uint64_t output = std::max<uint64_t>(request.max_tokens().value_or(1), received);
  if (prompt + output <= context_length) return ok_status();
  const std::string length = std::to_string(context_length);
  if (ids && prompt >= context_length)
    return Error{Code::kContextLengthExceeded, "the prompt has " + std::to_string(prompt) +
                                                   " tokens; the context holds " + length +
                                                   ", prompt and output together"};
  return Error{
      Code::kContextLengthExceeded,
      (ids ? "the prompt has " + std::to_string(prompt) + " tokens and max_tokens is " : "max_tokens is ") +
          std::to_string(output) + "; the context holds " + length + ", prompt and output together"};
}

}  // namespace

Sampling to_sampling(const msg::Sampling* wire) {
  Sampling out;
  if (!wire) return out;
  out.temperature = wire->temperature();
  out.top_k = wire->top_k();
  out.top_p = wire->top_p();
  out.min_p = wire->min_p();
  out.repetition_penalty = wire->repetition_penalty();
  out.frequency_penalty = wire->frequency_penalty();
  out.presence_penalty = wire->presence_penalty();
  out.seed = wire->seed().value_or(0);
  if (const auto* bias = wire->logit_bias()) {
    out.logit_bias.reserve(bias->size());
    for (const msg::LogitBias* entry : *bias) out.logit_bias.push_back({entry->id(), entry->bias()});
  }
  return out;
}

Status check_prompt(msg::Prompt type, const void* prompt) {
  switch (type) {
    case msg::Prompt::TextPrompt:
      return check_text(*static_cast<const msg::TextPrompt*>(prompt));
    case msg::Prompt::ChatPrompt:
      return check_chat(*static_cast<const msg::ChatPrompt*>(prompt));
    case msg::Prompt::IdsPrompt:
      return check_ids(*static_cast<const msg::IdsPrompt*>(prompt));
    case msg::Prompt::NONE:
      return invalid("prompt is of no kind; allowed: TextPrompt, ChatPrompt, IdsPrompt");
  }
  return Error{Code::kUnsupported, "prompt is of kind " + std::to_string(static_cast<int>(type)) +
                                       ", which this build does not know"};
}

Status check_request(const msg::Generate& request) {
  if (msg::to_uid(*request.uid()) == Uid{}) return invalid("uid is 0; it must be 128 random bits");
  if (request.tenant())
    if (auto tenant = check_label("tenant", request.tenant()->string_view(), kMaxTenantBytes); !tenant)
      return tenant;
  if (request.n() == 0) return invalid("n is 0; allowed: 1");
  if (request.n() != 1)
    return Error{Code::kUnsupported, "n is " + std::to_string(request.n()) +
                                         "; this build answers with one choice, send n requests"};
  if (request.logprobs() && *request.logprobs() > kMaxTopLogprobs)
    return invalid("logprobs is " + std::to_string(*request.logprobs()) + "; allowed: 0 to " +
                   std::to_string(kMaxTopLogprobs));
  if (request.resume_grace_ms() > kMaxResumeGraceMs)
    return invalid("resume_grace_ms is " + std::to_string(request.resume_grace_ms()) + "; allowed: 0 to " +
                   std::to_string(kMaxResumeGraceMs));
  if (auto lengths = check_lengths(request); !lengths) return lengths;
  if (auto stops = check_stops(request); !stops) return stops;
  if (auto sampling = check_sampling(request.sampling()); !sampling) return sampling;
  return check_prompt(request.prompt_type(), request.prompt());
}

Status check_against_model(const msg::Generate& request, const ModelLimits& limits) {
  // The length first: it bounds the walks over ids that follow.
  if (limits.context_length != 0)
    if (auto length = check_context(request, limits.context_length); !length) return length;
  if (limits.vocab_size == 0) return ok_status();
  if (const auto* prompt = request.prompt_as_IdsPrompt())
    if (auto ids = check_vocabulary("prompt", prompt->ids(), limits.vocab_size); !ids) return ids;
  if (auto ids = check_vocabulary("stop_ids", request.stop_ids(), limits.vocab_size); !ids) return ids;
  if (auto ids = check_vocabulary("received_ids", request.received_ids(), limits.vocab_size); !ids)
    return ids;
  if (request.sampling() && request.sampling()->logit_bias())
    for (const msg::LogitBias* entry : *request.sampling()->logit_bias())
      if (entry->id() >= limits.vocab_size)
        return invalid("logit_bias names id " + std::to_string(entry->id()) +
                       "; the vocabulary has the ids 0 to " + std::to_string(limits.vocab_size - 1));
  return ok_status();
}

}  // namespace ringmaster::router
