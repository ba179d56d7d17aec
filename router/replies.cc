#include "router/replies.h"

#include <utility>

#include "base/log.h"

namespace ringmaster::router {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;

// Above this a message gets a builder of its own: the reused one keeps the largest size it ever had.
constexpr size_t kReusedBytes = 64 << 10;

flatbuffers::Offset<flatbuffers::Vector<uint8_t>> bytes(Builder& b, std::string_view data) {
  return b.CreateVector(reinterpret_cast<const uint8_t*>(data.data()), data.size());
}

flatbuffers::Offset<flatbuffers::String> text(Builder& b, std::string_view data) {
  return b.CreateString(data.data(), data.size());
}

actor::Bytes stream_of_one(Builder& b, flatbuffers::Offset<msg::Done> done) {
  const auto stream = msg::CreateStream(b, 0, b.CreateVector(&done, 1));
  return msg::seal<msg::ClientMessage>(b, msg::ClientBody::Stream, stream.Union());
}

std::vector<std::byte> copy_of(actor::Bytes bytes) {
  return {bytes.begin(), bytes.end()};
}

template <typename Table>
actor::Bytes for_tokenizer(Builder& b, msg::TokenizerWorkerBody type, flatbuffers::Offset<Table> body) {
  return msg::seal<msg::TokenizerWorkerMessage>(b, type, body.Union());
}

actor::Bytes for_gpu_worker(Builder& b, flatbuffers::Offset<msg::Registered> body) {
  return msg::seal<msg::GpuWorkerMessage>(b, msg::GpuWorkerBody::Registered, body.Union());
}

std::pair<msg::Prompt, flatbuffers::Offset<void>> copy_prompt(Builder& b, const msg::Tokenize& query) {
  switch (query.prompt_type()) {
    case msg::Prompt::TextPrompt:
      return {msg::Prompt::TextPrompt,
              msg::CreateTextPrompt(b, text(b, query.prompt_as_TextPrompt()->text()->string_view())).Union()};
    case msg::Prompt::IdsPrompt: {
      const auto* ids = query.prompt_as_IdsPrompt()->ids();
      return {msg::Prompt::IdsPrompt,
              msg::CreateIdsPrompt(b, b.CreateVector(ids->data(), ids->size())).Union()};
    }
    case msg::Prompt::ChatPrompt: {
      std::vector<flatbuffers::Offset<msg::ChatMessage>> messages;
      const auto* chat = query.prompt_as_ChatPrompt();
      messages.reserve(chat->messages()->size());
      for (const auto* m : *chat->messages())
        messages.push_back(msg::CreateChatMessage(b, text(b, m->role()->string_view()),
                                                  text(b, m->content()->string_view())));
      return {msg::Prompt::ChatPrompt,
              msg::CreateChatPrompt(b, b.CreateVector(messages), chat->add_generation_prompt()).Union()};
    }
    case msg::Prompt::NONE:
      break;
  }
  return {msg::Prompt::NONE, 0};  // admission lets no other kind pass
}

}  // namespace

Builder& Replies::fresh() {
  builder_.Clear();
  return builder_;
}

actor::Sent Replies::to_client(std::string_view route, actor::Bytes message) {
  const actor::Sent sent = outbox_.send(kClientChannel, route, message);
  if (sent != actor::Sent::kOk) lost_clients_.emplace_back(route);
  if (sent == actor::Sent::kFull) counters_.add(Counter::kSendsFull);
  return sent;
}

actor::Sent Replies::offer_worker(std::string_view peer, actor::Bytes message) {
  const actor::Sent sent = outbox_.send(kWorkerChannel, peer, message);
  if (sent == actor::Sent::kUnreachable) lost_workers_.emplace_back(peer);
  if (sent == actor::Sent::kFull) counters_.add(Counter::kSendsFull);
  return sent;
}

void Replies::to_worker(std::string_view peer, actor::Bytes message) {
  if (offer_worker(peer, message) == actor::Sent::kFull) lost_workers_.emplace_back(peer);
}

// ---- to clients ----

void Replies::accepted(const Request& request, bool resumed, uint32_t next_token) {
  Builder& b = fresh();
  const msg::Uid uid = msg::to_wire(request.uid);
  const auto body = msg::CreateAccepted(b, &uid, request.epoch, request.seed, resumed, next_token);
  to_client(request.route(), msg::seal<msg::ClientMessage>(b, msg::ClientBody::Accepted, body.Union()));
}

