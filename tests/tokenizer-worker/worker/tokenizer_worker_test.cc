// The actor towards its router: registration, links, queries, drain; every message through the door.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/tokenizer-worker/worker/world.h"
#include "tokenizer-worker/tokenizer_worker.h"

namespace ringmaster::tokenizer_worker {
namespace {

using msg::FinishReason;
using msg::TokenizerWorkerBody;
using shm::RecordType;
using ::testing::HasSubstr;

class HandAttacher final : public Attacher {
 public:
  bool attach(AttachJob job) override {
    if (full) return false;
    jobs.push_back(std::move(job));
    return true;
  }
  std::optional<Attached> take() override {
    if (results.empty()) return std::nullopt;
    auto result = std::move(results.front());
    results.pop_front();
    return result;
  }
  bool full = false;
  std::vector<AttachJob> jobs;
  std::deque<Attached> results;
};

class Worker : public ::testing::Test {
 protected:
  Worker() {
    times.drain = 10 * kSecond;
    worker.emplace(WorkerIdentity{"tokenizer-worker.0", 4711, 0xABC, "tiny", 5, kTinyVocabulary, 256, 64},
                   times, w.requests, w.pool, w.links, attacher, w.outbox, w.counters);
  }

  template <typename Make>
  void receive(TokenizerWorkerBody type, Make make) {
    flatbuffers::FlatBufferBuilder b;
    const auto body = make(b);
    worker->receive(0, "", msg::seal<msg::TokenizerWorkerMessage>(b, type, body.Union()), w.now);
  }
  using Listed = std::vector<std::pair<std::string, uint64_t>>;
  void gpu_workers(uint32_t incarnation, const Listed& listed) {
    receive(TokenizerWorkerBody::GpuWorkers, [&](auto& b) {
      std::vector<flatbuffers::Offset<msg::GpuWorker>> workers;
      for (const auto& [name, instance] : listed)
        workers.push_back(msg::CreateGpuWorkerDirect(b, name.c_str(), instance, ("/run/" + name).c_str()));
      return msg::CreateGpuWorkersDirect(b, incarnation, &workers);
    });
  }
  void assign(Epoch epoch, const std::string& text) {
    receive(TokenizerWorkerBody::Assign, [&](auto& b) {
      msg::AssignT assign;
      assign.epoch = epoch;
      assign.client = {'c'};
      assign.gpu_worker = "gpu-worker.0";
      assign.gpu_instance = 7;
      assign.request = World::sealed(World::text_request(text));
      return msg::CreateAssign(b, &assign);
    });
  }
  void attached(FakeGpu& gpu, const std::string& name = "gpu-worker.0", uint64_t instance = 7) {
    attacher.results.push_back({name, instance, gpu.take_end()});
  }
  // A turn of the loop.
  void turn() {
    while (w.pool.run_one()) {
    }
    worker->poll(w.now);
    next_timer = worker->run_timers(w.now);
    worker->flush(w.now);
  }
  void pass(Nanos time) {
    w.now += time;
    turn();
  }
  void registered_and_linked() {
    turn();
    gpu_workers(3, {{"gpu-worker.0", 7}});
    attached(w.gpu);
    turn();
    w.outbox.clear();
  }
  template <typename Body>
  std::vector<Body> sent(Body* (msg::RouterBodyUnion::*as)()) {
    std::vector<Body> all;
    for (auto& message : w.outbox.others)
      if (auto* body = (message->body.*as)()) all.push_back(std::move(*body));
    return all;
  }
  std::vector<msg::RegisterT> registers() { return sent<msg::RegisterT>(&msg::RouterBodyUnion::AsRegister); }
  std::vector<msg::HeartbeatT> heartbeats() {
    return sent<msg::HeartbeatT>(&msg::RouterBodyUnion::AsHeartbeat);
  }
  std::vector<msg::LinkedT> linked() { return sent<msg::LinkedT>(&msg::RouterBodyUnion::AsLinked); }
  std::vector<msg::TokenizedT> tokenized() {
    return sent<msg::TokenizedT>(&msg::RouterBodyUnion::AsTokenized);
  }

