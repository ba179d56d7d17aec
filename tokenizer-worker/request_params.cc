#include "tokenizer-worker/request_params.h"

#include <algorithm>

#include "base/utf8.h"

namespace ringmaster::tokenizer_worker {
namespace {

Error invalid(std::string message) {
  return Error{Code::kInvalidArgument, std::move(message)};
}

Status check_id(const char* field, size_t index, TokenId id, const Tokenizer& tokenizer) {
  if (id < tokenizer.vocab_size()) return ok_status();
  return invalid(std::string(field) + "[" + std::to_string(index) + "] is " + std::to_string(id) +
                 "; allowed: 0 to " + std::to_string(tokenizer.vocab_size() - 1) +
                 " (the model's vocabulary)");
}

Result<Sampling> read_sampling(const msg::Sampling* wire, const Tokenizer& tokenizer) {
  Sampling sampling;
  if (wire == nullptr) return sampling;
  sampling.temperature = wire->temperature();
  sampling.top_k = wire->top_k();
  sampling.top_p = wire->top_p();
  sampling.min_p = wire->min_p();
  sampling.repetition_penalty = wire->repetition_penalty();
  sampling.frequency_penalty = wire->frequency_penalty();
  sampling.presence_penalty = wire->presence_penalty();
  if (const auto* biases = wire->logit_bias()) {
    if (biases->size() > kMaxLogitBias)
      return invalid("logit_bias has " + std::to_string(biases->size()) + " entries; allowed: at most " +
                     std::to_string(kMaxLogitBias));
    for (size_t i = 0; i < biases->size(); ++i) {
      const msg::LogitBias* bias = biases->Get(static_cast<flatbuffers::uoffset_t>(i));
      if (auto ok = check_id("logit_bias", i, bias->id(), tokenizer); !ok) return std::move(ok).error();
      sampling.logit_bias.push_back({bias->id(), bias->bias()});
    }
  }
  if (auto ok = check(sampling); !ok) return std::move(ok).error();
  return sampling;
}

Result<StreamRules> read_rules(const msg::Generate& request) {
  StreamRules rules;
  rules.include_stop = request.include_stop();
  rules.skip_special = request.skip_special();
  const auto* stops = request.stop();
  if (stops == nullptr) return rules;
  if (stops->size() > kMaxStopStrings)
    return invalid("stop has " + std::to_string(stops->size()) + " strings; allowed: at most " +
                   std::to_string(kMaxStopStrings));
  for (size_t i = 0; i < stops->size(); ++i) {
    const std::string text = stops->GetAsString(static_cast<flatbuffers::uoffset_t>(i))->str();
    const std::string field = "stop[" + std::to_string(i) + "]";
    if (text.empty() || text.size() > kMaxStopStringBytes)
      return invalid(field + " has " + std::to_string(text.size()) + " bytes; allowed: 1 to " +
                     std::to_string(kMaxStopStringBytes));
    if (auto ok = check_utf8(field, text); !ok) return std::move(ok).error();
    rules.stop.push_back(text);
  }
  return rules;
}

Result<std::vector<TokenId>> read_stop_ids(const msg::Generate& request, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  if (const auto* own = request.stop_ids()) {
    if (own->size() > kMaxStopIds)
      return invalid("stop_ids has " + std::to_string(own->size()) + " entries; allowed: at most " +
                     std::to_string(kMaxStopIds));
    for (size_t i = 0; i < own->size(); ++i) {
      const TokenId id = own->Get(static_cast<flatbuffers::uoffset_t>(i));
      if (auto ok = check_id("stop_ids", i, id, tokenizer); !ok) return std::move(ok).error();
      ids.push_back(id);
    }
  }
  if (!request.ignore_eos()) ids.insert(ids.end(), tokenizer.end_ids().begin(), tokenizer.end_ids().end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Status read_limits(const msg::Generate& request, RequestParams& params) {
  if (request.n() != 1)
    return Error{Code::kUnsupported,
                 "n is " + std::to_string(request.n()) + "; allowed: 1 (send several requests)"};
  if (request.max_tokens().has_value()) {
    if (*request.max_tokens() == 0) return invalid("max_tokens is 0; allowed: at least 1, or leave it out");
    params.max_tokens = *request.max_tokens();
  }
  params.min_tokens = request.min_tokens();
  if (params.max_tokens && params.min_tokens > *params.max_tokens)
    return invalid("min_tokens is " + std::to_string(params.min_tokens) + "; allowed: at most max_tokens, " +
                   std::to_string(*params.max_tokens));
  if (request.logprobs().has_value()) {
    if (*request.logprobs() > kMaxTopLogprobs)
      return invalid("logprobs is " + std::to_string(*request.logprobs()) + "; allowed: 0 to " +
                     std::to_string(kMaxTopLogprobs));
    params.top_logprobs = *request.logprobs();
  }
  params.priority = request.priority();  // NOLINT(bugprone-signed-char-misuse): a number, with its sign
  return ok_status();
}

Status read_received(const msg::Generate& request, const Tokenizer& tokenizer, RequestParams& params) {
  params.received_text_offset = request.received_text_offset();
  const auto* ids = request.received_ids();
  if (ids == nullptr) return ok_status();
  params.received_ids.reserve(ids->size());
  for (size_t i = 0; i < ids->size(); ++i) {
    const TokenId id = ids->Get(static_cast<flatbuffers::uoffset_t>(i));
    if (auto ok = check_id("received_ids", i, id, tokenizer); !ok) return ok;
    params.received_ids.push_back(id);
  }
  return ok_status();
}

}  // namespace

Result<RequestParams> read_params(const msg::Generate& request, const Tokenizer& tokenizer) {
  RequestParams params;
  auto sampling = read_sampling(request.sampling(), tokenizer);
  if (!sampling) return std::move(sampling).error();
  params.sampling = std::move(*sampling);
  auto rules = read_rules(request);
  if (!rules) return std::move(rules).error();
  params.rules = std::move(*rules);
  auto stop_ids = read_stop_ids(request, tokenizer);
  if (!stop_ids) return std::move(stop_ids).error();
  params.stop_ids = std::move(*stop_ids);
  if (auto ok = read_limits(request, params); !ok) return std::move(ok).error();
  if (auto ok = read_received(request, tokenizer, params); !ok) return std::move(ok).error();
  if (request.tenant() != nullptr) params.tenant = request.tenant()->str();
  return params;
}

msg::FinishReason reason_for(Code code) {
  switch (code) {
    case Code::kCancelled:
      return msg::FinishReason::cancelled;
    case Code::kDeadlineExceeded:
      return msg::FinishReason::deadline;
    case Code::kUnavailable:
    case Code::kWorkerLost:
    case Code::kInternal:
      return msg::FinishReason::error;
    default:
      return msg::FinishReason::refused;
  }
}

}  // namespace ringmaster::tokenizer_worker
