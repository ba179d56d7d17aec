// Requests that go well: every id right, every ending once, everything given back.
#include <random>
#include <set>

#include "tests/gpu-worker/worker/worker_fixture.h"

namespace ringmaster::gpu_worker {
namespace {

TEST_F(WorkerTest, OneRequestFromStartToEnd) {
  make();
  auto& side = attach("tokenizer-worker.0");
  side.start(5, {1, 2, 3}, 4);
  ASSERT_TRUE(run_until([&] { return side.has_ended(5); }));
  const Stream& stream = side[5];
  EXPECT_EQ(stream.tokens, (std::vector<TokenId>{9781, 9288, 35816, 48060}));
  const shm::EndedRecord& ended = *stream.ended;
  EXPECT_EQ(ended.reason, static_cast<uint8_t>(msg::FinishReason::length));
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.prompt_tokens, 3u);
  EXPECT_EQ(ended.cached_tokens, 0u);
  EXPECT_EQ(ended.output_tokens, 4u);
  EXPECT_EQ(ended.first_step_at, 1000 * kSecond);
  EXPECT_EQ(ended.first_token_at, 1000 * kSecond + 2 * kMillisecond);
  EXPECT_EQ(ended.last_token_at, 1000 * kSecond + 8 * kMillisecond);
  run_until([&] { return worker->scheduler().idle(); });
  expect_baseline();
}

TEST_F(WorkerTest, TheTokenizersBellRingsOnceForAStep) {
  make();
  auto& side = attach("tokenizer-worker.0");
  for (Epoch epoch = 1; epoch <= 8; ++epoch)
    side.start(epoch, make_prompt(4, static_cast<uint32_t>(epoch)), 3);
  const uint32_t before = bells[0]->sequence();
  settle();
  EXPECT_EQ(bells[0]->sequence(), before) << "nothing to say yet";
  now = device->next_event();
  worker->poll(now);
  const uint32_t after = bells[0]->sequence();
  EXPECT_NE(after, before);
  side.receive();
  EXPECT_EQ(side.token_records, 1u) << "one record for the step's eight tokens";
  for (Epoch epoch = 1; epoch <= 8; ++epoch) EXPECT_EQ(side[epoch].tokens.size(), 1u);
}

TEST_F(WorkerTest, StopIdEndsTheStreamAndIsDelivered) {
  make();
  auto& side = attach("tokenizer-worker.0");
  const auto prompt = make_prompt(9);
  const auto want = expected_tokens(prompt, 10);
  Start start(1, prompt, 20);
  start.stop_ids = {want[3], 17};
  side.start(start);
  ASSERT_TRUE(run_until([&] { return side.has_ended(1); }));
  expect_tokens(side, 1, prompt, 4, msg::FinishReason::stop);
}

TEST_F(WorkerTest, StopIdIsNotSaidBeforeMinTokens) {
  make();
  auto& side = attach("tokenizer-worker.0");
  const auto prompt = make_prompt(9);
  const auto want = expected_tokens(prompt, 10);
  Start start(1, prompt, 8);
  start.stop_ids = {want[3]};
  start.record.min_tokens = 5;
  side.start(start);
  ASSERT_TRUE(run_until([&] { return side.has_ended(1); }));
  const auto& tokens = side[1].tokens;
  ASSERT_EQ(tokens.size(), 8u);
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.begin() + 3, want.begin()));
  EXPECT_NE(tokens[3], want[3]);
}

TEST_F(WorkerTest, GrantsBoundWhatIsUnderWay) {
  make();
  auto& side = attach("tokenizer-worker.0");
  const auto prompt = make_prompt(20);
  Start start(1, prompt, 12);
  start.record.granted = 2;
  side.start(start);
  const auto runs_dry = [&] {
    return run_until([&] { return router.heartbeats.size() >= 3 && worker->scheduler().in_flight() == 0; });
  };
  ASSERT_TRUE(runs_dry());
  EXPECT_EQ(side[1].tokens.size(), 2u);
  side.grant(1, 7);
  side.grant(1, 4);  // never shrinks
  router.heartbeats.clear();
  ASSERT_TRUE(runs_dry());
  EXPECT_EQ(side[1].tokens.size(), 7u);
  side.grant(1, 1000);
  ASSERT_TRUE(run_until([&] { return side.has_ended(1); }));
  expect_tokens(side, 1, prompt, 12, msg::FinishReason::length);
}

