// A tokenizer-worker's insides without processes, sockets and threads: real rings, real encode pool (run by
// hand), a clock that the test moves, and an outbox that takes apart what would be sent.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/tokenizer-worker/worker/fake_gpu.h"
#include "tests/tokenizer-worker/worker/tiny_tokenizer.h"
#include "tokenizer-worker/requests.h"

namespace ringmaster::tokenizer_worker {

inline actor::Bytes bytes_of(const flatbuffers::FlatBufferBuilder& b) {
  return {reinterpret_cast<const std::byte*>(b.GetBufferPointer()), b.GetSize()};
}

// What the router receives, opened; streams sorted by client.
class SeenOutbox final : public actor::Outbox {
 public:
  struct Piece {
    std::string client;
    msg::ChunkT chunk;
  };
  struct End {
    std::string client;
    msg::DoneT done;
  };

  actor::Sent send(actor::Channel, std::string_view, actor::Bytes message) override {
    if (full) return actor::Sent::kFull;
    ++messages;
    const auto opened = msg::open<msg::RouterMessage>(message);
    EXPECT_TRUE(opened) << opened.error().message;
    if (!opened) return actor::Sent::kOk;
    const msg::RouterMessage* body = *opened;
    if (const auto* streams = body->body_as_Streams())
      take(*streams);
    else
      others.push_back(std::unique_ptr<msg::RouterMessageT>(body->UnPack()));
    return actor::Sent::kOk;
  }

  // Pieces of one epoch put together; fails on gaps, repeats and text that is not UTF-8.
  struct Whole {
    uint32_t first_token = 0;
    std::vector<TokenId> ids;
    std::string text;
    std::vector<msg::DoneT> dones;
  };
  Whole whole(Epoch epoch, const std::string& client = "client-a") const {
    Whole whole;
    bool first = true;
    uint64_t offset = 0;
    for (const Piece& piece : pieces) {
      if (piece.chunk.epoch != epoch || piece.client != client) continue;
      if (std::exchange(first, false)) {
        whole.first_token = piece.chunk.first_token;
        offset = piece.chunk.text_offset;
      }
      EXPECT_EQ(piece.chunk.first_token, whole.first_token + whole.ids.size());
      EXPECT_EQ(piece.chunk.text_offset, offset + whole.text.size());
      whole.ids.insert(whole.ids.end(), piece.chunk.ids.begin(), piece.chunk.ids.end());
      whole.text += piece.chunk.text;
    }
    for (const End& end : ends)
      if (end.done.epoch == epoch && end.client == client) whole.dones.push_back(end.done);
    return whole;
  }
  // The only Done of this epoch.
  msg::DoneT done(Epoch epoch, const std::string& client = "client-a") const {
    const Whole w = whole(epoch, client);
    EXPECT_EQ(w.dones.size(), 1u);
    return w.dones.empty() ? msg::DoneT() : w.dones.front();
  }
  void clear() {
    pieces.clear();
    ends.clear();
    others.clear();
    messages = 0;
  }

  bool full = false;
  int messages = 0;
  std::vector<Piece> pieces;
  std::vector<End> ends;
  std::vector<std::unique_ptr<msg::RouterMessageT>> others;

 private:
  void take(const msg::Streams& streams) {
    std::map<std::string, int> seen;
    for (const msg::ToClient* to : *streams.to()) {
      const std::string client(to->client()->begin(), to->client()->end());
      const auto payload = msg::open<msg::ClientMessage>(
          {reinterpret_cast<const std::byte*>(to->payload()->data()), to->payload()->size()});
      ASSERT_TRUE(payload) << payload.error().message;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(to->payload()->data()) % 8, 0u) << "nested messages are aligned";
      std::unique_ptr<msg::ClientMessageT> message((*payload)->UnPack());
      auto* stream = message->body.AsStream();
      ASSERT_NE(stream, nullptr);
      for (auto& chunk : stream->chunks) pieces.push_back({client, *chunk});
      for (auto& done : stream->ends) ends.push_back({client, *done});
    }
  }
};

struct WorldOptions {
  RequestLimits limits = {.context_length = 256, .max_live = 64, .credit = 8};
  TinyTokenizer::Bos bos = TinyTokenizer::Bos::kAdded;
  size_t encode_queue = 8;
  shm::SlotSizes ring_sizes = {64 << 10, 256 << 10, 256 << 10};
  LinkLimits link_limits = {};
  bool linked = true;  // to `gpu` as "gpu-worker.0", instance 7
};

// "<user>ROLE\nCONTENT<end>" for each message, then "<bot>"; roles and contents are the conversation's.
inline Result<std::vector<RenderedSpan>> render_tiny_chat(const nlohmann::ordered_json& context) {
  std::vector<RenderedSpan> spans;
  for (const auto& message : context["messages"]) {
    spans.push_back({"<user>", true});
    spans.push_back({message["role"].get<std::string>(), false});
    spans.push_back({"\n", true});
    spans.push_back({message["content"].get<std::string>(), false});
    spans.push_back({"<end>", true});
  }
  if (context["add_generation_prompt"].get<bool>()) spans.push_back({"<bot>", true});
  return spans;
}

