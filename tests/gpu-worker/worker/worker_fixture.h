// A whole gpu-worker in one thread: real ring slots, the fake device on a clock that the test owns, and
// tokenizer ends written by hand that check what they receive. Time moves only in run_until().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/context_hash.h"
#include "gpu-worker/device/fake/fake_device.h"
#include "gpu-worker/gpu_worker.h"
#include "schemas/codec.h"
#include "shm/slot.h"

namespace ringmaster::gpu_worker {

inline constexpr uint32_t kVocab = 49152;
inline constexpr uint32_t kBlockTokens = 4;
inline constexpr Nanos kHeartbeat = 200 * kMillisecond;

inline std::vector<TokenId> make_prompt(uint32_t count, uint32_t salt = 0) {
  std::vector<TokenId> ids(count);
  for (uint32_t i = 0; i < count; ++i) ids[i] = (i * 7919 + salt * 104729 + 11) % kVocab;
  return ids;
}

inline std::vector<TokenId> expected_tokens(const std::vector<TokenId>& prompt, uint32_t count) {
  return context_hash::expected(prompt, kVocab, {}, count);
}

// A start command with its arrays; a test spoils what it likes.
struct Start {
  shm::StartRecord record{};
  std::vector<TokenId> prompt;
  std::vector<TokenId> stop_ids;
  std::vector<LogitBias> biases;
  shm::PromptRecord prompt_record{};

  Start(Epoch epoch, std::vector<TokenId> ids, uint32_t max_tokens) : prompt(std::move(ids)) {
    record.epoch = epoch;
    record.max_tokens = max_tokens;
    record.granted = 1 << 20;
    record.top_p = 1;
    record.repetition_penalty = 1;
    prompt_record.epoch = epoch;
    prompt_record.count = prompt_record.prompt_count = static_cast<uint32_t>(prompt.size());
  }
};

struct Stream {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<TopToken>> top;
  std::optional<shm::EndedRecord> ended;
  std::string message;
  int endings = 0;
};

// A tokenizer-worker's end of a slot. receive() fails the test on anything out of order.
class TokenizerSide {
 public:
  explicit TokenizerSide(shm::TokenizerEnd e) : end(std::move(e)) {}

  template <typename T>
  void put(shm::Producer& ring, shm::RecordType type, const T& record,
           const std::vector<std::byte>& rest = {}) {
    std::vector<std::byte> bytes(sizeof record + rest.size());
    std::memcpy(bytes.data(), &record, sizeof record);
    if (!rest.empty()) std::memcpy(bytes.data() + sizeof record, rest.data(), rest.size());
    put_raw(ring, static_cast<uint32_t>(type), bytes);
  }
  void put_raw(shm::Producer& ring, uint32_t type, const std::vector<std::byte>& bytes) {
    auto space = ring.try_reserve(type, bytes.size());
    ASSERT_TRUE(space.has_value()) << "ring full";
    if (!bytes.empty()) std::memcpy(space->data(), bytes.data(), bytes.size());
    ring.commit();
  }
  template <typename T>
  static void append(std::vector<std::byte>& to, const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    to.insert(to.end(), bytes, bytes + values.size() * sizeof(T));
  }

  void prompt(const Start& start) {
    std::vector<std::byte> ids;
    append(ids, start.prompt);
    put(end.prompts, shm::RecordType::kPrompt, start.prompt_record, ids);
  }
  void command(Start start) {
    std::vector<std::byte> arrays;
    append(arrays, start.stop_ids);
    append(arrays, start.biases);
    start.record.stop_id_count += static_cast<uint32_t>(start.stop_ids.size());
    start.record.bias_count += static_cast<uint32_t>(start.biases.size());
    put(end.commands, shm::RecordType::kStart, start.record, arrays);
  }
  void start(const Start& s) {
    prompt(s);
    command(s);
  }
  void start(Epoch epoch, const std::vector<TokenId>& ids, uint32_t max_tokens) {
    start(Start(epoch, ids, max_tokens));
  }
  void grant(Epoch epoch, uint32_t granted) {
    put(end.commands, shm::RecordType::kGrant, shm::GrantRecord{epoch, granted, 0});
  }
  void cancel(Epoch epoch) { put(end.commands, shm::RecordType::kCancel, shm::CancelRecord{epoch}); }
  void stop_at(Epoch epoch, uint32_t count) {
    put(end.commands, shm::RecordType::kStopAt, shm::StopAtRecord{epoch, count, 0});
  }

  // Reads everything there is into `streams`.
  bool receive() {
    bool any = false;
    while (auto record = end.tokens.peek()) {
      any = true;
      record->type == static_cast<uint32_t>(shm::RecordType::kTokens) ? tokens(record->payload)
                                                                      : ended(*record);
      end.tokens.pop();
    }
    EXPECT_FALSE(end.tokens.broken());
    return any;
  }