  World w{{.linked = false}};
  WorkerTimes times;
  HandAttacher attacher;
  std::optional<TokenizerWorker> worker;
  Nanos next_timer = 0;
};

TEST_F(Worker, RegistersUntilItIsAnswered) {
  turn();
  auto first = registers();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].name, "tokenizer-worker.0");
  EXPECT_EQ(first[0].kind, msg::WorkerKind::tokenizer_worker);
  EXPECT_EQ(first[0].pid, 4711);
  EXPECT_EQ(first[0].instance, 0xABCu);
  EXPECT_EQ(first[0].model->name, "tiny");
  EXPECT_EQ(first[0].model->weights_hash, 5u);
  EXPECT_EQ(first[0].model->vocab_size, kTinyVocabulary);
  EXPECT_EQ(first[0].model->context_length, 256u);
  EXPECT_EQ(first[0].max_live, 64u);
  w.outbox.clear();
  pass(999 * kMillisecond);
  EXPECT_TRUE(registers().empty());
  EXPECT_EQ(next_timer, w.now + kMillisecond);
  pass(kMillisecond);
  EXPECT_EQ(registers().size(), 1u);
  EXPECT_TRUE(heartbeats().empty()) << "nobody knows us yet";
  gpu_workers(3, {});
  w.outbox.clear();
  pass(2 * kSecond);
  EXPECT_TRUE(registers().empty());
  EXPECT_EQ(heartbeats().size(), 1u);
}

TEST_F(Worker, HeartbeatTellsTheLoad) {
  registered_and_linked();
  assign(1, "x");
  assign(2, "y");
  w.pool.run_one();
  worker->poll(w.now);
  w.now += kSecond;
  worker->run_timers(w.now);
  const auto beats = heartbeats();
  ASSERT_EQ(beats.size(), 1u);
  EXPECT_EQ(beats[0].instance, 0xABCu);
  EXPECT_EQ(beats[0].kind, msg::WorkerKind::tokenizer_worker);
  EXPECT_EQ(beats[0].load->running, 2u);
  EXPECT_EQ(beats[0].load->waiting, 1u);
}

TEST_F(Worker, AttachesAndCarriesARequest) {
  turn();
  gpu_workers(3, {{"gpu-worker.0", 7}});
  ASSERT_EQ(attacher.jobs.size(), 1u);
  EXPECT_EQ(attacher.jobs[0].ring_socket, "/run/gpu-worker.0");
  EXPECT_TRUE(linked().empty());
  attached(w.gpu);
  turn();
  auto links = linked();
  ASSERT_EQ(links.size(), 1u);
  EXPECT_EQ(links[0].gpu_worker, "gpu-worker.0");
  EXPECT_EQ(links[0].gpu_instance, 7u);
  EXPECT_TRUE(links[0].up);

  assign(1, "hello");
  turn();
  EXPECT_EQ(w.gpu.commands().at(0).ids, (std::vector<TokenId>{kBos, piece_id("hello")}));
  w.gpu.say(1, 0, byte_ids("ok"));
  w.gpu.ended(1, FinishReason::length, 2);
  turn();
  EXPECT_EQ(w.outbox.whole(1, "c").text, "ok");
  EXPECT_EQ(w.outbox.done(1, "c").reason, FinishReason::length);
}

TEST_F(Worker, TheSameListAgainAttachesNothing) {
  registered_and_linked();
  gpu_workers(3, {{"gpu-worker.0", 7}});
  turn();
  EXPECT_EQ(attacher.jobs.size(), 1u);
  EXPECT_TRUE(linked().empty()) << "the router has heard it";
}

