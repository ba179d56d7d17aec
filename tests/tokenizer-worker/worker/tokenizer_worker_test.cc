// The actor towards its router: registration, links, queries; every message through the door.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tokenizer-worker/worker/worker_fixture.h"
#include "tokenizer-worker/audit.h"

namespace ringmaster::tokenizer_worker {
namespace {

using msg::FinishReason;
using msg::TokenizerWorkerBody;
using shm::RecordType;
using ::testing::HasSubstr;

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

TEST_F(Worker, AuditListsTheLowestTagsAndCountsAllJobs) {
  std::vector<uint64_t> tags;
  for (uint64_t tag = msg::kMaxListed + 5; tag >= 1; --tag) tags.push_back(tag);
  flatbuffers::FlatBufferBuilder b;
  build_books(b, {w.requests.table(), w.links, w.counters, 0, tags.size(), 0, tags});
  msg::WorkerBooksT all;
  flatbuffers::GetRoot<msg::WorkerBooks>(b.GetBufferPointer())->UnPackTo(&all);
  ASSERT_EQ(all.tokenizer->queries.size(), msg::kMaxListed);
  EXPECT_EQ(all.tokenizer->queries.front(), 1u);
  EXPECT_EQ(all.tokenizer->queries.back(), msg::kMaxListed);
  EXPECT_EQ(all.tokenizer->encoding, msg::kMaxListed + 5);
  EXPECT_EQ(all.tokenizer->unlisted, 0u) << "counts streams alone: live = listed + unlisted";
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

}  // namespace
}  // namespace ringmaster::tokenizer_worker
