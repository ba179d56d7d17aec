// Workers that die, stall, come back or disagree; stale pieces; full and broken doors.
#include "tests/router/support.h"

namespace ringmaster::router {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

TEST_F(RouterTest, AGpuWorkerDiesWhileARequestRuns) {
  start_pair();
  run_request("c1", 1);
  streams(kTok, to_client("c1", {{epoch(1), 1, 0, {7}, 0, "a"}}));
  at("c1");
  for (int i = 0; i < 2; ++i) {  // only the tokenizer-worker goes on speaking
    heartbeat(kTok);
    advance(kSecond);
  }
  const auto done = done_at("c1");
  EXPECT_EQ(done.reason, msg::FinishReason::error);
  EXPECT_EQ(done.code, msg::Code::worker_lost);
  EXPECT_EQ(done.message, "gpu-worker.0, which ran this request, is gone");
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:1", "GpuWorkers 1"));
  EXPECT_FALSE(router->ready());
  EXPECT_EQ(count(Counter::kWorkersLost), 1u);
  expect_books_balance();
}

TEST_F(RouterTest, ATokenizerWorkerDiesWhileARequestRuns) {
  start_pair();
  run_request("c1", 1);
  heartbeat(kGpu);
  advance(2 * kSecond - 1);
  EXPECT_THAT(at("c1"), IsEmpty());
  heartbeat(kGpu);
  advance(1);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 error worker_lost 0"));
  EXPECT_THAT(at_tok(), IsEmpty());  // nobody is there to be told
  expect_books_balance();
}

TEST_F(RouterTest, WhatWasAskedToEndEndsAsAskedWhenItsWorkerDies) {
  start_pair();
  run_request("c1", 1);
  cancel("c1", 1);
  add(kTok, 99);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 cancelled cancelled 0"));
  expect_books_balance();
}

TEST_F(RouterTest, WaitingRequestsOutliveTheirWorkers) {
  start_pair(/*max_live=*/1);
  run_request("c1", 1);
  client("c1", text_request(2));
  at("c1");
  add(kGpu, 12, 1);  // restarted
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 error worker_lost 0"));
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:1", "GpuWorkers 1 gpu-worker.0/12"));
  link(kTok, kGpu);
  EXPECT_THAT(at_tok(), ElementsAre("Assign 1:2 gpu-worker.0 for c1"));
  expect_books_balance();
}

TEST_F(RouterTest, ARestartedTokenizerWorkerHasNoLinksOfItsFormerSelf) {
  start_pair();
  run_request("c1", 1);
  add(kTok, 22);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 error worker_lost 0"));
  EXPECT_THAT(at_tok(), ElementsAre("GpuWorkers 1 gpu-worker.0/11"));
  EXPECT_FALSE(router->ready());
  link(kTok, kGpu);
  EXPECT_TRUE(router->ready());
  expect_books_balance();
}

TEST_F(RouterTest, LinksToAFormerGpuWorkerDoNotCount) {
  start_pair();
  add(kGpu, 12);
  EXPECT_FALSE(router->ready());
  instances[kGpu] = 11;
  link(kTok, kGpu, false);  // late news about the former one
  link(kTok, kGpu);
  EXPECT_FALSE(router->ready());
  instances[kGpu] = 12;
  link(kTok, kGpu);
  EXPECT_TRUE(router->ready());
}

TEST_F(RouterTest, RequestsOnAPairEndWithItsRings) {
  start_pair();
  add(kTok1, 22);
  link(kTok1, kGpu);
  run_request("c1", 1);
  run_request("c2", 2);
  at_tok(kTok1);
  link(kTok, kGpu, false);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 error worker_lost 0"));
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:1"));
  EXPECT_THAT(at("c2"), IsEmpty());
  EXPECT_TRUE(router->ready());
  expect_books_balance();
}

TEST_F(RouterTest, AnUnreachableWorkerIsLostAndTheRequestIsPlacedElsewhere) {
  start_pair();
  add(kTok1, 22);
  link(kTok1, kGpu);
  at_tok(kTok1);
  net.unreachable.insert(kTok);
  client("c1", text_request(1));
  EXPECT_THAT(at("c1"), ElementsAre("Accepted 1 1:1"));
  EXPECT_THAT(at_tok(kTok1), ElementsAre("Assign 1:1 gpu-worker.0 for c1"));
  EXPECT_EQ(count(Counter::kWorkersLost), 1u);
  expect_books_balance();
}

TEST_F(RouterTest, AFullDoorKeepsTheRequestWaiting) {
  start_pair();
  net.full.insert(kTok);
  client("c1", text_request(1));
  EXPECT_EQ(router->life().waiting(), 1u);
  EXPECT_GE(count(Counter::kSendsFull), 1u);
  net.full.clear();
  heartbeat(kGpu);
  EXPECT_THAT(at_tok(), ElementsAre("Assign 1:1 gpu-worker.0 for c1"));
  expect_books_balance();
}

// An acknowledgement that is lost is credit that never comes: the stream would stand still for ever.
TEST_F(RouterTest, AWorkerThatTakesNoAcknowledgementsIsLost) {
  start_pair();
  run_request("c1", 1);
  streams(kTok, to_client("c1", {{epoch(1), 1, 0, {7}, 0, "a"}}));
  at("c1");
  at_tok();
  net.full.insert(kTok);
  ack("c1", 1, 1, 1);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 error worker_lost 1"));
  EXPECT_EQ(count(Counter::kWorkersLost), 1u);
  net.full.clear();
  heartbeat(kTok);
  EXPECT_THAT(at_tok(), ElementsAre("GpuWorkers 0"));
  expect_books_balance();
}

TEST_F(RouterTest, AWorkerThatThisRouterDoesNotKnowIsAskedToRegister) {
  instances[kTok] = 21;
  instances[kGpu] = 11;
  heartbeat(kTok);
  heartbeat(kGpu);
  EXPECT_THAT(at_tok(), ElementsAre("GpuWorkers 0"));
  EXPECT_THAT(at_gpu(), ElementsAre("Registered 0"));
  link(kTok, kGpu);
  EXPECT_THAT(at_tok(), ElementsAre("GpuWorkers 0"));
}

TEST_F(RouterTest, AStalledWorkerIsDeadUntilItRegistersAgain) {
  start_pair();
  run_request("c1", 1);
  for (int i = 0; i < 3; ++i) {
    heartbeat(kTok);
    advance(kSecond);
  }
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 error worker_lost 0"));
  heartbeat(kGpu);  // SIGCONT
  EXPECT_THAT(at_gpu(), ElementsAre("Registered 0"));
  at_tok();
  add(kGpu, 11);
  EXPECT_THAT(at_gpu(), ElementsAre("Registered 1"));
  EXPECT_TRUE(router->ready());  // its rings were never unmapped
  expect_books_balance();
}

TEST_F(RouterTest, ARouterThatWasStoppedItselfBlamesNobody) {
  start_pair();
  run_request("c1", 1);
  heartbeat(kTok);
  heartbeat(kGpu);
  now += 40 * kSecond;  // no timer ran meanwhile, the messages lie unread
  tick();
  EXPECT_EQ(count(Counter::kWorkersLost), 0u);
  EXPECT_EQ(count(Counter::kClientsLost), 0u);
  advance(2 * kSecond);
  EXPECT_EQ(count(Counter::kWorkersLost), 2u);
}

TEST_F(RouterTest, RegisteringTwiceChangesNothing) {
  start_pair();
  run_request("c1", 1);
  add(kTok, 21);
  add(kGpu, 11);
  EXPECT_THAT(at_tok(), ElementsAre("GpuWorkers 1 gpu-worker.0/11"));
  EXPECT_THAT(at_gpu(), ElementsAre("Registered 1"));
  EXPECT_THAT(at("c1"), IsEmpty());
  EXPECT_TRUE(router->ready());
}

TEST_F(RouterTest, ModelsMustAgree) {
  add(kTok, 21);
  auto gpu = registration(kGpu, 11);
  gpu.model->weights_hash = 6;
  instances[kGpu] = 11;
  worker(kGpu, std::move(gpu));
  EXPECT_THAT(at_gpu(), ElementsAre("Registered 1"));
  EXPECT_THAT(at_tok(), ElementsAre("GpuWorkers 1"));  // and no second announcement
  link(kTok, kGpu);
  EXPECT_FALSE(router->ready());
  EXPECT_EQ(count(Counter::kWorkersRefused), 1u);
  // Refused for the sake of a worker that is gone now: it is taken in with its next heartbeat.
  for (int i = 0; i < 2; ++i) {
    advance(kSecond);
    heartbeat(kGpu);
  }
  EXPECT_THAT(at_gpu(), ElementsAre("Registered 1"));
  EXPECT_TRUE(router->workers().find(kGpu)->usable());
}

TEST_F(RouterTest, AGpuWorkersVocabularyMayBeSmallerButNotLarger) {
  add(kTok, 21);
  auto small = registration(kGpu, 11);
  small.model->vocab_size = 900;
  worker(kGpu, std::move(small));
  EXPECT_EQ(router->workers().limits().vocab_size, 900u);
  auto large = registration("gpu-worker.5", 15);
  large.model->vocab_size = 1001;
  worker("gpu-worker.5", std::move(large));
  EXPECT_FALSE(router->workers().find("gpu-worker.5")->usable());
}

TEST_F(RouterTest, PRM_05_TheSmallestContextIsTheLimitEverywhere) {
  start_pair();
  auto small = registration(kGpu1, 12);
  small.model->context_length = 32;
  worker(kGpu1, std::move(small));
  EXPECT_EQ(router->workers().limits().context_length, 32u);
  client("c1", ids_request(1, std::vector<uint32_t>(40, 5)));
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 0:0 refused context_length_exceeded 0"));
  // What it does not know yet, the length of a text, is checked by the tokenizer-worker against the same limit.
  client("c1", text_request(2, "a prompt"));
  const auto got = net.take(kWorkerChannel, kTok);
  ASSERT_FALSE(got.empty());
  EXPECT_EQ((*msg::open<msg::TokenizerWorkerMessage>(got.back()))->body_as_Assign()->context_length(), 32u);
}

TEST_F(RouterTest, BadRegistrationsAreRefused) {
  auto bad = [&](auto change) {
    auto r = registration(kGpu, 11);
    change(r);
    const uint64_t before = count(Counter::kWorkersRefused);
    worker(kGpu, std::move(r));
    EXPECT_EQ(count(Counter::kWorkersRefused), before + 1);
    EXPECT_TRUE(router->workers().all().empty());
  };
  bad([](msg::RegisterT& r) { r.name = ""; });
  bad([](msg::RegisterT& r) { r.name = std::string(65, 'x'); });
  bad([](msg::RegisterT& r) { r.name = "a\nb"; });
  bad([](msg::RegisterT& r) { r.name = "\xFF"; });
  bad([](msg::RegisterT& r) { r.kind = static_cast<msg::WorkerKind>(7); });
  bad([](msg::RegisterT& r) { r.instance = 0; });
  bad([](msg::RegisterT& r) { r.ring_socket = ""; });
  bad([](msg::RegisterT& r) { r.ring_socket = std::string(108, 'x'); });
  bad([](msg::RegisterT& r) { r.model = nullptr; });
  bad([](msg::RegisterT& r) { r.model->vocab_size = 0; });
}

// ---- stale pieces ----

TEST_F(RouterTest, AStalePieceIsTakenOutOfAPayloadAndTheRestGoesOn) {
  start_pair();
  run_request("c1", 1);
  run_request("c1", 2);
  cancel("c1", 2);
  advance_alive(2 * kSecond);  // 2 is ended by the router
  at("c1");
  at_tok();
  streams(kTok,
          to_client(
              "c1",
              {{epoch(1), 1, 0, {7}, 0, "a"}, {epoch(2), 2, 0, {8}, 0, "b"}, {epoch(77), 3, 0, {9}, 0, "c"}},
              {{epoch(2), 2, 1}}));
  EXPECT_THAT(at("c1"), ElementsAre("Stream piece 1 1:1 @0{7} 'a'@0"));
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:2", "Forget 1:77"));
  EXPECT_EQ(count(Counter::kStreamsRebuilt), 1u);
  EXPECT_EQ(count(Counter::kChunksStale), 3u);
}

TEST_F(RouterTest, OnlyTheOwnerSpeaksForARequest) {
  start_pair();
  add(kTok1, 22);
  at_tok(kTok1);
  run_request("c1", 1);
  streams(kTok1, to_client("c1", {{epoch(1), 1, 0, {7}, 0, "a"}}, {{epoch(1), 1, 1}}));
  EXPECT_THAT(at("c1"), IsEmpty());
  EXPECT_THAT(at_tok(kTok1), ElementsAre("Forget 1:1"));
  EXPECT_EQ(router->table().live(), 1u);
  // The right epoch under the wrong uid is as wrong.
  streams(kTok, to_client("c1", {{epoch(1), 2, 0, {7}, 0, "a"}}));
  EXPECT_THAT(at("c1"), IsEmpty());
}

TEST_F(RouterTest, TwoEndingsInOnePayloadAreOne) {
  start_pair();
  run_request("c1", 1);
  streams(kTok, to_client("c1", {}, {{epoch(1), 1, 0}, {epoch(1), 1, 0}}));
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 stop ok 0"));
  streams(kTok, to_client("c1", {}, {{epoch(1), 1, 0}}));
  EXPECT_THAT(at("c1"), IsEmpty());
  EXPECT_EQ(count(Counter::kEndedStop), 1u);
  expect_books_balance();
}

TEST_F(RouterTest, APayloadThatIsNoStreamIsDropped) {
  start_pair();
  run_request("c1", 1);
  flatbuffers::FlatBufferBuilder b;
  const auto pong = msg::seal<msg::ClientMessage>(b, msg::ClientBody::Pong, msg::CreatePong(b, 1).Union());
  auto to = to_client("c1", {});
  to->payload.assign(reinterpret_cast<const uint8_t*>(pong.data()),
                     reinterpret_cast<const uint8_t*>(pong.data()) + pong.size());
  streams(kTok, std::move(to));
  auto unknown_reason = to_client("c1", {}, {{epoch(1), 1, 0, static_cast<msg::FinishReason>(77)}});
  streams(kTok, std::move(unknown_reason));
  EXPECT_THAT(at("c1"), IsEmpty());
  EXPECT_EQ(count(Counter::kWorkerMessagesRejected), 2u);
  EXPECT_EQ(router->table().live(), 1u);
}

// ---- placement ----

TEST_F(RouterTest, RTE_03_UniquePromptsSpreadEvenlyAloneAndInCrowds) {
  start_pair();
  for (int i = 1; i < 4; ++i) add("gpu-worker." + std::to_string(i), 11 + static_cast<uint64_t>(i));
  for (int i = 1; i < 4; ++i) link(kTok, "gpu-worker." + std::to_string(i));
  at_tok();
  std::map<std::string, int> placed;
  const auto tally = [&] {
    for (const std::string& line : at_tok())
      if (line.rfind("Assign", 0) == 0) ++placed[line.substr(line.find("gpu"), 12)];
  };
  uint32_t n = 0;
  for (int i = 0; i < 40; ++i) {  // concurrency 1
    ++n;
    client("c1", text_request(n));
    streams(kTok, to_client("c1", {}, {{epoch(n), n, 0}}));
    tally();
  }
  EXPECT_THAT(placed,
              UnorderedElementsAre(testing::Pair("gpu-worker.0", 10), testing::Pair("gpu-worker.1", 10),
                                   testing::Pair("gpu-worker.2", 10), testing::Pair("gpu-worker.3", 10)));
  placed.clear();
  for (int i = 0; i < 64; ++i) client("c1", text_request(++n));  // concurrency 64
  tally();
  EXPECT_THAT(placed,
              UnorderedElementsAre(testing::Pair("gpu-worker.0", 16), testing::Pair("gpu-worker.1", 16),
                                   testing::Pair("gpu-worker.2", 16), testing::Pair("gpu-worker.3", 16)));
}

TEST_F(RouterTest, LoadDecidesBeforeTurns) {
  start_pair(/*max_live=*/4);
  add(kGpu1, 12, 8);
  link(kTok, kGpu1);
  at_tok();
  std::string order;
  for (uint64_t n = 1; n <= 12; ++n) client("c1", text_request(n));
  for (const std::string& line : at_tok()) order += line.substr(line.find("gpu-worker.") + 11, 1);
  EXPECT_EQ(std::count(order.begin(), order.end(), '0'), 4);  // in proportion to what they take
  EXPECT_EQ(std::count(order.begin(), order.end(), '1'), 8);
  EXPECT_EQ(order.substr(0, 3), "011");
}

TEST_F(RouterTest, BlocksInUseDecideBetweenEquallyManyRequests) {
  start_pair();
  add(kGpu1, 12);
  link(kTok, kGpu1);
  at_tok();
  for (const auto& [name, blocks_free] : {std::pair(kGpu, 10u), std::pair(kGpu1, 90u)}) {
    msg::HeartbeatT h;
    h.instance = instances[name];
    h.kind = msg::WorkerKind::gpu_worker;
    h.load = std::make_unique<msg::LoadT>();
    h.load->blocks_free = blocks_free;
    h.load->blocks_total = 100;
    worker(name, std::move(h));
  }
  client("c1", text_request(1));
  EXPECT_THAT(at_tok(), ElementsAre("Assign 1:1 gpu-worker.1 for c1"));
}

TEST_F(RouterTest, RTE_01_ClientErrorsDoNotTakeAWorkerAway) {
  start_pair();
  for (uint64_t n = 1; n <= 20; ++n) client("c1", ids_request(n, std::vector<uint32_t>(100, 5)));
  EXPECT_EQ(count(Counter::kRequestsRefused), 20u);
  // The same fault found by the worker, for texts.
  for (uint32_t n = 1; n <= 20; ++n) {
    client("c1", text_request(100 + n));
    streams(kTok, to_client("c1", {}, {{epoch(n), 100 + n, 0, msg::FinishReason::refused}}));
  }
  EXPECT_EQ(count(Counter::kEndedRefused), 20u);
  EXPECT_TRUE(router->ready());
  at("c1");
  at_tok();
  client("c1", text_request(999));
  EXPECT_THAT(at("c1"), ElementsAre("Accepted 999 1:21"));
  EXPECT_THAT(at_tok(), ElementsAre("Assign 1:21 gpu-worker.0 for c1"));
  expect_books_balance();
}

// Stopped for as long as a worker may be silent, with their heartbeats unread behind a full socket.
TEST_F(RouterTest, ItsOwnStopIsNotTheWorkersSilence) {
  start_pair();
  run_request("c1", 1);
  advance_alive(5 * kSecond);
  heartbeat(kTok);
  heartbeat(kGpu);
  advance(400 * kMillisecond);
  for (Nanos late = 0; late < 500 * kMillisecond; late += 20 * kMillisecond) {
    RouterOptions options = options_;
    now += options.worker_timeout - 400 * kMillisecond + late;
    tick();
    EXPECT_EQ(count(Counter::kWorkersLost), 0u) << "woke up " << late << " ns after the silence was over";
    heartbeat(kTok);
    heartbeat(kGpu);
    advance(400 * kMillisecond);
  }
}

}  // namespace
}  // namespace ringmaster::router