TEST_F(Worker, FailedAttachIsTriedAgain) {
  turn();
  attacher.full = true;
  gpu_workers(3, {{"gpu-worker.0", 7}});
  attacher.full = false;
  pass(500 * kMillisecond);
  ASSERT_EQ(attacher.jobs.size(), 1u);
  attacher.results.push_back({"gpu-worker.0", 7, Error{Code::kUnavailable, "nobody listens"}});
  turn();
  EXPECT_TRUE(linked().empty());
  pass(499 * kMillisecond);
  EXPECT_EQ(attacher.jobs.size(), 1u);
  pass(kMillisecond);
  EXPECT_EQ(attacher.jobs.size(), 2u);
}

TEST_F(Worker, ASuccessorThatRefusesIsAttachedWhenTheRouterNamesIt) {
  turn();
  gpu_workers(3, {{"gpu-worker.0", 6}});
  ASSERT_EQ(attacher.jobs.size(), 1u);
  EXPECT_EQ(attacher.jobs[0].gpu_instance, 6u);
  // The list changes while the answer to the first wish is under way.
  gpu_workers(3, {{"gpu-worker.0", 7}});
  ASSERT_EQ(attacher.jobs.size(), 2u);
  EXPECT_EQ(attacher.jobs[1].gpu_instance, 7u);
  attacher.results.push_back({"gpu-worker.0", 6, Error{Code::kNotFound, "another instance"}});
  turn();
  EXPECT_TRUE(linked().empty());
  attached(w.gpu);
  turn();
  ASSERT_EQ(linked().size(), 1u);
  EXPECT_EQ(linked()[0].gpu_instance, 7u);
  EXPECT_TRUE(linked()[0].up);
  pass(2 * times.attach_again);
  EXPECT_EQ(attacher.jobs.size(), 2u) << "instance 6 is not on the list any more";
}

// A second slot would be ours until we end: nobody else could have it.
TEST_F(Worker, TakenOffTheListWhileAttachingItIsNotAttachedTwice) {
  turn();
  gpu_workers(3, {{"gpu-worker.0", 7}});
  ASSERT_EQ(attacher.jobs.size(), 1u);
  gpu_workers(4, {});  // a router that has just restarted
  gpu_workers(4, {{"gpu-worker.0", 7}});
  turn();
  EXPECT_EQ(attacher.jobs.size(), 1u);
  w.outbox.clear();
  attached(w.gpu);
  turn();
  ASSERT_EQ(linked().size(), 1u);
  EXPECT_TRUE(linked()[0].up);
}

TEST_F(Worker, ManyAnswersOfARouterThatDoesNotKnowUsAreOneRegistration) {
  registered_and_linked();
  for (int heartbeat = 0; heartbeat < 5; ++heartbeat) {
    gpu_workers(0, {});
    turn();
  }
  EXPECT_EQ(registers().size(), 1u);
  pass(times.register_again);
  EXPECT_EQ(registers().size(), 2u);
}

TEST_F(Worker, ALostRingIsReportedAfterTheLastWords) {
  registered_and_linked();
  assign(1, "x");
  turn();
  w.outbox.clear();
  w.gpu.say(1, 0, byte_ids("a"));
  w.gpu.die();
  worker->check_peers(w.now);
  EXPECT_EQ(w.outbox.whole(1, "c").text, "a");
  EXPECT_EQ(w.outbox.done(1, "c").code, msg::Code::worker_lost);
  EXPECT_EQ(w.outbox.messages, 2);
  const auto down = linked();
  ASSERT_EQ(down.size(), 1u);
  EXPECT_FALSE(down[0].up);
  EXPECT_EQ(down[0].gpu_instance, 7u);
  // The same instance is not tried again, the next one is.
  gpu_workers(3, {{"gpu-worker.0", 7}});
  pass(kSecond);
  EXPECT_EQ(attacher.jobs.size(), 1u);
  gpu_workers(3, {{"gpu-worker.0", 8}});
  EXPECT_EQ(attacher.jobs.size(), 2u);
}