void Replies::refused(std::string_view route, Uid uid, const Error& error) {
  Builder& b = fresh();
  const msg::Uid wire = msg::to_wire(uid);
  const auto message = text(b, error.message);
  const auto usage = msg::CreateUsage(b);
  const auto done =
      msg::CreateDone(b, &wire, 0, msg::FinishReason::refused, msg::to_wire(error.code), message, 0, usage);
  to_client(route, stream_of_one(b, done));
}

void Replies::rejected(std::string_view route, const Error& error) {
  Builder& b = fresh();
  const auto body = msg::CreateRejected(b, msg::to_wire(error.code), text(b, error.message));
  to_client(route, msg::seal<msg::ClientMessage>(b, msg::ClientBody::Rejected, body.Union()));
}

void Replies::pong(std::string_view route) {
  Builder& b = fresh();
  const auto body = msg::CreatePong(b, incarnation_);
  to_client(route, msg::seal<msg::ClientMessage>(b, msg::ClientBody::Pong, body.Union()));
}

void Replies::tokenize_reply(std::string_view route, uint64_t tag, const flatbuffers::Vector<uint32_t>* ids,
                             Code code, std::string_view message) {
  Builder own(ids ? ids->size() * sizeof(uint32_t) + 256 : 256);
  const auto copied = ids ? own.CreateVector(ids->data(), ids->size()) : 0;
  const auto said = text(own, message);
  const auto body = msg::CreateTokenizeReply(own, tag, copied, msg::to_wire(code), said);
  to_client(route, msg::seal<msg::ClientMessage>(own, msg::ClientBody::TokenizeReply, body.Union()));
}

std::vector<std::byte> Replies::make_done(const Request& request, const Ending& ending, Nanos now) {
  Builder& b = fresh();
  const msg::Uid uid = msg::to_wire(request.uid);
  const auto message = text(b, ending.message);
  const auto usage = msg::CreateUsage(b, 0, 0, request.sent_tokens);
  // Stages are known only to the workers; of a request that never reached them all time was spent here.
  const auto total = static_cast<uint64_t>(now - request.received_at);
  const msg::Timings timings(total, 0, 0, 0, 0, 0, total);
  return copy_of(
      stream_of_one(b, msg::CreateDone(b, &uid, request.epoch, ending.reason, msg::to_wire(ending.code),
                                       message, 0, usage, request.assigned_at == 0 ? &timings : nullptr)));
}

std::vector<std::byte> Replies::copy_done(const msg::Done& done) {
  Builder& b = fresh();
  msg::DoneT copy;
  done.UnPackTo(&copy);
  return copy_of(stream_of_one(b, msg::CreateDone(b, &copy)));
}

actor::Sent Replies::rebuilt(std::string_view route, const std::vector<const msg::Chunk*>& chunks,
                             const std::vector<const msg::Done*>& ends) {
  Builder own(4096);
  std::vector<flatbuffers::Offset<msg::Chunk>> chunk_offsets;
  std::vector<flatbuffers::Offset<msg::Done>> end_offsets;
  for (const msg::Chunk* chunk : chunks) {
    msg::ChunkT copy;
    chunk->UnPackTo(&copy);
    chunk_offsets.push_back(msg::CreateChunk(own, &copy));
  }
  for (const msg::Done* done : ends) {
    msg::DoneT copy;
    done->UnPackTo(&copy);
    end_offsets.push_back(msg::CreateDone(own, &copy));
  }
  const auto chunk_vector = own.CreateVector(chunk_offsets);
  const auto stream = msg::CreateStream(own, chunk_vector, own.CreateVector(end_offsets));
  return to_client(route, msg::seal<msg::ClientMessage>(own, msg::ClientBody::Stream, stream.Union()));
}

// ---- to workers ----

actor::Sent Replies::assign(const Request& request, actor::Bytes generate, uint32_t context_length) {
  Builder own(generate.size() <= kReusedBytes ? 16 : generate.size() + 1024);
  Builder& b = generate.size() <= kReusedBytes ? fresh() : own;
  const auto client = bytes(b, request.route());
  const auto gpu = text(b, request.gpu->name);
  b.ForceVectorAlignment(generate.size(), 1, 8);  // the nested message has 64-bit fields
  const auto nested = b.CreateVector(reinterpret_cast<const uint8_t*>(generate.data()), generate.size());
  const auto body = msg::CreateAssign(b, request.epoch, client, gpu, request.gpu->instance, request.seed,
                                      static_cast<uint64_t>(request.received_at),
                                      static_cast<uint64_t>(request.assigned_at),
                                      static_cast<uint64_t>(request.deadline_at), nested, context_length);
  return offer_worker(request.tokenizer->peer, for_tokenizer(b, msg::TokenizerWorkerBody::Assign, body));
}

