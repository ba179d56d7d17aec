// Valid messages of every kind, for the seeds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/router/support.h"

namespace ringmaster::fuzz {

using router::pack;

inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
template <typename Message, typename Body>
inline std::string sealed(Body body) {
  typename Message::NativeTableType message;
  message.version = msg::kVersion;
  message.body.Set(std::move(body));
  flatbuffers::FlatBufferBuilder b;
  b.Finish(Message::Pack(b, &message), msg::identifier<Message>());
  return {reinterpret_cast<const char*>(b.GetBufferPointer()), b.GetSize()};
}
template <typename Body>
inline std::string to_client(Body body) {
  return sealed<msg::ClientMessage>(std::move(body));
}
template <typename Body>
inline std::string to_tokenizer(Body body) {
  return sealed<msg::TokenizerWorkerMessage>(std::move(body));
}
inline std::unique_ptr<msg::Uid> wire_uid(uint64_t n) {
  return std::make_unique<msg::Uid>(msg::to_wire(router::uid(n)));
}

// ---- what clients and workers say to the router ----

inline msg::GenerateT full_request(uint64_t n) {
  msg::GenerateT g = router::chat_request(n, {{"system", "Be brief."}, {"user", "Hi \xC3\xA9"}});
  g.max_tokens = 8;
  g.min_tokens = 1;
  g.stop = {"###", "\n\n"};
  g.stop_ids = {1, 5};
  g.logprobs = 2;
  g.priority = 1;
  g.deadline_ms = 500;
  g.tenant = "blue";
  auto& s = router::sampling(g);
  s.temperature = 0.7f;
  s.top_k = 20;
  s.top_p = 0.9f;
  s.min_p = 0.05f;
  s.repetition_penalty = 1.1f;
  s.frequency_penalty = 0.5f;
  s.presence_penalty = -0.5f;
  s.seed = 42;
  s.logit_bias = {msg::LogitBias(7, -1.5f)};
  return g;
}
inline msg::GenerateT resumed_request(uint64_t n) {
  msg::GenerateT g = router::ids_request(n, {1, 2, 3, 4});
  g.received_ids = {10, 11};
  g.received_text_offset = 2;
  g.resume_grace_ms = 1000;
  return g;
}
inline msg::AcksT acks(uint64_t n, uint32_t next_token, uint64_t text_offset) {
  msg::AcksT body;
  body.acks.push_back(std::make_unique<msg::AckT>());
  body.acks[0]->uid = wire_uid(n);
  body.acks[0]->next_token = next_token;
  body.acks[0]->text_offset = text_offset;
  return body;
}
inline msg::CancelT cancel(uint64_t n) {
  msg::CancelT body;
  body.uid = wire_uid(n);
  return body;
}
inline msg::TokenizeT tokenize() {
  msg::TokenizeT body;
  body.tag = 3;
  msg::TextPromptT prompt;
  prompt.text = "Hello";
  body.prompt.Set(std::move(prompt));
  return body;
}
inline msg::RegisterT registration(msg::WorkerKind kind, const std::string& name, uint64_t instance) {
  msg::RegisterT r;
  r.kind = kind;
  r.name = name;
  r.pid = 100;
  r.instance = instance;
  r.model = std::make_unique<msg::ModelInfoT>();
  r.model->name = "tiny";
  r.model->weights_hash = 5;
  r.model->vocab_size = 1000;
  r.model->context_length = 64;
  r.device = "fake";
  r.ring_socket = "/run/g.ring";
  r.max_live = 4;
  return r;
}
inline msg::HeartbeatT heartbeat(uint64_t instance) {
  msg::HeartbeatT h;
  h.instance = instance;
  h.load = std::make_unique<msg::LoadT>();
  h.load->blocks_total = 9;
  return h;
}
inline msg::LinkedT linked(const std::string& gpu, uint64_t instance, bool up) {
  msg::LinkedT l;
  l.gpu_worker = gpu;
  l.gpu_instance = instance;
  l.up = up;
  return l;
}
inline msg::StreamsT streams(const std::string& client, const std::vector<router::Piece>& pieces,
                             const std::vector<router::End>& ends) {
  msg::StreamsT s;
  s.to.push_back(router::to_client(client, pieces, ends));
  return s;
}
inline msg::TokenizedT tokenized(uint64_t tag) {
  msg::TokenizedT t;
  t.tag = tag;
  t.ids = {1, 2, 3};
  return t;
}

// ---- what the router says ----

inline msg::AssignT assign(Epoch epoch, msg::GenerateT request) {
  msg::AssignT a;
  a.epoch = epoch;
  a.client = {'c'};
  a.gpu_worker = "gpu-worker.0";
  a.gpu_instance = 7;
  a.seed = 99;
  const auto bytes = pack(std::move(request));
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  a.request.assign(data, data + bytes.size());
  return a;
}
inline msg::AckedEpochsT acked(Epoch epoch, uint32_t next_token, uint64_t text_offset) {
  msg::AckedEpochsT body;
  body.acks.push_back(std::make_unique<msg::EpochAckT>());
  body.acks[0]->epoch = epoch;
  body.acks[0]->next_token = next_token;
  body.acks[0]->text_offset = text_offset;
  return body;
}
inline msg::GpuWorkersT gpu_workers(uint32_t incarnation, uint64_t instance) {
  msg::GpuWorkersT body;
  body.incarnation = incarnation;
  body.workers.push_back(std::make_unique<msg::GpuWorkerT>());
  body.workers[0]->name = "gpu-worker.0";
  body.workers[0]->instance = instance;
  body.workers[0]->ring_socket = "/run/g.ring";
  return body;
}
inline msg::ResendT resend(Epoch epoch) {
  msg::ResendT r;
  r.epoch = epoch;
  r.client = {'d'};
  return r;
}
inline msg::EndT end(Epoch epoch) {
  msg::EndT e;
  e.epoch = epoch;
  e.reason = msg::FinishReason::cancelled;
  e.code = msg::Code::cancelled;
  return e;
}
inline msg::TokenizeQueryT query() {
  msg::TokenizeQueryT q;
  q.tag = 1;
  msg::ChatPromptT prompt;
  prompt.messages.push_back(std::make_unique<msg::ChatMessageT>());
  prompt.messages[0]->role = "user";
  prompt.messages[0]->content = "Hello";
  q.prompt.Set(std::move(prompt));
  return q;
}
inline msg::AcceptedT accepted(uint64_t n) {
  msg::AcceptedT a;
  a.uid = std::make_unique<msg::Uid>(n, 2);
  a.epoch = 1;
  a.seed = 42;
  return a;
}
inline msg::StreamT stream(uint64_t n, uint32_t first, uint64_t offset, bool ends) {
  msg::StreamT s;
  auto chunk = std::make_unique<msg::ChunkT>();
  chunk->uid = std::make_unique<msg::Uid>(n, 2);
  chunk->epoch = 1;
  chunk->first_token = first;
  chunk->ids = {20, 21};
  chunk->text_offset = offset;
  chunk->text = "ab";
  for (int i = 0; i < 2; ++i) {
    chunk->logprobs.push_back(std::make_unique<msg::LogprobsT>());
    chunk->logprobs.back()->top = {msg::TokenLogprob(20, -0.5f)};
  }
  s.chunks.push_back(std::move(chunk));
  if (!ends) return s;
  auto done = std::make_unique<msg::DoneT>();
  done->uid = std::make_unique<msg::Uid>(n, 2);
  done->reason = msg::FinishReason::stop;
  done->usage = std::make_unique<msg::UsageT>();
  done->usage->output_tokens = first + 2;
  done->timings = std::make_unique<msg::Timings>(1, 2, 3, 4, 5, 6, 21);
  s.ends.push_back(std::move(done));
  return s;
}
inline std::vector<uint8_t> books(bool gpu) {
  msg::WorkerBooksT b;
  auto slot = std::make_unique<msg::SlotBooksT>();
  slot->peer = gpu ? "tokenizer-worker.0" : "gpu-worker.0";
  slot->peer_instance = 11;
  slot->commands = 128;
  if (gpu) {
    b.gpu = std::make_unique<msg::GpuWorkerBooksT>();
    b.gpu->sequences.emplace_back(1, 0, 2, msg::SequencePhase::running, true);
    b.gpu->slots.push_back(std::move(slot));
    b.gpu->fault = "lane 1 has 2 holders";
  } else {
    b.tokenizer = std::make_unique<msg::TokenizerWorkerBooksT>();
    b.tokenizer->streams.emplace_back(1, 0, msg::StreamPhase::running);
    b.tokenizer->queries = {3};
    b.tokenizer->slots.push_back(std::move(slot));
  }
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(msg::WorkerBooks::Pack(builder, &b));
  return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}
inline msg::AuditedT audited(uint64_t tag, bool gpu) {
  msg::AuditedT a;
  a.tag = tag;
  a.books = books(gpu);
  return a;
}
inline msg::AuditReplyT audit_reply() {
  msg::AuditReplyT a;
  a.tag = 4;
  a.router = std::make_unique<msg::RouterBooksT>();
  a.router->requests.emplace_back(1, 1, 0, msg::RequestPhase::running);
  a.router->queries = {3};
  for (const bool gpu : {true, false}) {
    a.workers.push_back(std::make_unique<msg::AuditedWorkerT>());
    a.workers.back()->name = gpu ? "gpu-worker.0" : "tokenizer-worker.0";
    a.workers.back()->gpu = gpu;
    a.workers.back()->state = "ready";
    a.workers.back()->books = books(gpu);
  }
  a.workers.back()->linked.push_back(std::make_unique<msg::LinkedToT>());
  a.workers.back()->linked.back()->gpu_worker = "gpu-worker.0";
  return a;
}
inline msg::AuditQueryT audit_query(uint64_t tag) {
  msg::AuditQueryT q;
  q.tag = tag;
  return q;
}
inline msg::StatusReplyT status_reply() {
  msg::StatusReplyT s;
  s.incarnation = 2;
  s.ready = true;
  s.model = "tiny";
  s.workers.push_back(std::make_unique<msg::WorkerStatusT>());
  s.workers[0]->kind = "gpu-worker";
  s.workers[0]->name = "gpu-worker.0";
  s.workers[0]->state = "ready";
  s.counters.push_back(std::make_unique<msg::CounterT>());
  s.counters[0]->name = "requests";
  return s;
}

struct Named {
  const char* name;
  std::string bytes;
};
inline std::vector<Named> router_messages() {
  using router::epoch;
  return {{"generate_text", text_of(pack(router::text_request(1)))},
          {"generate_full", text_of(pack(full_request(2)))},
          {"generate_resumed", text_of(pack(resumed_request(3)))},
          {"acks", text_of(pack(acks(1, 2, 2)))},
          {"cancel", text_of(pack(cancel(1)))},
          {"ping", text_of(pack(msg::PingT()))},
          {"status_query", text_of(pack(msg::StatusQueryT()))},
          {"tokenize", text_of(pack(tokenize()))},
          {"register_gpu", text_of(pack(registration(msg::WorkerKind::gpu_worker, "gpu-worker.1", 12)))},
          {"register_tok",
           text_of(pack(registration(msg::WorkerKind::tokenizer_worker, "tokenizer-worker.1", 22)))},
          {"heartbeat", text_of(pack(heartbeat(11)))},
          {"linked", text_of(pack(linked("gpu-worker.0", 11, true)))},
          {"streams",
           text_of(pack(streams("client-a", {{epoch(1), 1, 0, {5, 6}, 0, "ab"}}, {{epoch(1), 1, 2}})))},
          {"tokenized", text_of(pack(tokenized(1)))},
          {"audit_query", text_of(pack(audit_query(4)))},
          {"audited_tok", text_of(pack(audited(1, false)))},
          {"audited_gpu", text_of(pack(audited(1, true)))}};
}
inline std::vector<Named> client_messages() {
  msg::RejectedT rejected;
  rejected.code = msg::Code::malformed;
  rejected.message = "no";
  msg::PongT pong;
  pong.incarnation = 1;
  msg::TokenizeReplyT reply;
  reply.tag = 1;
  reply.ids = {1, 2};
  return {{"accepted", to_client(accepted(1))},     {"stream", to_client(stream(1, 0, 0, true))},
          {"rejected", to_client(rejected)},        {"pong", to_client(pong)},
          {"status", to_client(status_reply())},    {"tokenize_reply", to_client(reply)},
          {"audit_reply", to_client(audit_reply())}};
}
inline std::vector<Named> tokenizer_messages() {
  msg::ForgetT forget;
  forget.epoch = 1;
  msg::AuditT audit;
  audit.tag = 1;
  return {{"gpu_workers", to_tokenizer(gpu_workers(1, 8))},
          {"assign", to_tokenizer(assign(1, router::text_request(1)))},
          {"assign_full", to_tokenizer(assign(2, full_request(2)))},
          {"assign_resumed", to_tokenizer(assign(3, resumed_request(3)))},
          {"acked", to_tokenizer(acked(1, 1, 1))},
          {"resend", to_tokenizer(resend(1))},
          {"end", to_tokenizer(end(1))},
          {"forget", to_tokenizer(forget)},
          {"query", to_tokenizer(query())},
          {"drain", to_tokenizer(msg::DrainT())},
          {"audit", to_tokenizer(audit)}};
}
inline std::vector<Named> gpu_messages() {
  msg::RegisteredT registered;
  registered.incarnation = 3;
  msg::AuditGpuWorkerT audit;
  audit.tag = 1;
  return {{"registered", sealed<msg::GpuWorkerMessage>(registered)},
          {"drain", sealed<msg::GpuWorkerMessage>(msg::DrainGpuWorkerT())},
          {"audit", sealed<msg::GpuWorkerMessage>(audit)}};
}
inline const std::string& of(const std::vector<Named>& messages, std::string_view name) {
  for (const Named& m : messages)
    if (m.name == name) return m.bytes;
  std::abort();
}

}  // namespace ringmaster::fuzz