TEST_F(Worker, DeathIsSeenByTheHeartbeatToo) {
  registered_and_linked();
  w.gpu.die();
  pass(kSecond);
  EXPECT_EQ(linked().size(), 1u);
  EXPECT_EQ(w.counters[Counter::kLinksLost], 1u);
}

TEST_F(Worker, TakenOutOfServiceAndBack) {
  registered_and_linked();
  assign(1, "x");
  turn();
  w.gpu.commands();
  gpu_workers(3, {});
  turn();
  EXPECT_EQ(w.outbox.done(1, "c").code, msg::Code::worker_lost);
  EXPECT_EQ(w.gpu.commands().at(0).type, RecordType::kCancel);
  gpu_workers(3, {{"gpu-worker.0", 7}});
  turn();
  EXPECT_EQ(attacher.jobs.size(), 1u) << "the ring was kept: a slot comes back only by a death";
  ASSERT_EQ(linked().size(), 1u);
  assign(2, "x");
  turn();
  EXPECT_EQ(w.gpu.commands().at(0).epoch, 2u);
}

TEST_F(Worker, ARouterThatDoesNotKnowUsGetsARegistration) {
  registered_and_linked();
  assign(1, "x");
  turn();
  w.gpu.commands();
  w.outbox.clear();
  gpu_workers(0, {});
  turn();
  EXPECT_EQ(registers().size(), 1u);
  EXPECT_EQ(w.requests.table().size(), 0u) << "the router has ended them";
  EXPECT_EQ(w.gpu.commands().at(0).type, RecordType::kCancel);
  EXPECT_TRUE(w.outbox.ends.empty());
  EXPECT_TRUE(linked().empty()) << "only after the answer";
  gpu_workers(4, {{"gpu-worker.0", 7}});
  const auto links = linked();
  ASSERT_EQ(links.size(), 1u);
  EXPECT_TRUE(links[0].up);
  EXPECT_EQ(attacher.jobs.size(), 1u);
  w.expect_balanced();
}

TEST_F(Worker, AnotherIncarnationForgetsTheFormersRequests) {
  registered_and_linked();
  assign(1, "x");
  assign(2, "y");
  turn();
  w.gpu.commands();
  assign(3, "z");  // still to be encoded
  gpu_workers(4, {{"gpu-worker.0", 7}});
  turn();
  EXPECT_EQ(w.requests.live(), 0u);
  EXPECT_EQ(w.pool.in_flight(), 0u);
  EXPECT_EQ(w.gpu.commands().size(), 2u);
  EXPECT_EQ(linked().size(), 1u) << "the new router hears of the ring";
  EXPECT_EQ(w.counters[Counter::kRequestsForgotten], 3u);
}

TEST_F(Worker, TokenizeQuery) {
  const auto query = [&](uint64_t tag, const std::string& text) {
    receive(TokenizerWorkerBody::TokenizeQuery, [&](auto& b) {
      const auto prompt = msg::CreateTextPromptDirect(b, text.c_str());
      return msg::CreateTokenizeQuery(b, tag, msg::Prompt::TextPrompt, prompt.Union());
    });
  };
  turn();
  query(11, "hello!");
  query(12, "\xFF");
  for (int i = 0; i < 7; ++i) query(100, "x");  // the queue holds 8
  turn();
  const auto answers = tokenized();
  ASSERT_EQ(answers.size(), 9u);
  EXPECT_EQ(answers[0].tag, 100u);
  EXPECT_EQ(answers[0].code, msg::Code::overloaded) << "the last one, at once";
  EXPECT_EQ(answers[1].tag, 11u);
  EXPECT_EQ(answers[1].ids, (std::vector<TokenId>{kBos, piece_id("hello"), byte_id('!')}));
  EXPECT_EQ(answers[2].tag, 12u);
  EXPECT_EQ(answers[2].code, msg::Code::invalid_utf8);
  EXPECT_EQ(w.pool.in_flight(), 0u);
}

