#include "client/cpp/wire.h"

namespace ringmaster::client::wire {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;

std::string text_or_empty(const flatbuffers::String* text) {
  return text ? text->str() : std::string();
}

std::pair<msg::Prompt, flatbuffers::Offset<void>> prompt(Builder& b, const Request& request) {
  if (const auto* text = std::get_if<std::string>(&request.prompt))
    return {msg::Prompt::TextPrompt, msg::CreateTextPrompt(b, b.CreateString(*text)).Union()};
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&request.prompt))
    return {msg::Prompt::IdsPrompt, msg::CreateIdsPrompt(b, b.CreateVector(*ids)).Union()};
  std::vector<flatbuffers::Offset<msg::ChatMessage>> messages;
  for (const ChatMessage& m : std::get<std::vector<ChatMessage>>(request.prompt))
    messages.push_back(msg::CreateChatMessage(b, b.CreateString(m.role), b.CreateString(m.content)));
  return {msg::Prompt::ChatPrompt, msg::CreateChatPrompt(b, b.CreateVector(messages)).Union()};
}

flatbuffers::Offset<msg::Sampling> sampling(Builder& b, const Request& request) {
  const Sampling& s = request.sampling;
  flatbuffers::Offset<flatbuffers::Vector<const msg::LogitBias*>> bias = 0;
  if (!s.logit_bias.empty()) {
    std::vector<msg::LogitBias> entries;
    for (const ringmaster::LogitBias& entry : s.logit_bias) entries.emplace_back(entry.id, entry.bias);
    bias = b.CreateVectorOfStructs(entries);
  }
  msg::SamplingBuilder out(b);
  out.add_temperature(s.temperature);
  out.add_top_k(s.top_k);
  out.add_top_p(s.top_p);
  out.add_min_p(s.min_p);
  out.add_repetition_penalty(s.repetition_penalty);
  out.add_frequency_penalty(s.frequency_penalty);
  out.add_presence_penalty(s.presence_penalty);
  if (request.has_seed) out.add_seed(s.seed);
  if (!bias.IsNull()) out.add_logit_bias(bias);
  return out.Finish();
}

}  // namespace

msg::Bytes generate(Builder& b, Uid uid, const Request& request, const std::vector<TokenId>& received_ids,
                    uint64_t received_text_offset) {
  b.Clear();
  const auto [prompt_type, prompt_offset] = prompt(b, request);
  const auto sampling_offset = sampling(b, request);
  const auto stop = b.CreateVectorOfStrings(request.stop);
  const auto stop_ids = b.CreateVector(request.stop_ids);
  const auto tenant = b.CreateString(request.tenant);
  const auto received = b.CreateVector(received_ids);
  const msg::Uid wire_uid = msg::to_wire(uid);
  msg::GenerateBuilder out(b);
  out.add_uid(&wire_uid);
  out.add_prompt_type(prompt_type);
  out.add_prompt(prompt_offset);
  out.add_sampling(sampling_offset);
  if (request.max_tokens) out.add_max_tokens(*request.max_tokens);
  out.add_min_tokens(request.min_tokens);
  out.add_stop(stop);
  out.add_stop_ids(stop_ids);
  out.add_ignore_eos(request.ignore_eos);
  out.add_include_stop(request.include_stop);
  out.add_skip_special(request.skip_special);
  if (request.logprobs) out.add_logprobs(*request.logprobs);
  out.add_priority(request.priority);
  out.add_deadline_ms(request.deadline_ms);
  out.add_tenant(tenant);
  out.add_resume_grace_ms(request.resume_grace_ms);
  out.add_received_ids(received);
  out.add_received_text_offset(received_text_offset);
  return msg::seal<msg::RouterMessage>(b, msg::RouterBody::Generate, out.Finish().Union());
}