  const Stream& operator[](Epoch epoch) { return streams[epoch]; }
  bool has_ended(Epoch epoch) { return streams[epoch].ended.has_value(); }

  shm::TokenizerEnd end;
  std::map<Epoch, Stream> streams;
  uint64_t last_step = 0;
  uint64_t token_records = 0;

 private:
  void tokens(std::span<const std::byte> payload) {
    ++token_records;
    shm::TokensRecord head;
    ASSERT_GE(payload.size(), sizeof head);
    std::memcpy(&head, payload.data(), sizeof head);
    EXPECT_GE(head.step, last_step);
    last_step = head.step;
    std::vector<shm::TokenRow> rows(head.count);
    ASSERT_GE(payload.size(), sizeof head + rows.size() * sizeof(shm::TokenRow));
    std::memcpy(rows.data(), payload.data() + sizeof head, rows.size() * sizeof(shm::TokenRow));
    size_t at = sizeof head + rows.size() * sizeof(shm::TokenRow);
    for (const shm::TokenRow& row : rows) {
      Stream& stream = streams[row.epoch];
      EXPECT_FALSE(stream.ended) << "epoch " << row.epoch << ": a token after the ending";
      EXPECT_EQ(row.token_number, stream.tokens.size()) << "epoch " << row.epoch;
      std::vector<TopToken> top(row.top_count);
      ASSERT_GE(payload.size(), at + top.size() * 8);
      for (TopToken& t : top) {
        std::memcpy(&t.id, payload.data() + at, 4);
        std::memcpy(&t.logprob, payload.data() + at + 4, 4);
        at += 8;
      }
      stream.tokens.push_back(row.id);
      stream.logprobs.push_back(row.logprob);
      stream.top.push_back(std::move(top));
    }
    EXPECT_EQ(at, payload.size());
  }
  void ended(const shm::Record& record) {
    ASSERT_EQ(record.type, static_cast<uint32_t>(shm::RecordType::kEnded));
    shm::EndedRecord ending;
    ASSERT_GE(record.payload.size(), sizeof ending);
    std::memcpy(&ending, record.payload.data(), sizeof ending);
    ASSERT_EQ(record.payload.size(), sizeof ending + ending.message_size);
    Stream& stream = streams[ending.epoch];
    stream.message.assign(reinterpret_cast<const char*>(record.payload.data()) + sizeof ending,
                          ending.message_size);
    stream.ended = ending;
    EXPECT_EQ(++stream.endings, 1) << "epoch " << ending.epoch << " ended twice";
  }
};

// What the worker says to its router, verified.
class RouterSide : public actor::Outbox {
 public:
  actor::Sent send(actor::Channel channel, std::string_view peer, actor::Bytes message) override {
    EXPECT_EQ(channel, 0);
    EXPECT_EQ(peer, "");
    auto opened = msg::open<msg::RouterMessage>(message);
    EXPECT_TRUE(opened.ok());
    if (auto* body = (*opened)->body_as_Register()) registers.emplace_back().reset(body->UnPack());
    if (auto* body = (*opened)->body_as_Heartbeat()) heartbeats.emplace_back().reset(body->UnPack());
    if (auto* body = (*opened)->body_as_Audited()) audits.emplace_back().reset(body->UnPack());
    return actor::Sent::kOk;
  }
  std::vector<std::unique_ptr<msg::RegisterT>> registers;
  std::vector<std::unique_ptr<msg::HeartbeatT>> heartbeats;
  std::vector<std::unique_ptr<msg::AuditedT>> audits;
};

class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest() {
    config.device = "fake";
    config.block_tokens = kBlockTokens;
    config.kv_memory = 256 * kBlockTokens * kFakeKvBytesPerToken;
    config.max_running = 16;
    config.step_tokens = 64;
    config.prefill_chunk = 16;
    config.slots = 3;
    config.fake.vocab_size = kVocab;
    config.fake.context_length = 256;
    config.fake.step_time = 2 * kMillisecond;
    char path[] = "/tmp/rm-gpu-worker-XXXXXX";
    folder = mkdtemp(path);
  }
  ~WorkerTest() override {
    worker.reset();
    rmdir(folder.c_str());
  }

  void make(shm::SlotSizes sizes = {}) {
    auto made_bell = shm::Doorbell::create();
    ASSERT_TRUE(made_bell.ok()) << made_bell.error().message;
    bell = std::make_unique<shm::Doorbell>(std::move(made_bell).value());
    auto made = make_fake_device(config, "", [this] { return now; });
    ASSERT_TRUE(made.ok()) << made.error().message;
    device = std::move(made).value();
    socket = folder + "/gpu.ring";
    auto slots = shm::SlotServer::create(socket, config.slots, sizes, 77, *bell);
    ASSERT_TRUE(slots.ok()) << slots.error().message;
    WorkerIdentity identity{"gpu-worker.0", getpid(), 77, socket, "tiny"};
    auto created = GpuWorker::create(
        config, identity, *device, std::move(slots).value(), router,
        {.token_ring_bytes = sizes.token_bytes, .check_every_step = true, .heartbeat = kHeartbeat});
    ASSERT_TRUE(created.ok()) << created.error().message;
    worker = std::move(created).value();
    worker->run_timers(now);
  }

