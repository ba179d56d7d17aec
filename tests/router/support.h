// The router on a fake clock between hand-made peers: what it sends is kept per peer and read as one line of
// text a message, so that expectations are literal. An epoch is written incarnation:counter.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "router/router.h"
#include "schemas/codec.h"

namespace ringmaster::router {

using Lines = std::vector<std::string>;
using Message = std::vector<std::byte>;

inline Uid uid(uint64_t n) {
  return {n, n ^ 0xABCD};
}
inline Epoch epoch(uint32_t counter, uint32_t incarnation = 1) {
  return (Epoch{incarnation} << 32) | counter;
}

template <typename Body>
Message pack(Body body) {
  msg::RouterMessageT message;
  message.version = msg::kVersion;
  message.body.Set(std::move(body));
  flatbuffers::FlatBufferBuilder b;
  b.Finish(msg::RouterMessage::Pack(b, &message), msg::RouterMessageIdentifier());
  const auto* data = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
  return {data, data + b.GetSize()};
}

inline msg::GenerateT text_request(uint64_t n, const std::string& text = "Hi") {
  msg::GenerateT g;
  g.uid = std::make_unique<msg::Uid>(msg::to_wire(uid(n)));
  msg::TextPromptT prompt;
  prompt.text = text;
  g.prompt.Set(std::move(prompt));
  return g;
}

inline msg::GenerateT ids_request(uint64_t n, std::vector<uint32_t> ids) {
  msg::GenerateT g = text_request(n);
  msg::IdsPromptT prompt;
  prompt.ids = std::move(ids);
  g.prompt.Set(std::move(prompt));
  return g;
}

inline msg::GenerateT chat_request(uint64_t n,
                                   const std::vector<std::pair<std::string, std::string>>& turns) {
  msg::GenerateT g = text_request(n);
  msg::ChatPromptT prompt;
  for (const auto& [role, content] : turns) {
    auto message = std::make_unique<msg::ChatMessageT>();
    message->role = role;
    message->content = content;
    prompt.messages.push_back(std::move(message));
  }
  g.prompt.Set(std::move(prompt));
  return g;
}

inline msg::SamplingT& sampling(msg::GenerateT& g) {
  if (!g.sampling) g.sampling = std::make_unique<msg::SamplingT>();
  return *g.sampling;
}

// One piece or ending for a Stream.
struct Piece {
  Epoch epoch;
  uint64_t request;  // the n of uid(n)
  uint32_t first;
  std::vector<uint32_t> ids;
  uint64_t text_offset;
  std::string text;
};
struct End {
  Epoch epoch;
  uint64_t request;
  uint32_t output_tokens;
  msg::FinishReason reason = msg::FinishReason::stop;
};

inline std::unique_ptr<msg::ToClientT> to_client(const std::string& client, const std::vector<Piece>& pieces,
                                                 const std::vector<End>& ends = {}) {
  msg::StreamT stream;
  for (const Piece& p : pieces) {
    auto chunk = std::make_unique<msg::ChunkT>();
    chunk->uid = std::make_unique<msg::Uid>(msg::to_wire(uid(p.request)));
    chunk->epoch = p.epoch;
    chunk->first_token = p.first;
    chunk->ids = p.ids;
    chunk->text_offset = p.text_offset;
    chunk->text = p.text;
    stream.chunks.push_back(std::move(chunk));
  }
  for (const End& e : ends) {
    auto done = std::make_unique<msg::DoneT>();
    done->uid = std::make_unique<msg::Uid>(msg::to_wire(uid(e.request)));
    done->epoch = e.epoch;
    done->reason = e.reason;
    done->usage = std::make_unique<msg::UsageT>();
    done->usage->output_tokens = e.output_tokens;
    stream.ends.push_back(std::move(done));
  }
  msg::ClientMessageT message;
  message.version = msg::kVersion;
  message.body.Set(std::move(stream));
  flatbuffers::FlatBufferBuilder b;
  b.Finish(msg::ClientMessage::Pack(b, &message), msg::ClientMessageIdentifier());
  auto to = std::make_unique<msg::ToClientT>();
  to->client.assign(client.begin(), client.end());
  to->payload.assign(b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize());
  return to;
}

// ---- messages as text ----

inline std::string show(Epoch e) {
  return std::to_string(e >> 32) + ":" + std::to_string(e & 0xFFFFFFFF);
}
inline std::string show(const std::vector<uint32_t>& ids) {
  std::string out = "{";
  for (size_t i = 0; i < ids.size(); ++i) out += (i ? "," : "") + std::to_string(ids[i]);
  return out + "}";
}
inline std::string show(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}
inline std::string show(const msg::Uid* wire) {
  return std::to_string(wire->hi());
}

inline std::string show(const msg::StreamT& stream) {
  std::string out;
  for (const auto& c : stream.chunks)
    out += " piece " + show(c->uid.get()) + " " + show(c->epoch) + " @" + std::to_string(c->first_token) +
           show(c->ids) + " '" + c->text + "'@" + std::to_string(c->text_offset);
  for (const auto& d : stream.ends)
    out += " done " + show(d->uid.get()) + " " + show(d->epoch) + " " + msg::EnumNameFinishReason(d->reason) +
           " " + msg::EnumNameCode(d->code) + " " + std::to_string(d->usage ? d->usage->output_tokens : 0);
  return "Stream" + out;
}

inline std::string show(const msg::ClientBodyUnion& body) {
  if (const auto* a = body.AsAccepted())
    return "Accepted " + show(a->uid.get()) + " " + show(a->epoch) + (a->resumed ? " resumed" : "") +
           (a->next_token ? " next " + std::to_string(a->next_token) : "");
  if (const auto* s = body.AsStream()) return show(*s);
  if (const auto* r = body.AsRejected()) return std::string("Rejected ") + msg::EnumNameCode(r->code);
  if (const auto* p = body.AsPong()) return "Pong " + std::to_string(p->incarnation);
  if (const auto* t = body.AsTokenizeReply())
    return "TokenizeReply " + std::to_string(t->tag) + " " + show(t->ids) + " " + msg::EnumNameCode(t->code);
  return msg::EnumNameClientBody(body.type);
}

inline std::string show(const msg::TokenizerWorkerBodyUnion& body) {
  if (const auto* g = body.AsGpuWorkers()) {
    std::string out = "GpuWorkers " + std::to_string(g->incarnation);
    for (const auto& w : g->workers) out += " " + w->name + "/" + std::to_string(w->instance);
    return out;
  }
  if (const auto* a = body.AsAssign())
    return "Assign " + show(a->epoch) + " " + a->gpu_worker + " for " + show(a->client);
  if (const auto* a = body.AsAckedEpochs()) {
    std::string out = "AckedEpochs";
    for (const auto& e : a->acks)
      out +=
          " " + show(e->epoch) + " " + std::to_string(e->next_token) + "/" + std::to_string(e->text_offset);
    return out;
  }
  if (const auto* r = body.AsResend())
    return "Resend " + show(r->epoch) + " to " + show(r->client) + " from " + std::to_string(r->next_token) +
           "/" + std::to_string(r->text_offset);
  if (const auto* e = body.AsEnd())
    return "End " + show(e->epoch) + " " + msg::EnumNameFinishReason(e->reason) + " " +
           msg::EnumNameCode(e->code);
  if (const auto* f = body.AsForget()) return "Forget " + show(f->epoch);
  if (const auto* t = body.AsTokenizeQuery()) return "TokenizeQuery " + std::to_string(t->tag);
  return msg::EnumNameTokenizerWorkerBody(body.type);
}

// ---- the network ----

class Network : public actor::Outbox {
 public:
  actor::Sent send(actor::Channel channel, std::string_view peer, actor::Bytes message) override {
    const std::string name(peer);
    if (unreachable.count(name)) return actor::Sent::kUnreachable;
    if (full.count(name)) return actor::Sent::kFull;
    boxes[{channel, name}].emplace_back(message.begin(), message.end());
    return actor::Sent::kOk;
  }
  std::deque<Message> take(actor::Channel channel, const std::string& peer) {
    return std::exchange(boxes[{channel, peer}], {});
  }