TEST_F(WorkerTest, StopAtEndsAtTheGivenToken) {
  make();
  auto& side = attach("tokenizer-worker.0");
  const auto prompt = make_prompt(6);
  side.start(1, prompt, 100);
  ASSERT_TRUE(run_until([&] { return side[1].tokens.size() == 5; }));
  side.stop_at(1, 3);  // found two tokens later
  ASSERT_TRUE(run_until([&] { return side.has_ended(1); }));
  EXPECT_EQ(side[1].ended->reason, static_cast<uint8_t>(msg::FinishReason::stop));
  EXPECT_EQ(side[1].ended->output_tokens, 3u) << "what ran past the stop is not billed";
}

TEST_F(WorkerTest, DeadlineEndsRunningAndWaiting) {
  config.max_running = 1;
  make();
  auto& side = attach("tokenizer-worker.0");
  Start running(1, make_prompt(4), 200), waiting(2, make_prompt(4, 1), 200);
  running.record.deadline = now + 21 * kMillisecond;
  waiting.record.deadline = now + 11 * kMillisecond;
  side.start(running);
  side.start(waiting);
  ASSERT_TRUE(run_until([&] { return side.has_ended(1) && side.has_ended(2); }));
  for (const Epoch epoch : {1, 2}) {
    EXPECT_EQ(side[epoch].ended->reason, static_cast<uint8_t>(msg::FinishReason::deadline));
    EXPECT_EQ(side[epoch].ended->code, static_cast<uint8_t>(Code::kDeadlineExceeded));
  }
  EXPECT_EQ(side[1].tokens.size(), 10u) << "20 ms of steps of 2 ms";
  EXPECT_EQ(side[2].tokens.size(), 0u);
  EXPECT_EQ(now, 1000 * kSecond + 21 * kMillisecond) << "on time, without waiting for a step";
}

TEST_F(WorkerTest, LogprobsAndLogitBiasReachTheSampler) {
  make();
  auto& side = attach("tokenizer-worker.0");
  const auto prompt = make_prompt(9);
  const TokenId winner = expected_tokens(prompt, 1)[0];
  Start start(1, prompt, 1);
  start.record.logprobs = 4;
  start.biases = {{winner, -100}, {3, 1}};
  side.start(start);
  ASSERT_TRUE(run_until([&] { return side.has_ended(1); }));
  const Stream& stream = side[1];
  ASSERT_EQ(stream.tokens.size(), 1u);
  EXPECT_NE(stream.tokens[0], winner);
  ASSERT_EQ(stream.top[0].size(), 3u);
  EXPECT_EQ(stream.top[0][0].id, winner);
  EXPECT_LT(stream.logprobs[0], stream.top[0][0].logprob);
}

TEST_F(WorkerTest, AResumedStreamContinuesWhereItWas) {
  make();
  auto& side = attach("tokenizer-worker.0");
  const auto prompt = make_prompt(9);
  const auto want = expected_tokens(prompt, 10);
  Start start(1, prompt, 10);
  start.prompt.insert(start.prompt.end(), want.begin(), want.begin() + 4);
  start.prompt_record.count = 13;
  side.streams[1].tokens.assign(want.begin(),
                                want.begin() + 4);  // so that token numbers are checked from 4 on
  side.start(start);
  ASSERT_TRUE(run_until([&] { return side.has_ended(1); }));
  expect_tokens(side, 1, prompt, 10, msg::FinishReason::length);
  EXPECT_EQ(side[1].ended->prompt_tokens, 9u);
  EXPECT_EQ(side[1].ended->output_tokens, 10u);
}