  TokenizerSide& attach(const std::string& name) {
    auto made_bell = shm::Doorbell::create();
    EXPECT_TRUE(made_bell.ok());
    bells.push_back(std::make_unique<shm::Doorbell>(std::move(made_bell).value()));
    std::optional<Result<shm::TokenizerEnd>> end;
    const uint32_t before = worker->rings().held();
    std::thread other([&] {
      end.emplace(shm::attach_slot(socket, 77, name, *bells.back(), monotonic_now() + 5 * kSecond));
    });
    for (const Nanos limit = monotonic_now() + 5 * kSecond;
         worker->rings().held() == before && monotonic_now() < limit;)
      worker->slots_readable(now);
    other.join();
    EXPECT_TRUE(end->ok()) << end->error().message;
    sides.push_back(std::make_unique<TokenizerSide>(std::move(*end).value()));
    return *sides.back();
  }

  // Turns until `done`, moving the clock to what the worker waits for. `read`: the tokenizer ends read their
  // rings.
  bool run_until(const std::function<bool()>& done, int max_turns = 100'000) {
    for (int turn = 0; turn < max_turns; ++turn) {
      for (auto& side : sides)
        if (side.get() != stuck) side->receive();
      if (done()) return true;
      if (worker->finished()) return false;
      const bool work = worker->poll(now);
      const Nanos next = worker->run_timers(now);
      if (work || worker->finished()) continue;
      EXPECT_GT(next, now) << "the loop would spin";
      now = std::max(now, next);
    }
    return false;
  }
  // Turns without moving the clock until there is nothing to do.
  void settle() {
    while (!worker->finished() && worker->poll(now)) {
    }
    for (auto& side : sides)
      if (side.get() != stuck) side->receive();
  }

  void expect_baseline() {
    EXPECT_TRUE(worker->scheduler().idle());
    EXPECT_EQ(worker->scheduler().num_running(), 0u);
    EXPECT_EQ(worker->scheduler().num_waiting(), 0u);
    EXPECT_EQ(worker->scheduler().num_paused(), 0u);
    EXPECT_EQ(worker->kv().num_used(), 0u);
    EXPECT_EQ(worker->kv().available(), worker->kv().num_blocks());
    EXPECT_FALSE(worker->rings().any_pending());
    const auto status = worker->scheduler().check();
    EXPECT_TRUE(status.ok()) << status.error().message;
  }

  void expect_tokens(TokenizerSide& side, Epoch epoch, const std::vector<TokenId>& prompt, uint32_t count,
                     msg::FinishReason reason) {
    const Stream& stream = side[epoch];
    EXPECT_EQ(stream.tokens, expected_tokens(prompt, count)) << "epoch " << epoch;
    ASSERT_TRUE(stream.ended) << "epoch " << epoch;
    EXPECT_EQ(stream.ended->reason, static_cast<uint8_t>(reason)) << stream.message;
  }
  void expect_refused(TokenizerSide& side, Epoch epoch, Code code) {
    const Stream& stream = side[epoch];
    ASSERT_TRUE(stream.ended) << "epoch " << epoch;
    EXPECT_EQ(stream.ended->reason, static_cast<uint8_t>(msg::FinishReason::refused)) << stream.message;
    EXPECT_EQ(name(static_cast<Code>(stream.ended->code)), name(code)) << stream.message;
    EXPECT_NE(stream.message, "");
    EXPECT_TRUE(stream.tokens.empty());
  }

  void deliver(flatbuffers::FlatBufferBuilder& b, msg::GpuWorkerBody type, flatbuffers::Offset<void> body) {
    worker->receive(0, "", msg::seal<msg::GpuWorkerMessage>(b, type, body), now);
  }
  void deliver_registered(uint32_t incarnation) {
    flatbuffers::FlatBufferBuilder b;
    deliver(b, msg::GpuWorkerBody::Registered, msg::CreateRegistered(b, incarnation).Union());
  }

  GpuWorkerConfig config;
  Nanos now = 1000 * kSecond;
  std::string folder, socket;
  std::unique_ptr<shm::Doorbell> bell;
  std::unique_ptr<Device> device;
  RouterSide router;
  std::unique_ptr<GpuWorker> worker;
  std::vector<std::unique_ptr<shm::Doorbell>> bells;
  std::vector<std::unique_ptr<TokenizerSide>> sides;
  TokenizerSide* stuck = nullptr;  // reads nothing
};

}  // namespace ringmaster::gpu_worker