  std::set<std::string> unreachable, full;
  std::map<std::pair<actor::Channel, std::string>, std::deque<Message>> boxes;
};

// ---- the router and its peers ----

inline constexpr const char* kTok = "tokenizer-worker.0";
inline constexpr const char* kTok1 = "tokenizer-worker.1";
inline constexpr const char* kGpu = "gpu-worker.0";
inline constexpr const char* kGpu1 = "gpu-worker.1";

class RouterTest : public testing::Test {
 protected:
  RouterTest() { restart({}); }

  // A new router with these options; the network keeps what the former one sent.
  void restart(RouterOptions options) {
    router = std::make_unique<Router>(net, options);
    options_ = options;
    tick();
  }

  void tick() { next_ = router->run_timers(now); }
  // Lets time pass as the loop would: the router is called whenever it asked to be.
  void advance(Nanos duration) {
    const Nanos until = now + duration;
    while (next_ <= until) {
      now = std::max(now, next_);
      tick();
    }
    now = until;
    tick();
  }
  // Workers stay alive meanwhile.
  void advance_alive(Nanos duration) {
    for (Nanos left = duration; left > 0; left -= std::min(left, kSecond)) {
      for (const auto& [name, instance] : instances) heartbeat(name);
      advance(std::min(left, kSecond));
    }
  }