TEST_F(Worker, AuditTellsWhatIsHeld) {
  registered_and_linked();
  assign(1, "hello");
  turn();
  assign(2, "!");
  assign(3, "ok");
  turn();
  receive(TokenizerWorkerBody::Forget, [](auto& b) { return msg::CreateForget(b, 3); });
  assign(4, "still in the pool");
  receive(TokenizerWorkerBody::TokenizeQuery, [&](auto& b) {
    const auto prompt = msg::CreateTextPromptDirect(b, "x");
    return msg::CreateTokenizeQuery(b, 61, msg::Prompt::TextPrompt, prompt.Union());
  });
  w.outbox.clear();
  receive(TokenizerWorkerBody::Audit, [](auto& b) { return msg::CreateAudit(b, 9); });
  const auto answers = sent<msg::AuditedT>(&msg::RouterBodyUnion::AsAudited);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].tag, 9u);
  msg::WorkerBooksT all;
  flatbuffers::GetRoot<msg::WorkerBooks>(answers[0].books.data())->UnPackTo(&all);
  EXPECT_EQ(all.gpu, nullptr);
  const msg::TokenizerWorkerBooksT& books = *all.tokenizer;
  ASSERT_EQ(books.streams.size(), 3u);
  EXPECT_EQ(books.streams[0].epoch(), 1u);
  EXPECT_EQ(books.streams[0].phase(), msg::StreamPhase::running);
  EXPECT_EQ(books.streams[0].link(), 0u);
  EXPECT_EQ(books.streams[2].epoch(), 4u);
  EXPECT_EQ(books.streams[2].phase(), msg::StreamPhase::encoding);
  EXPECT_EQ(books.live, 3u);
  EXPECT_EQ(books.assigned, 4u);
  EXPECT_EQ(books.forgotten, 1u);
  EXPECT_EQ(books.ended, 0u);
  EXPECT_EQ(books.encoding, 2u);
  EXPECT_EQ(books.queries, std::vector<uint64_t>{61});
  ASSERT_EQ(books.slots.size(), 1u);
  EXPECT_EQ(books.slots[0]->peer, "gpu-worker.0");
  EXPECT_EQ(books.slots[0]->peer_instance, 7u);
  EXPECT_GT(books.slots[0]->commands, 0u);
  EXPECT_GT(books.slots[0]->prompts, 0u);
  EXPECT_EQ(books.slots[0]->tokens, 0u);
}

// A new router counts its tags from 1 again: an answer to the former would pass for one to it.
TEST_F(Worker, QueriesOfAFormerRouterAreNotAnswered) {
  registered_and_linked();
  receive(TokenizerWorkerBody::TokenizeQuery, [](auto& b) {
    const auto prompt = msg::CreateTextPromptDirect(b, "hello!");
    return msg::CreateTokenizeQuery(b, 1, msg::Prompt::TextPrompt, prompt.Union());
  });
  receive(TokenizerWorkerBody::GpuWorkers, [](auto& b) { return msg::CreateGpuWorkers(b, 0u); });
  turn();
  EXPECT_TRUE(tokenized().empty());
  EXPECT_EQ(w.pool.in_flight(), 0u);
}

TEST_F(Worker, AllOtherMessagesReachTheirRequest) {
  registered_and_linked();
  assign(1, "x");
  assign(2, "y");
  turn();
  w.gpu.commands();
  w.gpu.say(1, 0, byte_ids("abcdefgh"));
  turn();
  receive(TokenizerWorkerBody::AckedEpochs, [](auto& b) {
    std::vector<flatbuffers::Offset<msg::EpochAck>> acks = {msg::CreateEpochAck(b, 1, 8, 8)};
    return msg::CreateAckedEpochsDirect(b, &acks);
  });
  receive(TokenizerWorkerBody::Resend, [](auto& b) {
    const std::vector<uint8_t> client = {'d'};
    return msg::CreateResendDirect(b, 1, &client, 8, 8);
  });
  receive(TokenizerWorkerBody::End, [](auto& b) {
    return msg::CreateEndDirect(b, 1, FinishReason::cancelled, msg::Code::cancelled, "bye");
  });
  receive(TokenizerWorkerBody::Forget, [](auto& b) { return msg::CreateForget(b, 2); });
  turn();
  EXPECT_EQ(w.outbox.done(1, "d").message, "bye");
  EXPECT_EQ(w.requests.table().size(), 1u);
  const auto commands = w.gpu.commands();
  ASSERT_EQ(commands.size(), 3u);
  EXPECT_EQ(commands[0].type, RecordType::kGrant);
  EXPECT_EQ(commands[1].epoch, 1u);
  EXPECT_EQ(commands[2].epoch, 2u);
}