// The one that finds lost, repeated or mixed up ids anywhere: shared prefixes, preemption, cancels, late
// grants, stops.
TEST_F(WorkerTest, ManyRequestsFromTwoSlotsWithRandomCancels) {
  config.kv_memory = 64 * kBlockTokens * kFakeKvBytesPerToken;  // one context: preemption happens
  make();
  std::vector<TokenizerSide*> peers = {&attach("tokenizer-worker.0"), &attach("tokenizer-worker.1")};
  struct Request {
    TokenizerSide* side;
    std::vector<TokenId> prompt;
    uint32_t max_tokens, granted, cancel_after, stop_after;
    bool done = false, cancelled = false, stopped = false;
  };
  std::mt19937 random(20260101);
  const auto pick = [&](uint32_t from, uint32_t to) {
    return from + static_cast<uint32_t>(random()) % (to - from + 1);
  };
  std::map<Epoch, Request> requests;
  Epoch next = 1;
  constexpr Epoch kRequests = 256;
  const auto add = [&] {
    Request r{peers[next % 2], make_prompt(pick(0, 3) * 8, pick(0, 2)), pick(1, 40), 0, UINT32_MAX,
              UINT32_MAX};
    const auto tail = make_prompt(pick(1, 30), 1000 + static_cast<uint32_t>(next));
    r.prompt.insert(r.prompt.end(), tail.begin(), tail.end());
    if (next % 3 == 0) r.cancel_after = pick(0, 20);
    if (next % 5 == 0) r.stop_after = pick(1, 20);
    r.granted = next % 4 == 0 ? pick(1, 5) : 1000;
    Start start(next, r.prompt, r.max_tokens);
    start.record.granted = r.granted;
    start.record.priority = static_cast<int32_t>(pick(0, 2));
    r.side->start(start);
    requests.emplace(next++, std::move(r));
  };
  const auto steer = [&] {
    while (next <= kRequests && random() % 4 == 0) add();
    size_t done = 0;
    for (auto& [epoch, r] : requests) {
      if (r.done) {
        ++done;
        continue;
      }
      const auto count = static_cast<uint32_t>((*r.side)[epoch].tokens.size());
      r.done = r.side->has_ended(epoch);
      if (r.done) continue;
      if (count >= r.granted) r.side->grant(epoch, r.granted = count + pick(1, 9));
      if (!r.cancelled && count >= r.cancel_after) r.side->cancel(epoch), r.cancelled = true;
      if (!r.stopped && count >= r.stop_after) r.side->stop_at(epoch, r.stop_after), r.stopped = true;
    }
    return next > kRequests && done == kRequests;
  };
  ASSERT_TRUE(run_until(steer));
  std::map<uint8_t, int> reasons;
  for (auto& [epoch, r] : requests) {
    const Stream& stream = (*r.side)[epoch];
    ASSERT_EQ(stream.endings, 1) << epoch;
    const auto want = expected_tokens(r.prompt, static_cast<uint32_t>(stream.tokens.size()));
    EXPECT_EQ(stream.tokens, want) << "epoch " << epoch;
    const auto reason = static_cast<msg::FinishReason>(stream.ended->reason);
    ++reasons[stream.ended->reason];
    if (reason == msg::FinishReason::length) {
      EXPECT_EQ(stream.tokens.size(), r.max_tokens) << epoch;
    }
    if (reason == msg::FinishReason::cancelled) {
      EXPECT_TRUE(r.cancelled) << epoch;
    }
    if (reason == msg::FinishReason::stop) {
      EXPECT_TRUE(r.stopped) << epoch;
    }
    EXPECT_TRUE(peers[0]->streams.count(epoch) + peers[1]->streams.count(epoch) == 1)
        << "in the other's ring";
  }
  EXPECT_GT(reasons[static_cast<uint8_t>(msg::FinishReason::length)], 50);
  EXPECT_GT(reasons[static_cast<uint8_t>(msg::FinishReason::cancelled)], 20);
  EXPECT_GT(reasons[static_cast<uint8_t>(msg::FinishReason::stop)], 10);
  EXPECT_GT(worker->scheduler().stats().preemptions, 0u) << "the test lost a part of what it is about";
  EXPECT_GT(worker->kv().stats().hit_tokens, 0u);
  run_until([&] { return worker->scheduler().idle(); });
  settle();
  expect_baseline();
}

}  // namespace
}  // namespace ringmaster::gpu_worker