  void raw(actor::Channel channel, const std::string& peer, const Message& bytes) {
    router->receive(channel, peer, bytes, now);
    tick();
  }
  template <typename Body>
  void client(const std::string& name, Body body) {
    raw(kClientChannel, name, pack(std::move(body)));
  }
  template <typename Body>
  void worker(const std::string& name, Body body) {
    raw(kWorkerChannel, name, pack(std::move(body)));
  }

  void ack(const std::string& name, uint64_t request, uint32_t next_token, uint64_t text_offset) {
    msg::AcksT acks;
    acks.acks.push_back(std::make_unique<msg::AckT>());
    acks.acks[0]->uid = std::make_unique<msg::Uid>(msg::to_wire(uid(request)));
    acks.acks[0]->next_token = next_token;
    acks.acks[0]->text_offset = text_offset;
    client(name, std::move(acks));
  }
  void cancel(const std::string& name, uint64_t request) {
    msg::CancelT cancel;
    cancel.uid = std::make_unique<msg::Uid>(msg::to_wire(uid(request)));
    client(name, std::move(cancel));
  }

  static msg::RegisterT registration(const std::string& name, uint64_t instance, uint32_t max_live = 0) {
    msg::RegisterT r;
    const bool gpu = name.rfind("gpu", 0) == 0;
    r.kind = gpu ? msg::WorkerKind::gpu_worker : msg::WorkerKind::tokenizer_worker;
    r.name = name;
    r.pid = 100;
    r.instance = instance;
    r.model = std::make_unique<msg::ModelInfoT>();
    r.model->name = "tiny";
    r.model->weights_hash = 5;
    r.model->vocab_size = 1000;
    r.model->context_length = 64;
    if (gpu) r.device = "fake";
    if (gpu) r.ring_socket = "/run/" + name + ".ring";
    r.max_live = max_live;
    return r;
  }
  void add(const std::string& name, uint64_t instance, uint32_t max_live = 0) {
    instances[name] = instance;
    worker(name, registration(name, instance, max_live));
  }
  void link(const std::string& tokenizer, const std::string& gpu, bool up = true) {
    msg::LinkedT l;
    l.gpu_worker = gpu;
    l.gpu_instance = instances[gpu];
    l.up = up;
    worker(tokenizer, std::move(l));
  }
  void heartbeat(const std::string& name) {
    msg::HeartbeatT h;
    h.instance = instances[name];
    h.kind = name.rfind("gpu", 0) == 0 ? msg::WorkerKind::gpu_worker : msg::WorkerKind::tokenizer_worker;
    worker(name, std::move(h));
  }
  // One tokenizer-worker linked to one gpu-worker; their greetings are thrown away.
  void start_pair(uint32_t max_live = 0) {
    add(kTok, 21);
    add(kGpu, 11, max_live);
    link(kTok, kGpu);
    at_tok();
    net.take(kWorkerChannel, kGpu);
  }
  void streams(const std::string& name, std::unique_ptr<msg::ToClientT> to) {
    msg::StreamsT s;
    s.to.push_back(std::move(to));
    worker(name, std::move(s));
  }
  // Starts request n for `name` with n tokens of text behind it: the common opening of many tests.
  void run_request(const std::string& name, uint64_t n) {
    client(name, text_request(n));
    at(name);
    at_tok();
  }

