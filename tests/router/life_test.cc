// The ordinary life of a request: worked examples, every message literal.
#include "tests/router/support.h"

namespace ringmaster::router {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(RouterTest, WorkersMeet) {
  add(kTok, 21);
  EXPECT_THAT(at_tok(), ElementsAre("GpuWorkers 1"));
  EXPECT_FALSE(router->ready());
  add(kGpu, 11);
  EXPECT_THAT(at_gpu(), ElementsAre("Registered 1"));
  EXPECT_THAT(at_tok(), ElementsAre("GpuWorkers 1 gpu-worker.0/11"));
  EXPECT_FALSE(router->ready());
  link(kTok, kGpu);
  EXPECT_TRUE(router->ready());
}

TEST_F(RouterTest, OneRequestFromGenerateToTheLastAck) {
  start_pair();
  client("c1", text_request(1));
  EXPECT_THAT(at("c1"), ElementsAre("Accepted 1 1:1"));
  EXPECT_THAT(at_tok(), ElementsAre("Assign 1:1 gpu-worker.0 for c1"));
  EXPECT_EQ(router->table().live(), 1u);

  streams(kTok, to_client("c1", {{epoch(1), 1, 0, {7, 8}, 0, "ab"}}));
  EXPECT_THAT(at("c1"), ElementsAre("Stream piece 1 1:1 @0{7,8} 'ab'@0"));
  ack("c1", 1, 2, 2);
  EXPECT_THAT(at_tok(), ElementsAre("AckedEpochs 1:1 2/2"));
  streams(kTok, to_client("c1", {{epoch(1), 1, 2, {9}, 2, "c"}}, {{epoch(1), 1, 3}}));
  EXPECT_THAT(at("c1"), ElementsAre("Stream piece 1 1:1 @2{9} 'c'@2 done 1 1:1 stop ok 3"));
  EXPECT_EQ(router->table().live(), 0u);

  ack("c1", 1, 3, 3);
  EXPECT_THAT(at_tok(), ElementsAre("AckedEpochs 1:1 3/3"));
  EXPECT_EQ(router->table().size(), 1u);  // the ending, for resume_grace
  advance_alive(10 * kSecond);
  EXPECT_EQ(router->table().size(), 0u);
  EXPECT_EQ(router->table().clients(), 0u);
  EXPECT_THAT(at_tok(), IsEmpty());
  EXPECT_EQ(count(Counter::kEndedStop), 1u);
  EXPECT_EQ(count(Counter::kTokensForwarded), 3u);
  expect_books_balance();
}

TEST_F(RouterTest, AssignCarriesTheRequestAsItCame) {
  start_pair();
  auto g = text_request(1, "a prompt");
  g.deadline_ms = 5000;
  sampling(g).seed = 77;
  const Message bytes = pack(std::move(g));
  raw(kClientChannel, "c1", bytes);
  const auto got = net.take(kWorkerChannel, kTok);
  ASSERT_EQ(got.size(), 1u);
  const auto* assign = (*msg::open<msg::TokenizerWorkerMessage>(got[0]))->body_as_Assign();
  ASSERT_TRUE(assign);
  EXPECT_EQ(assign->seed(), 77u);
  EXPECT_EQ(assign->gpu_instance(), 11u);
  EXPECT_EQ(assign->received_at(), static_cast<uint64_t>(now));
  EXPECT_EQ(assign->deadline_at(), static_cast<uint64_t>(now + 5 * kSecond));
  const auto* nested = reinterpret_cast<const std::byte*>(assign->request()->data());
  EXPECT_EQ(Message(nested, nested + assign->request()->size()), bytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(nested) % 8, reinterpret_cast<uintptr_t>(got[0].data()) % 8);
}

TEST_F(RouterTest, PayloadsAreForwardedAsTheBytesTheyCameIn) {
  start_pair();
  run_request("c1", 1);
  auto to = to_client("c1", {{epoch(1), 1, 0, {7}, 0, "a"}});
  const std::vector<uint8_t> payload = to->payload;
  streams(kTok, std::move(to));
  const auto got = net.take(kClientChannel, "c1");
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(std::equal(got[0].begin(), got[0].end(), reinterpret_cast<const std::byte*>(payload.data()),
                         reinterpret_cast<const std::byte*>(payload.data()) + payload.size()));
  EXPECT_EQ(count(Counter::kStreamsRebuilt), 0u);
}

TEST_F(RouterTest, SeedsThatClientsDoNotGiveDiffer) {
  start_pair();
  std::set<uint64_t> seeds;
  for (uint64_t n = 1; n <= 20; ++n) client("c1", text_request(n));
  for (const Message& bytes : net.take(kClientChannel, "c1"))
    seeds.insert((*msg::open<msg::ClientMessage>(bytes))->body_as_Accepted()->seed());
  EXPECT_EQ(seeds.size(), 20u);
}

TEST_F(RouterTest, OneMessageOfAcksReachesEachOwner) {
  start_pair();
  add(kTok1, 22);
  link(kTok1, kGpu);
  at_tok();
  at_tok(kTok1);
  client("c1", text_request(1));
  client("c1", text_request(2));
  EXPECT_THAT(at_tok(), ElementsAre("Assign 1:1 gpu-worker.0 for c1"));
  EXPECT_THAT(at_tok(kTok1), ElementsAre("Assign 1:2 gpu-worker.0 for c1"));
  streams(kTok, to_client("c1", {{epoch(1), 1, 0, {7}, 0, "a"}}));
  streams(kTok1, to_client("c1", {{epoch(2), 2, 0, {7, 8}, 0, "ab"}}));
  msg::AcksT acks;
  for (uint64_t n = 1; n <= 2; ++n) {
    acks.acks.push_back(std::make_unique<msg::AckT>());
    acks.acks.back()->uid = std::make_unique<msg::Uid>(msg::to_wire(uid(n)));
    acks.acks.back()->next_token = static_cast<uint32_t>(n);
    acks.acks.back()->text_offset = n;
  }
  client("c1", std::move(acks));
  EXPECT_THAT(at_tok(), ElementsAre("AckedEpochs 1:1 1/1"));
  EXPECT_THAT(at_tok(kTok1), ElementsAre("AckedEpochs 1:2 2/2"));
}

TEST_F(RouterTest, AcksOfMoreThanWasSentCountAsAllThatWasSent) {
  start_pair();
  run_request("c1", 1);
  streams(kTok, to_client("c1", {{epoch(1), 1, 0, {7}, 0, "a"}}));
  at("c1");
  ack("c1", 1, 2, 0);
  EXPECT_THAT(at_tok(), ElementsAre("AckedEpochs 1:1 1/0"));
  ack("c1", 1, 1, 200);
  EXPECT_THAT(at_tok(), ElementsAre("AckedEpochs 1:1 1/1"));
  ack("c2", 1, 1, 1);  // another client's: ignored without a word
  ack("c1", 9, 1, 1);  // unknown: an ack may cross the end of its request
  EXPECT_THAT(at("c1"), IsEmpty());
  EXPECT_THAT(at("c2"), IsEmpty());
  EXPECT_EQ(count(Counter::kAcksIgnored), 2u);
}

// ---- cancel, at each state ----

TEST_F(RouterTest, CancelWhileWaiting) {
  client("c1", text_request(1));
  EXPECT_THAT(at("c1"), ElementsAre("Accepted 1 1:1"));
  cancel("c1", 1);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 cancelled cancelled 0"));
  start_pair();
  EXPECT_THAT(at_tok(), IsEmpty());  // LIF-03: a dropped entry never starts
  expect_books_balance();
}

TEST_F(RouterTest, CancelWhileRunning) {
  start_pair();
  run_request("c1", 1);
  cancel("c1", 1);
  EXPECT_THAT(at("c1"), IsEmpty());
  EXPECT_THAT(at_tok(), ElementsAre("End 1:1 cancelled cancelled"));
  cancel("c1", 1);  // the second changes nothing
  EXPECT_THAT(at_tok(), IsEmpty());
  streams(kTok, to_client("c1", {}, {{epoch(1), 1, 0, msg::FinishReason::cancelled}}));
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 cancelled ok 0"));
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:1"));  // nothing was sent, so no ack will come to free it
  cancel("c1", 1);
  EXPECT_THAT(at("c1"), IsEmpty());
  EXPECT_THAT(at_tok(), IsEmpty());
  expect_books_balance();
}

TEST_F(RouterTest, CancelOfAnothersRequestIsIgnored) {
  start_pair();
  run_request("c1", 1);
  cancel("c2", 1);
  EXPECT_THAT(at("c2"), IsEmpty());
  EXPECT_THAT(at_tok(), IsEmpty());
  EXPECT_EQ(count(Counter::kCancelsIgnored), 1u);
}

TEST_F(RouterTest, AWorkerThatDoesNotAnswerEndIsFenced) {
  start_pair();
  run_request("c1", 1);
  streams(kTok, to_client("c1", {{epoch(1), 1, 0, {7}, 0, "a"}}));
  cancel("c1", 1);
  at("c1");
  at_tok();
  advance_alive(2 * kSecond);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 cancelled cancelled 1"));
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:1"));
  streams(kTok, to_client("c1", {{epoch(1), 1, 1, {8}, 1, "b"}}, {{epoch(1), 1, 2}}));
  EXPECT_THAT(at("c1"), IsEmpty());
  EXPECT_EQ(count(Counter::kChunksStale), 2u);
  expect_books_balance();
}

// ---- deadline ----

TEST_F(RouterTest, DeadlineWhileWaiting) {
  auto g = text_request(1);
  g.deadline_ms = 1000;
  client("c1", std::move(g));
  at("c1");
  advance(kSecond - 1);
  EXPECT_THAT(at("c1"), IsEmpty());
  advance(1);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 deadline deadline_exceeded 0"));
  expect_books_balance();
}

TEST_F(RouterTest, DeadlineWhileRunning) {
  start_pair();
  auto g = text_request(1);
  g.deadline_ms = 1000;
  client("c1", std::move(g));
  at("c1");
  at_tok();
  advance_alive(kSecond);
  EXPECT_THAT(at_tok(), ElementsAre("End 1:1 deadline deadline_exceeded"));
  streams(kTok, to_client("c1", {}, {{epoch(1), 1, 0, msg::FinishReason::deadline}}));
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 deadline ok 0"));
  expect_books_balance();
}

// ---- waiting ----

TEST_F(RouterTest, ARequestWaitsForTheFirstPair) {
  client("c1", text_request(1));
  client("c1", text_request(2));
  EXPECT_THAT(at("c1"), ElementsAre("Accepted 1 1:1", "Accepted 2 1:2"));
  advance(9 * kSecond);
  start_pair();  // throws the assignments away with the greetings
  EXPECT_EQ(router->life().waiting(), 0u);
  EXPECT_EQ(router->life().waiting_bytes(), 0u);
  EXPECT_EQ(router->table().find(epoch(1))->state(), State::kRunning);
  EXPECT_EQ(router->table().find(epoch(2))->state(), State::kRunning);
  expect_books_balance();
}

TEST_F(RouterTest, AWaitHasAnEnd) {
  client("c1", text_request(1));
  at("c1");
  advance(10 * kSecond);
  const auto done = done_at("c1");
  EXPECT_EQ(done.reason, msg::FinishReason::refused);
  EXPECT_EQ(done.code, msg::Code::unavailable);
  EXPECT_EQ(done.message,
            "no gpu-worker with a tokenizer-worker attached became ready within 10.0 s; retry later (see "
            "`ringmaster status`)");
  ASSERT_TRUE(done.timings);
  EXPECT_EQ(done.timings->route(), static_cast<uint64_t>(10 * kSecond));
  EXPECT_EQ(done.timings->total(), static_cast<uint64_t>(10 * kSecond));
  expect_books_balance();
}

TEST_F(RouterTest, FullWorkersMakeItWaitAndTheNextEndingLetsItIn) {
  start_pair(/*max_live=*/1);
  run_request("c1", 1);
  auto low = text_request(2);
  client("c1", std::move(low));
  auto high = text_request(3);
  high.priority = 5;
  client("c1", std::move(high));
  EXPECT_THAT(at_tok(), IsEmpty());
  streams(kTok, to_client("c1", {}, {{epoch(1), 1, 0}}));
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:1", "Assign 1:3 gpu-worker.0 for c1"));
  at("c1");
  advance_alive(10 * kSecond);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 2 1:2 refused overloaded 0"));
  expect_books_balance();
}

TEST_F(RouterTest, MoreThanTheBoundIsOverloaded) {
  RouterOptions options;
  options.limits.max_live = 2;
  restart(options);
  client("c1", text_request(1));
  client("c1", text_request(2));
  client("c1", text_request(3));
  EXPECT_THAT(at("c1"),
              ElementsAre("Accepted 1 1:1", "Accepted 2 1:2", "Stream done 3 0:0 refused overloaded 0"));
  client("c1", text_request(1));  // a resume is no new request
  EXPECT_THAT(at("c1"), ElementsAre("Accepted 1 1:1 resumed"));
  cancel("c1", 2);
  at("c1");
  client("c1", text_request(3));
  EXPECT_THAT(at("c1"), ElementsAre("Accepted 3 1:3"));
  expect_books_balance();
}

TEST_F(RouterTest, WaitingPromptsAreBoundedInBytesToo) {
  RouterOptions options;
  options.limits.max_waiting_bytes = 10'000;
  restart(options);
  client("c1", text_request(1, std::string(8'000, 'x')));
  client("c1", text_request(2, std::string(8'000, 'x')));
  EXPECT_THAT(at("c1"), ElementsAre("Accepted 1 1:1", "Stream done 2 0:0 refused overloaded 0"));
  cancel("c1", 1);
  EXPECT_EQ(router->life().waiting_bytes(), 0u);
}

TEST_F(RouterTest, LimitsThatBecomeKnownLaterAreCheckedBeforePlacing) {
  client("c1", ids_request(1, {5, 1000}));  // the vocabulary will turn out to be 1000
  client("c1", ids_request(2, {5, 999}));
  at("c1");
  add(kTok, 21);
  add(kGpu, 11);
  at_tok();
  link(kTok, kGpu);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 refused invalid_argument 0"));
  EXPECT_THAT(at_tok(), ElementsAre("Assign 1:2 gpu-worker.0 for c1"));
  expect_books_balance();
}

// ---- draining, status, tokenize ----

TEST_F(RouterTest, DrainRefusesNewAndFinishesWhatRuns) {
  start_pair();
  run_request("c1", 1);
  router->drain(now + 30 * kSecond);
  client("c1", text_request(2));
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 2 0:0 refused unavailable 0"));
  EXPECT_FALSE(router->drained());
  streams(kTok, to_client("c1", {}, {{epoch(1), 1, 0}}));
  EXPECT_TRUE(router->drained());
}

TEST_F(RouterTest, DrainHasAnEnd) {
  start_pair();
  run_request("c1", 1);
  router->drain(now + 3 * kSecond);
  advance_alive(3 * kSecond);
  EXPECT_THAT(at_tok(), ElementsAre("End 1:1 cancelled unavailable"));
  advance_alive(2 * kSecond);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 cancelled unavailable 0"));
  EXPECT_TRUE(router->drained());
}

TEST_F(RouterTest, StatusShowsWorkersAndCounters) {
  start_pair();
  auto other = registration(kGpu1, 12);
  other.model->weights_hash = 6;
  worker(kGpu1, std::move(other));
  run_request("c1", 1);
  client("c1", msg::StatusQueryT());
  const auto got = net.take(kClientChannel, "c1");
  ASSERT_EQ(got.size(), 1u);
  msg::StatusReplyT status;
  (*msg::open<msg::ClientMessage>(got[0]))->body_as_StatusReply()->UnPackTo(&status);
  EXPECT_EQ(status.incarnation, 1u);
  EXPECT_TRUE(status.ready);
  EXPECT_EQ(status.model, "tiny");
  EXPECT_EQ(status.context_length, 64u);
  EXPECT_EQ(status.vocab_size, 1000u);
  EXPECT_EQ(status.live_requests, 1u);
  ASSERT_EQ(status.workers.size(), 3u);
  EXPECT_EQ(status.workers[0]->name, "gpu-worker.0");
  EXPECT_EQ(status.workers[0]->state, "ready");
  EXPECT_EQ(status.workers[0]->live, 1u);
  EXPECT_EQ(status.workers[1]->state, "refused: another model than gpu-worker.0 (weights 6, there 5)");
  EXPECT_EQ(status.workers[2]->kind, "tokenizer-worker");
  std::map<std::string, uint64_t> counters;
  for (const auto& c : status.counters) counters[c->name] = c->value;
  EXPECT_EQ(counters.size(), kCounterNames.size());
  EXPECT_EQ(counters["requests_accepted"], 1u);
  EXPECT_EQ(counters["workers_refused"], 1u);
}

TEST_F(RouterTest, PingAnswersWithTheIncarnation) {
  RouterOptions options;
  options.incarnation = 9;
  restart(options);
  client("c1", msg::PingT());
  EXPECT_THAT(at("c1"), ElementsAre("Pong 9"));
}

msg::TokenizeT tokenize(uint64_t tag, const std::string& text) {
  msg::TokenizeT t;
  t.tag = tag;
  msg::TextPromptT prompt;
  prompt.text = text;
  t.prompt.Set(std::move(prompt));
  return t;
}

msg::TokenizedT tokenized(uint64_t tag, std::vector<uint32_t> ids) {
  msg::TokenizedT t;
  t.tag = tag;
  t.ids = std::move(ids);
  return t;
}

TEST_F(RouterTest, TokenizeGoesToATokenizerWorkerAndBack) {
  client("c1", tokenize(77, "Hi"));
  EXPECT_THAT(at("c1"), ElementsAre("TokenizeReply 77 {} unavailable"));
  add(kTok, 21);
  at_tok();
  client("c1", tokenize(77, "Hi"));
  client("c2", tokenize(77, "Ho"));
  client("c1", tokenize(78, "\xFF"));
  EXPECT_THAT(at("c1"), ElementsAre("TokenizeReply 78 {} invalid_utf8"));
  EXPECT_THAT(at_tok(), ElementsAre("TokenizeQuery 1", "TokenizeQuery 2"));
  worker(kTok, tokenized(2, {5}));
  worker(kTok, tokenized(1, {4, 3}));
  worker(kTok, tokenized(1, {4, 3}));  // twice: dropped
  EXPECT_THAT(at("c1"), ElementsAre("TokenizeReply 77 {4,3} ok"));
  EXPECT_THAT(at("c2"), ElementsAre("TokenizeReply 77 {5} ok"));
}

TEST_F(RouterTest, TokenizeIsAnsweredWhateverHappens) {
  add(kTok, 21);
  client("c1", tokenize(1, "Hi"));
  advance_alive(10 * kSecond);
  EXPECT_THAT(at("c1"), ElementsAre("TokenizeReply 1 {} deadline_exceeded"));
  worker(kTok, tokenized(1, {4}));  // late
  EXPECT_THAT(at("c1"), IsEmpty());
  client("c1", tokenize(2, "Hi"));
  advance(2 * kSecond);
  EXPECT_THAT(at("c1"), ElementsAre("TokenizeReply 2 {} worker_lost"));
  EXPECT_EQ(router->tokenize_queries().open(), 0u);
}

}  // namespace
}  // namespace ringmaster::router