msg::Bytes tokenize(Builder& b, uint64_t tag, const Request& request) {
  b.Clear();
  const auto [type, offset] = prompt(b, request);
  return msg::seal<msg::RouterMessage>(b, msg::RouterBody::Tokenize,
                                       msg::CreateTokenize(b, tag, type, offset).Union());
}

msg::Bytes cancel(Builder& b, Uid uid) {
  b.Clear();
  const msg::Uid wire_uid = msg::to_wire(uid);
  return msg::seal<msg::RouterMessage>(b, msg::RouterBody::Cancel, msg::CreateCancel(b, &wire_uid).Union());
}

msg::Bytes ping(Builder& b) {
  b.Clear();
  return msg::seal<msg::RouterMessage>(b, msg::RouterBody::Ping, msg::CreatePing(b).Union());
}

msg::Bytes status_query(Builder& b) {
  b.Clear();
  return msg::seal<msg::RouterMessage>(b, msg::RouterBody::StatusQuery, msg::CreateStatusQuery(b).Union());
}

msg::Bytes acks(Builder& b, const std::vector<PendingAck>& pending) {
  b.Clear();
  std::vector<flatbuffers::Offset<msg::Ack>> entries;
  entries.reserve(pending.size());
  for (const PendingAck& ack : pending) {
    const msg::Uid uid = msg::to_wire(ack.uid);
    entries.push_back(msg::CreateAck(b, &uid, ack.next_token, ack.text_offset));
  }
  return msg::seal<msg::RouterMessage>(b, msg::RouterBody::Acks,
                                       msg::CreateAcks(b, b.CreateVector(entries)).Union());
}

Ending ending(const msg::Done& done) {
  Ending out;
  out.reason = done.reason() <= msg::FinishReason::MAX ? static_cast<FinishReason>(done.reason())
                                                       : FinishReason::kError;
  out.code = msg::to_code(done.code());
  out.message = text_or_empty(done.message());
  out.stop = text_or_empty(done.stop());
  if (const auto* u = done.usage()) out.usage = {u->prompt_tokens(), u->cached_tokens(), u->output_tokens()};
  if (const auto* t = done.timings()) {
    const auto ns = [](uint64_t value) { return static_cast<Nanos>(value); };
    out.timings = {ns(t->route()),  ns(t->tokenize()),   ns(t->queue()), ns(t->prefill()),
                   ns(t->decode()), ns(t->detokenize()), ns(t->total())};
  }
  return out;
}

ClusterStatus cluster_status(const msg::StatusReply& reply) {
  ClusterStatus out;
  out.incarnation = reply.incarnation();
  out.ready = reply.ready();
  out.model = text_or_empty(reply.model());
  out.context_length = reply.context_length();
  out.vocab_size = reply.vocab_size();
  out.live_requests = reply.live_requests();
  if (reply.workers())
    for (const msg::WorkerStatus* w : *reply.workers())
      out.workers.push_back({w->kind()->str(), w->name()->str(), w->state()->str(),
                             text_or_empty(w->device()), w->pid(), w->live(), w->running(), w->waiting(),
                             w->blocks_free(), w->blocks_total(), w->steps(), w->age_ms()});
  if (reply.counters())
    for (const msg::Counter* c : *reply.counters()) out.counters.emplace_back(c->name()->str(), c->value());
  return out;
}

std::vector<Logprobs> logprobs(const msg::Chunk& chunk, size_t first) {
  std::vector<Logprobs> out;
  if (!chunk.logprobs()) return out;
  for (size_t i = first; i < chunk.logprobs()->size(); ++i) {
    const msg::Logprobs* entry = chunk.logprobs()->Get(static_cast<flatbuffers::uoffset_t>(i));
    Logprobs& target = out.emplace_back();
    target.chosen = entry->chosen();
    if (entry->top())
      for (const msg::TokenLogprob* top : *entry->top()) target.top.push_back({top->id(), top->logprob()});
  }
  return out;
}

}  // namespace ringmaster::client::wire