class World {
 public:
  explicit World(WorldOptions options = {})
      : tokenizer(options.bos),
        bell(shm::Doorbell::create().value()),
        builder(tokenizer, render_tiny_chat),
        pool(builder, 0, options.encode_queue, bell),
        links(options.link_limits),
        gpu(7, options.ring_sizes),
        requests(options.limits, tokenizer, pool, links, outbox, counters) {
    if (options.linked) link = links.add("gpu-worker.0", 7, gpu.take_end());
  }

  static msg::GenerateT text_request(const std::string& text) {
    msg::GenerateT request;
    request.uid = std::make_unique<msg::Uid>(1, 2);
    msg::TextPromptT prompt;
    prompt.text = text;
    request.prompt.Set(std::move(prompt));
    return request;
  }

  void assign(Epoch epoch, const msg::GenerateT& request, const std::string& client = "client-a",
              const std::string& gpu_worker = "gpu-worker.0", uint64_t instance = 7) {
    msg::AssignT assign;
    assign.epoch = epoch;
    assign.client.assign(client.begin(), client.end());
    assign.gpu_worker = gpu_worker;
    assign.gpu_instance = instance;
    assign.seed = 99;
    assign.received_at = static_cast<uint64_t>(now);
    assign.assigned_at = static_cast<uint64_t>(now);
    assign.context_length = cluster_context;
    assign.request = sealed(request);
    flatbuffers::FlatBufferBuilder b;
    b.Finish(msg::CreateAssign(b, &assign));
    requests.assign(*flatbuffers::GetRoot<msg::Assign>(b.GetBufferPointer()), now);
  }
  // An Assign's parts for tests that send it through the actor's door.
  static std::vector<uint8_t> sealed(const msg::GenerateT& request) {
    flatbuffers::FlatBufferBuilder b;
    msg::seal<msg::RouterMessage>(b, msg::RouterBody::Generate, msg::CreateGenerate(b, &request).Union());
    return {b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize()};
  }
  // The pool's threads and the mailbox in one go.
  void encode() {
    while (pool.run_one()) {
    }
    while (auto encoded = pool.take()) requests.encoded(encoded->ticket.number, std::move(encoded->ids), now);
  }
  // Assigned, encoded, started; returns the start command.
  SeenCommand start(Epoch epoch, const msg::GenerateT& request, const std::string& client = "client-a") {
    assign(epoch, request, client);
    encode();
    turn();
    auto seen = gpu.commands();
    EXPECT_EQ(seen.size(), 1u);
    return seen.empty() ? SeenCommand() : seen.front();
  }
  void turn() {
    while (requests.read_rings(now)) {
    }
    for (const LostLink& lost : links.take_lost()) {
      lost_links.push_back(lost.why);
      requests.link_lost(lost.link.id, lost.why, now);
    }
    requests.run_timers(now);
    requests.flush(now);
  }
  void pass(Nanos time) {
    now += time;
    turn();
  }
  void ack(Epoch epoch, uint32_t next_token, uint64_t text_offset) {
    msg::AckedEpochsT acks;
    acks.acks.push_back(std::make_unique<msg::EpochAckT>());
    acks.acks[0]->epoch = epoch;
    acks.acks[0]->next_token = next_token;
    acks.acks[0]->text_offset = text_offset;
    flatbuffers::FlatBufferBuilder b;
    b.Finish(msg::CreateAckedEpochs(b, &acks));
    requests.acknowledge(*flatbuffers::GetRoot<msg::AckedEpochs>(b.GetBufferPointer()));
  }
  void resend(Epoch epoch, uint32_t next_token, uint64_t text_offset, const std::string& client) {
    msg::ResendT resend;
    resend.epoch = epoch;
    resend.client.assign(client.begin(), client.end());
    resend.next_token = next_token;
    resend.text_offset = text_offset;
    flatbuffers::FlatBufferBuilder b;
    b.Finish(msg::CreateResend(b, &resend));
    requests.resend(*flatbuffers::GetRoot<msg::Resend>(b.GetBufferPointer()), now);
  }
  void end(Epoch epoch, msg::FinishReason reason, msg::Code code = msg::Code::ok,
           const std::string& message = "") {
    flatbuffers::FlatBufferBuilder b;
    b.Finish(msg::CreateEnd(b, epoch, reason, code, b.CreateString(message)));
    requests.end(*flatbuffers::GetRoot<msg::End>(b.GetBufferPointer()), now);
  }
  // The books: every epoch ended once, or was forgotten, or lives.
  void expect_balanced() const {
    EXPECT_EQ(counters[Counter::kRequestsAssigned],
              counters[Counter::kRequestsEnded] + counters[Counter::kRequestsForgotten] + requests.live());
  }

  TinyTokenizer tokenizer;
  shm::Doorbell bell;
  PromptBuilder builder;
  EncodePool pool;
  RingLinks links;
  Counters counters;
  SeenOutbox outbox;
  FakeGpu gpu;
  Requests requests;
  LinkId link = 0;
  Nanos now = kSecond;
  uint32_t cluster_context = 0;  // what assign() says of it; 0: nothing
  std::vector<std::string> lost_links;
};

}  // namespace ringmaster::tokenizer_worker
