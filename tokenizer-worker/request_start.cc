// The part of Requests before a request runs: the door, the encode pool, the start command.
#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "tokenizer-worker/cache_salt.h"
#include "tokenizer-worker/requests.h"
#include "tokenizer-worker/text/utf8.h"

namespace ringmaster::tokenizer_worker {
namespace {

// The Generate inside an Assign, in an aligned copy that outlives the message: the pool reads the prompt from
// it. Null when it is not one; the outer verifier has checked the structure, not identifier, version and
// body.
const msg::Generate* open_request(const flatbuffers::Vector<uint8_t>& bytes, std::vector<uint64_t>& copy) {
  copy.resize((bytes.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  if (!copy.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
  const auto opened = msg::open<msg::RouterMessage>(std::as_bytes(std::span(copy)).first(bytes.size()));
  return opened ? (*opened)->body_as_Generate() : nullptr;
}

}  // namespace

void Requests::assign(const msg::Assign& assign, Nanos now) {
  EncodeJob job;
  const msg::Generate* request = open_request(*assign.request(), job.message);
  if (request == nullptr || assign.epoch() == 0) {
    counters_.add(Counter::kMessagesMalformed);
    return log::with("", assign.epoch()).error("an Assign does not hold a Generate; the router is to blame");
  }
  const std::string_view client(reinterpret_cast<const char*>(assign.client()->data()),
                                assign.client()->size());
  Stream* stream = table_.create(assign.epoch(), msg::to_uid(*request->uid()), client);
  if (stream == nullptr) {
    counters_.add(Counter::kMessagesMalformed);
    return log::with("", assign.epoch()).error("an Assign repeats an epoch; the router is to blame");
  }
  ++live_;
  counters_.add(Counter::kRequestsAssigned);
  stream->marks.received = static_cast<Nanos>(assign.received_at());
  stream->marks.assigned = static_cast<Nanos>(assign.assigned_at());
  stream->seed = assign.seed();
  stream->context_length = limits_.context_length;
  if (assign.context_length() > 0)
    stream->context_length = std::min(stream->context_length, assign.context_length());
  stream->deadline = static_cast<Nanos>(assign.deadline_at());
  job.ticket = {EncodeTicket::Kind::kRequest, assign.epoch()};
  job.prompt = {request->prompt_type(), request->prompt()};
  if (auto ok = accept(*stream, assign, *request); !ok) return fail(*stream, ok.error(), now);
  if (auto ids = pool_.encode_here(job)) return encoded(stream->epoch, std::move(*ids), now);
  if (auto ok = pool_.submit(std::move(job)); !ok) fail(*stream, ok.error(), now);
}

Status Requests::accept(Stream& stream, const msg::Assign& assign, const msg::Generate& request) {
  auto params = read_params(request, tokenizer_);
  if (!params) return std::move(params).error();
  stream.params = std::make_unique<RequestParams>(std::move(*params));
  if (!refuse_new_.empty()) return Error{Code::kUnavailable, refuse_new_};
  if (live_ > limits_.max_live)
    return Error{Code::kOverloaded, "this tokenizer-worker has " + std::to_string(limits_.max_live) +
                                        " requests, the most allowed; retry later"};
  const auto link = links_.find(assign.gpu_worker()->string_view(), assign.gpu_instance());
  if (!link)
    return Error{Code::kWorkerLost, "no ring to " + assign.gpu_worker()->str() + " (any more); retry"};
  stream.link = *link;
  return ok_status();
}

void Requests::encoded(Epoch epoch, Result<std::vector<TokenId>> ids, Nanos now) {
  Stream* stream = table_.find(epoch);
  if (stream == nullptr || stream->phase != Phase::kEncoding) return;  // cancelled or forgotten meanwhile
  if (!ids) return fail(*stream, ids.error(), now);
  auto prompt = fit_prompt(std::move(*ids), *stream->params, stream->context_length, tokenizer_);
  if (!prompt) return fail(*stream, prompt.error(), now);
  stream->prompt_tokens = static_cast<uint32_t>(prompt->ids.size());
  stream->max_tokens = prompt->max_tokens;
  if (auto ok = replay_received(*stream); !ok) {
    stream->text.reset();  // it holds what the client only claimed to have
    return fail(*stream, ok.error(), now);
  }
  if (finish_if_complete(*stream, now)) return;
  if (auto ok = start(*stream, std::move(*prompt), now); !ok) fail(*stream, ok.error(), now);
}

// The ids that a resuming client already has go through the detokenizer once more: what is in its head (half
// a character, the beginning of a stop string) is state of the stream.
Status Requests::replay_received(Stream& stream) {
  const RequestParams& params = *stream.params;
  const auto count = static_cast<uint32_t>(params.received_ids.size());
  if (count > stream.max_tokens)
    return Error{Code::kInvalidArgument, "received_ids has " + std::to_string(count) +
                                             " entries; allowed: at most max_tokens, " +
                                             std::to_string(stream.max_tokens)};
  stream.text.emplace(tokenizer_, params.rules);
  std::string text;
  for (const TokenId id : params.received_ids) {
    if (stream.text->stopped())
      return Error{Code::kInvalidArgument,
                   "received_ids goes on after the stop string that ends it at entry " +
                       std::to_string(stream.text->tokens())};
    text += stream.text->push(id);
  }
  const uint64_t offset = params.received_text_offset;
  if (offset > text.size() || !is_character_border(text, offset))
    return Error{Code::kInvalidArgument, "received_text_offset is " + std::to_string(offset) +
                                             "; allowed: 0 to " + std::to_string(text.size()) +
                                             ", between two characters"};
  stream.output.start_at({count, offset}, params.top_logprobs.has_value());
  stream.output.add_text(std::string_view(text).substr(offset));
  if (!stream.output.all_sent()) table_.mark(stream);
  return ok_status();
}

bool Requests::finish_if_complete(Stream& stream, Nanos now) {
  const RequestParams& params = *stream.params;
  if (stream.text->stopped()) {
    stream.ending.stop = stream.text->stop_string();
    finish(stream, msg::FinishReason::stop, Code::kOk, "", now);
  } else if (params.received_ids.size() > params.min_tokens &&
             std::binary_search(params.stop_ids.begin(), params.stop_ids.end(), params.received_ids.back())) {
    finish(stream, msg::FinishReason::stop, Code::kOk, "", now);
  } else if (params.received_ids.size() == stream.max_tokens) {
    finish(stream, msg::FinishReason::length, Code::kOk, "", now);
  } else {
    return false;
  }
  return true;
}

Status Requests::start(Stream& stream, FittedPrompt prompt, Nanos now) {
  stream.top_logprobs = stream.params->top_logprobs.value_or(0);
  stream.granted = static_cast<uint32_t>(stream.params->received_ids.size()) + limits_.credit;
  stream.marks.started = now;
  if (auto ok = links_.start(stream.link, start_command(stream, std::move(prompt))); !ok) return ok;
  stream.phase = Phase::kRunning;
  stream.params.reset();
  return ok_status();
}

StartCommand Requests::start_command(const Stream& stream, FittedPrompt prompt) const {
  const RequestParams& params = *stream.params;
  StartCommand command;
  command.prompt_count = static_cast<uint32_t>(prompt.ids.size());
  command.ids = std::move(prompt.ids);
  command.ids.insert(command.ids.end(), params.received_ids.begin(), params.received_ids.end());
  command.stop_ids = params.stop_ids;
  command.bias = params.sampling.logit_bias;

  shm::StartRecord& record = command.record;
  record.epoch = stream.epoch;
  record.seed = stream.seed;
  const auto salt = cache_salt(params.tenant);
  std::copy(salt.begin(), salt.end(), record.cache_salt);
  record.deadline = stream.deadline;
  record.max_tokens = stream.max_tokens;
  record.min_tokens = params.min_tokens;
  record.granted = stream.granted;
  record.priority = params.priority;
  record.temperature = params.sampling.temperature;
  record.top_p = params.sampling.top_p;
  record.min_p = params.sampling.min_p;
  record.top_k = params.sampling.top_k;
  record.repetition_penalty = params.sampling.repetition_penalty;
  record.frequency_penalty = params.sampling.frequency_penalty;
  record.presence_penalty = params.sampling.presence_penalty;
  record.logprobs = params.top_logprobs ? *params.top_logprobs + 1 : 0;
  return command;
}

}  // namespace ringmaster::tokenizer_worker