  // What a peer has got since it was last asked.
  Lines at(const std::string& name) {
    Lines out;
    for (const Message& bytes : net.take(kClientChannel, name)) {
      const auto opened = msg::open<msg::ClientMessage>(bytes);
      EXPECT_TRUE(opened.ok()) << "the router sent a message that does not open";
      if (!opened.ok()) continue;
      msg::ClientMessageT message;
      (*opened)->UnPackTo(&message);
      out.push_back(show(message.body));
    }
    return out;
  }
  Lines at_tok(const std::string& name = kTok) {
    Lines out;
    for (const Message& bytes : net.take(kWorkerChannel, name)) {
      const auto opened = msg::open<msg::TokenizerWorkerMessage>(bytes);
      EXPECT_TRUE(opened.ok()) << "the router sent a message that does not open";
      if (!opened.ok()) continue;
      msg::TokenizerWorkerMessageT message;
      (*opened)->UnPackTo(&message);
      out.push_back(show(message.body));
    }
    return out;
  }
  Lines at_gpu(const std::string& name = kGpu) {
    Lines out;
    for (const Message& bytes : net.take(kWorkerChannel, name)) {
      const auto opened = msg::open<msg::GpuWorkerMessage>(bytes);
      EXPECT_TRUE(opened.ok()) << "the router sent a message that does not open";
      if (!opened.ok()) continue;
      out.push_back((*opened)->body_type() == msg::GpuWorkerBody::Registered
                        ? "Registered " + std::to_string((*opened)->body_as_Registered()->incarnation())
                        : "other");
    }
    return out;
  }
  // The ending of a request that was refused or ended without output, for its code and message.
  msg::DoneT done_at(const std::string& name) {
    msg::DoneT out;
    for (const Message& bytes : net.take(kClientChannel, name)) {
      const auto opened = msg::open<msg::ClientMessage>(bytes);
      const auto* stream = (*opened)->body_as_Stream();
      if (stream && stream->ends() && stream->ends()->size() == 1) stream->ends()->Get(0)->UnPackTo(&out);
    }
    return out;
  }

  uint64_t count(Counter counter) const { return router->counters()[counter]; }
  void expect_books_balance() const {
    uint64_t ended = 0;
    for (int i = 0; i <= static_cast<int>(msg::FinishReason::MAX); ++i)
      ended += router->counters()[static_cast<Counter>(static_cast<int>(Counter::kEndedStop) + i)];
    EXPECT_EQ(count(Counter::kRequestsAccepted), ended + router->table().live());
    EXPECT_EQ(count(Counter::kImpossible), 0u);
    uint32_t placed = 0;
    for (const WorkerPtr& w : router->workers().all())
      if (w->is_gpu()) placed += w->live;
    EXPECT_EQ(placed + router->life().waiting(), router->table().live());
  }

  Network net;
  Nanos now = 1000 * kSecond;
  std::map<std::string, uint64_t> instances;
  RouterOptions options_;
  std::unique_ptr<Router> router;

 private:
  Nanos next_ = 0;
};

}  // namespace ringmaster::router