void Replies::acked(const std::vector<AckToForward>& acks) {
  Builder& b = fresh();
  std::vector<flatbuffers::Offset<msg::EpochAck>> offsets;
  offsets.reserve(acks.size());
  for (const AckToForward& ack : acks)
    offsets.push_back(msg::CreateEpochAck(b, ack.epoch, ack.next_token, ack.text_offset));
  const auto body = msg::CreateAckedEpochs(b, b.CreateVector(offsets));
  to_worker(acks.front().worker->peer, for_tokenizer(b, msg::TokenizerWorkerBody::AckedEpochs, body));
}

void Replies::resend(const Request& request, uint32_t next_token, uint64_t text_offset) {
  Builder& b = fresh();
  const auto body = msg::CreateResend(b, request.epoch, bytes(b, request.route()), next_token, text_offset);
  to_worker(request.tokenizer->peer, for_tokenizer(b, msg::TokenizerWorkerBody::Resend, body));
}

void Replies::end(const Request& request, const Ending& ending) {
  Builder& b = fresh();
  const auto body =
      msg::CreateEnd(b, request.epoch, ending.reason, msg::to_wire(ending.code), text(b, ending.message));
  to_worker(request.tokenizer->peer, for_tokenizer(b, msg::TokenizerWorkerBody::End, body));
}

void Replies::forget(const Worker& worker, Epoch epoch) {
  Builder& b = fresh();
  to_worker(worker.peer, for_tokenizer(b, msg::TokenizerWorkerBody::Forget, msg::CreateForget(b, epoch)));
}

actor::Sent Replies::tokenize_query(const Worker& worker, uint64_t tag, const msg::Tokenize& query) {
  Builder own(4096);
  const auto [type, prompt] = copy_prompt(own, query);
  const auto body = msg::CreateTokenizeQuery(own, tag, type, prompt);
  return offer_worker(worker.peer, for_tokenizer(own, msg::TokenizerWorkerBody::TokenizeQuery, body));
}

actor::Sent Replies::audit(const Worker& worker, uint64_t tag) {
  Builder& b = fresh();
  if (!worker.is_gpu())
    return offer_worker(worker.peer,
                        for_tokenizer(b, msg::TokenizerWorkerBody::Audit, msg::CreateAudit(b, tag)));
  const auto body = msg::CreateAuditGpuWorker(b, tag);
  return offer_worker(worker.peer,
                      msg::seal<msg::GpuWorkerMessage>(b, msg::GpuWorkerBody::AuditGpuWorker, body.Union()));
}

void Replies::gpu_workers(const Worker& tokenizer, const std::vector<WorkerPtr>& all) {
  Builder& b = fresh();
  std::vector<flatbuffers::Offset<msg::GpuWorker>> offsets;
  for (const WorkerPtr& worker : all)
    if (worker->is_gpu() && worker->usable())
      offsets.push_back(
          msg::CreateGpuWorker(b, text(b, worker->name), worker->instance, text(b, worker->ring_socket)));
  const auto body = msg::CreateGpuWorkers(b, incarnation_, b.CreateVector(offsets));
  to_worker(tokenizer.peer, for_tokenizer(b, msg::TokenizerWorkerBody::GpuWorkers, body));
}

void Replies::registered(const Worker& gpu) {
  Builder& b = fresh();
  to_worker(gpu.peer, for_gpu_worker(b, msg::CreateRegistered(b, incarnation_)));
}

void Replies::register_again(std::string_view peer, msg::WorkerKind kind) {
  Builder& b = fresh();
  constexpr uint32_t kUnknown = 0;
  if (kind == msg::WorkerKind::gpu_worker)
    to_worker(peer, for_gpu_worker(b, msg::CreateRegistered(b, kUnknown)));
  else
    to_worker(peer,
              for_tokenizer(b, msg::TokenizerWorkerBody::GpuWorkers, msg::CreateGpuWorkers(b, kUnknown)));
}

}  // namespace ringmaster::router