TEST_F(Worker, MalformedMessagesAreCountedAndNothingElse) {
  registered_and_linked();
  assign(1, "x");
  turn();
  const std::string junk = "this is not a message of any kind";
  worker->receive(0, "", std::as_bytes(std::span(junk)), w.now);
  worker->receive(0, "", {}, w.now);
  flatbuffers::FlatBufferBuilder b;
  const auto wrong = msg::seal<msg::RouterMessage>(b, msg::RouterBody::Ping, msg::CreatePing(b).Union());
  worker->receive(0, "", wrong, w.now);
  b.Clear();
  const auto unknown = msg::seal<msg::TokenizerWorkerMessage>(b, static_cast<TokenizerWorkerBody>(99),
                                                              msg::CreateDrain(b).Union());
  worker->receive(0, "", unknown, w.now);
  EXPECT_EQ(w.counters[Counter::kMessagesMalformed], 4u);
  EXPECT_EQ(w.requests.live(), 1u);
  EXPECT_TRUE(w.outbox.ends.empty());
}

// ---- drain ----

TEST_F(Worker, DrainFinishesWhatRuns) {
  registered_and_linked();
  assign(1, "x");
  turn();
  receive(TokenizerWorkerBody::Drain, [](auto& b) { return msg::CreateDrain(b); });
  assign(2, "y");
  turn();
  EXPECT_EQ(w.outbox.done(2, "c").code, msg::Code::unavailable);
  EXPECT_TRUE(linked().empty()) << "the pair still carries what runs";
  EXPECT_FALSE(worker->drained());
  w.gpu.say(1, 0, byte_ids("a"));
  w.gpu.ended(1, FinishReason::length, 1);
  turn();
  EXPECT_EQ(w.outbox.done(1, "c").reason, FinishReason::length);
  EXPECT_TRUE(worker->drained());
}

TEST_F(Worker, DrainWaitsUntilEverythingIsSent) {
  registered_and_linked();
  assign(1, "x");
  turn();
  worker->drain(w.now);
  w.outbox.full = true;
  w.gpu.ended(1, FinishReason::length, 0);
  turn();
  EXPECT_EQ(w.requests.live(), 0u);
  EXPECT_FALSE(worker->drained());
  w.outbox.full = false;
  pass(10 * kMillisecond);
  EXPECT_TRUE(worker->drained());
}

TEST_F(Worker, DrainHasALimit) {
  registered_and_linked();
  assign(1, "x");
  turn();
  worker->drain(w.now);
  pass(10 * kSecond - 1);
  EXPECT_FALSE(worker->drained());
  pass(1);
  EXPECT_TRUE(worker->drained());
  EXPECT_EQ(w.outbox.done(1, "c").code, msg::Code::unavailable);
  EXPECT_THAT(w.outbox.done(1, "c").message, HasSubstr("tokenizer-worker.0 was stopped"));
}

TEST_F(Worker, SecondDrainIsNow) {
  registered_and_linked();
  assign(1, "x");
  turn();
  w.gpu.commands();
  worker->drain(w.now);
  worker->drain(w.now);
  turn();
  EXPECT_TRUE(worker->drained());
  EXPECT_EQ(w.outbox.done(1, "c").code, msg::Code::unavailable);
  EXPECT_EQ(w.gpu.commands().at(0).type, RecordType::kCancel) << "the gpu-worker's slot is freed";
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
