// Commands, limits and endings of single sequences.
#include <gtest/gtest.h>

#include "tests/gpu-worker/schedule/world.h"

namespace ringmaster::gpu_worker {
namespace {

TEST(Life, AGrantThatRunsOutPausesAndAnotherResumes) {
  World w;
  NewSequence fresh = World::request(1, {1, 2, 3}, 10);
  fresh.granted = 2;
  w.submit(fresh);
  EXPECT_EQ(w.plan(), "0: 0+3 #0");
  EXPECT_EQ(w.plan(), "0: 3+1 #1");
  w.retire();
  EXPECT_EQ(w.plan(), "") << "two tokens are granted and both are on their way";
  EXPECT_EQ(w.scheduler.num_paused(), 1u);
  w.retire();
  EXPECT_EQ(w.outputs(1).size(), 2u);
  EXPECT_EQ(w.kv.num_used(), 1u) << "keeps its block";
  EXPECT_TRUE(w.scheduler.grant(1, 1));  // never shrinks
  EXPECT_EQ(w.plan(), "");
  EXPECT_TRUE(w.scheduler.grant(1, 4));
  EXPECT_EQ(w.plan(), "0: 4+1 #2");
  EXPECT_EQ(w.last.ids, (Ids{w.outputs(1)[1]}));
  EXPECT_TRUE(w.last.opens.empty()) << "it still has its lane";
  EXPECT_TRUE(w.scheduler.grant(1, 10));
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs({1, 2, 3}, 10));
  EXPECT_FALSE(w.scheduler.grant(1, 11));
  w.expect_baseline();
}

TEST(Life, AGrantBetweenTwoStepsLosesNothing) {
  World w;
  NewSequence fresh = World::request(1, {1, 2, 3}, 10);
  fresh.granted = 1;
  w.submit(fresh);
  EXPECT_EQ(w.plan(), "0: 0+3 #0");
  EXPECT_EQ(w.plan(), "");
  w.scheduler.grant(1, 10);  // while its token is in flight
  EXPECT_EQ(w.plan(), "0: 3+1 #1");
  EXPECT_EQ(w.last.ids, (Ids{kFromLane}));
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs({1, 2, 3}, 10));
}

TEST(Life, NothingGrantedStartsNothing) {
  World w;
  NewSequence fresh = World::request(1, {1, 2, 3}, 2);
  fresh.granted = 0;
  w.submit(fresh);
  EXPECT_EQ(w.plan(), "");
  EXPECT_EQ(w.scheduler.num_paused(), 1u);
  w.scheduler.grant(1, 2);
  w.run();
  EXPECT_EQ(w.outputs(1).size(), 2u);
}

TEST(Life, AHeldOwnerSitsOutAndTheOthersGoOn) {
  World w;
  NewSequence mine = World::request(1, {1, 2, 3}, 8), other = World::request(2, {4, 5}, 8);
  mine.owner = 3;
  other.owner = 4;
  w.submit(mine);
  w.submit(other);
  EXPECT_EQ(w.plan_and_retire(), "0: 0+3 #0, 1: 0+2 #0");
  w.scheduler.hold(3, true);
  EXPECT_EQ(w.plan_and_retire(), "1: 2+1 #1");
  NewSequence late = World::request(5, {6, 7}, 1);
  late.owner = 3;
  w.submit(late);
  EXPECT_EQ(w.plan_and_retire(), "1: 3+1 #2");
  w.scheduler.hold(3, false);
  EXPECT_EQ(w.plan_and_retire(), "1: 4+1 #3, 0: 3+1 #1, 2: 0+2 #0");
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs({1, 2, 3}, 8));
  EXPECT_EQ(w.outputs(2), expected_outputs({4, 5}, 8));
  EXPECT_EQ(w.events.tokens.front().owner, 3u);
  w.expect_baseline();
}

TEST(Life, CancelInEveryState) {
  World w({.scheduler = {.max_running = 1, .step_tokens = 8}});
  w.submit(1, counting(10, 20), 5);
  EXPECT_TRUE(w.scheduler.cancel(1, w.events));  // waiting, never ran
  w.expect_baseline();
  EXPECT_EQ(w.ending(1).first_step_at, 0);

  w.submit(2, counting(10, 20), 5);
  w.plan();
  EXPECT_TRUE(w.scheduler.cancel(2, w.events));  // in the middle of its prompt, in flight
  w.check();
  EXPECT_EQ(w.plan(), "");
  w.retire();
  w.expect_baseline();

  w.submit(3, {1, 2}, 50);
  w.plan();
  w.plan();
  w.retire();
  EXPECT_TRUE(w.scheduler.cancel(3, w.events));  // decoding, with a row in flight
  w.check();
  EXPECT_FALSE(w.scheduler.cancel(3, w.events));
  w.retire();
  EXPECT_EQ(w.outputs(3).size(), 1u);
  w.expect_baseline();

  NewSequence paused = World::request(4, {1, 2}, 50);
  paused.granted = 1;
  w.submit(paused);
  w.run();
  EXPECT_TRUE(w.scheduler.cancel(4, w.events));  // paused with lane and blocks
  w.expect_baseline();

  EXPECT_FALSE(w.scheduler.cancel(99, w.events));
  for (Epoch epoch : {1, 2, 3, 4}) {
    EXPECT_EQ(w.ending(epoch).reason, EndReason::kCancelled);
    EXPECT_EQ(w.ending(epoch).code, Code::kCancelled);
  }
}

TEST(Life, CancelOfAPreemptedOneInFlight) {
  World w({.blocks = 4, .prefix_cache = false, .scheduler = {.max_running = 2, .step_tokens = 32}});
  w.submit(1, counting(10, 7), 8);
  w.submit(2, counting(50, 3), 8);
  w.plan();
  w.plan();
  w.retire();
  w.plan();
  ASSERT_EQ(w.scheduler.stats().preemptions, 1u);
  EXPECT_TRUE(w.scheduler.cancel(2, w.events));
  w.check();
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs(counting(10, 7), 8));
  EXPECT_EQ(w.outputs(2).size(), 1u);
  w.expect_baseline();
}

TEST(Life, StopAtEndsBeforeThatToken) {
  World w;
  w.submit(1, {1, 2, 3}, 50);
  for (int i = 0; i < 5; ++i) w.plan_and_retire();
  EXPECT_TRUE(w.scheduler.stop_at(1, 3, w.events));
  EXPECT_EQ(w.ending(1).reason, EndReason::kStop);
  EXPECT_EQ(w.ending(1).output_tokens, 3u);
  w.expect_baseline();
  w.submit(2, {1, 2, 3}, 50);
  w.plan();
  EXPECT_TRUE(w.scheduler.stop_at(2, 2, w.events));  // ahead of what is known
  w.run();
  EXPECT_EQ(w.outputs(2).size(), 2u);
  EXPECT_EQ(w.ending(2).reason, EndReason::kStop);
  w.expect_baseline();
}

TEST(Life, DeadlinesHoldWaitingPausedAndRunning) {
  World w({.scheduler = {.max_running = 1, .step_tokens = 8}});
  NewSequence runs = World::request(1, {1, 2}, 200), waits = World::request(2, {3}, 5);
  NewSequence paused = World::request(3, {4}, 5);
  runs.deadline = w.now + 10 * kMillisecond;
  waits.deadline = w.now + 20 * kMillisecond;
  paused.deadline = w.now + 30 * kMillisecond;
  paused.granted = 0;
  w.submit(runs);
  w.submit(paused);
  w.plan();
  w.submit(waits);
  EXPECT_EQ(w.scheduler.next_wake(), kSecond + 10 * kMillisecond);
  w.scheduler.expire(w.now, w.events);
  EXPECT_TRUE(w.events.endings.empty());
  w.now += 10 * kMillisecond;
  w.scheduler.expire(w.now, w.events);
  w.check();
  EXPECT_EQ(w.ending(1).reason, EndReason::kDeadline);
  EXPECT_EQ(w.ending(1).code, Code::kDeadlineExceeded);
  EXPECT_EQ(w.scheduler.next_wake(), kSecond + 20 * kMillisecond);
  w.now += 100 * kMillisecond;
  w.scheduler.expire(w.now, w.events);
  EXPECT_EQ(w.ending(2).reason, EndReason::kDeadline);
  EXPECT_EQ(w.ending(3).reason, EndReason::kDeadline);
  EXPECT_EQ(w.scheduler.next_wake(), kNever);
  w.retire();
  EXPECT_TRUE(w.outputs(1).empty()) << "a result after the end is dropped";
  w.expect_baseline();
}

TEST(Life, TheBatchingWindowWaitsForCompanyFromIdleOnly) {
  World w({.scheduler = {.max_running = 3, .step_tokens = 32, .batching_window = 5 * kMillisecond}});
  const Nanos start = w.now;
  w.submit(1, {1, 2}, 20);
  EXPECT_EQ(w.plan(), "");
  EXPECT_EQ(w.scheduler.next_wake(), start + 5 * kMillisecond);
  w.now += 4 * kMillisecond;
  w.submit(2, {3, 4}, 1);
  EXPECT_EQ(w.plan(), "");
  w.now += 1 * kMillisecond;
  EXPECT_EQ(w.plan_and_retire(), "0: 0+2 #0, 1: 0+2 #0");
  EXPECT_EQ(w.scheduler.next_wake(), kNever);
  w.submit(3, {5, 6}, 1);
  EXPECT_EQ(w.plan_and_retire(), "0: 2+1 #1, 1: 0+2 #0") << "no waiting while something runs";
  w.run();
  // A full batch does not wait, neither does a full step.
  w.submit(4, {1}, 1);
  w.submit(5, {1}, 1);
  EXPECT_EQ(w.plan(), "");
  w.submit(6, {1}, 1);
  EXPECT_NE(w.plan(), "");
  w.run();
  w.submit(7, counting(0, 32), 1);
  EXPECT_NE(w.plan(), "");
  w.run();
  w.submit(8, {1}, 1);
  w.scheduler.cancel(8, w.events);
  EXPECT_EQ(w.scheduler.next_wake(), kNever);
  w.expect_baseline();
}

TEST(Life, AResumedStreamContinuesItsNumbers) {
  World w;
  const Ids all = expected_outputs({1, 2, 3}, 10);
  NewSequence fresh = World::request(1, {1, 2, 3}, 10);
  fresh.ids.insert(fresh.ids.end(), all.begin(), all.begin() + 4);
  w.submit(fresh);
  EXPECT_EQ(w.plan(), "0: 0+7 #4");
  EXPECT_EQ(w.last.opens.at(0).prompt_count, 3u);
  w.run();
  ASSERT_EQ(w.events.tokens.size(), 6u);
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(w.events.tokens[i].token_number, 4 + i);
    EXPECT_EQ(w.events.tokens[i].id, all[4 + i]);
  }
  EXPECT_EQ(w.ending(1).output_tokens, 10u);
  EXPECT_EQ(w.ending(1).prompt_tokens, 3u);
}

TEST(Life, AResumedStreamThatWasCompleteEndsAtOnce) {
  World w;
  NewSequence full = World::request(1, {1, 2, 3, 40, 41}, 2),
              stopped = World::request(2, {1, 2, 3, 40, 41}, 9);
  full.prompt_count = stopped.prompt_count = 3;
  stopped.stop_ids = {41};
  w.submit(full);
  w.submit(stopped);
  w.scheduler.grant(1, 100);
  EXPECT_LE(w.scheduler.next_wake(), w.now);
  EXPECT_EQ(w.plan(), "");
  w.scheduler.expire(w.now, w.events);
  EXPECT_EQ(w.ending(1).reason, EndReason::kLength);
  EXPECT_EQ(w.ending(2).reason, EndReason::kStop);
  EXPECT_EQ(w.ending(2).output_tokens, 2u);
  w.expect_baseline();
}

TEST(Life, RebindKeepsTheWorkUnderANewName) {
  World w;
  w.submit(1, {1, 2, 3}, 10);
  w.plan();
  w.plan();
  w.retire();
  ASSERT_TRUE(w.scheduler.rebind(1, 77, 5, 3).ok());
  w.check();
  EXPECT_EQ(w.scheduler.find(1), nullptr);
  EXPECT_EQ(w.scheduler.find(77)->outputs(), 1u);
  EXPECT_EQ(w.plan(), "0: 4+1 #2");
  EXPECT_EQ(w.scheduler.rebind(1, 78, 5, 3).error().code, Code::kNotFound);
  EXPECT_EQ(w.scheduler.rebind(77, 77, 5, 3).error().code, Code::kAlreadyExists);
  EXPECT_EQ(w.scheduler.rebind(77, 78, 16, 3).error().code, Code::kInvalidArgument);
  w.run();
  EXPECT_EQ(w.scheduler.num_paused(), 1u) << "the new owner granted three";
  w.scheduler.grant(77, 10);
  w.run();
  const Ids all = expected_outputs({1, 2, 3}, 10);
  ASSERT_EQ(w.events.tokens.size(), 10u);
  for (uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(w.events.tokens[i].epoch, i == 0 ? 1u : 77u);
    EXPECT_EQ(w.events.tokens[i].owner, i == 0 ? 0u : 5u);
    EXPECT_EQ(w.events.tokens[i].token_number, i);
    EXPECT_EQ(w.events.tokens[i].id, all[i]);
  }
}

TEST(Life, LogitsThatAreNotFiniteEndOneRequestAndPoisonNobody) {
  World w;
  w.device.failing = {2};
  w.submit(1, {1, 2, 3}, 5);
  w.submit(2, counting(100, 9), 5);
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs({1, 2, 3}, 5));
  EXPECT_TRUE(w.outputs(2).empty());
  EXPECT_EQ(w.ending(2).reason, EndReason::kError);
  EXPECT_EQ(w.ending(2).code, Code::kInternal);
  w.submit(3, counting(100, 9), 5);
  w.run();
  EXPECT_EQ(w.ending(3).cached_tokens, 0u);
  EXPECT_EQ(w.outputs(3), expected_outputs(counting(100, 9), 5));
  w.expect_baseline();
}

// In chunks: the first chunk is published before the last one fails.
TEST(Life, WhatAFailedRequestHadPublishedIsForgotten) {
  World w({.scheduler = {.max_running = 4, .step_tokens = 4}});
  w.device.failing = {1};
  w.submit(1, counting(100, 9), 5);
  w.plan_and_retire();
  EXPECT_EQ(w.kv.stats().published_blocks, 1u);
  w.run();
  EXPECT_EQ(w.kv.num_cached(), 0u);
  w.expect_baseline();
}

TEST(Life, TimestampsAreInOrder) {
  World w;
  const Nanos start = w.now;
  w.submit(1, {1, 2, 3}, 3);
  w.now += 7;
  w.run();
  const EndEvent end = w.ending(1);
  EXPECT_EQ(end.first_step_at, start + 7);
  EXPECT_EQ(end.first_token_at, start + 7 + kMillisecond);
  EXPECT_EQ(end.last_token_at, start + 7 + 3 * kMillisecond);
}

TEST(Life, RefusalsNameTheNumbers) {
  World w({.blocks = 8,
           .scheduler = {.context_length = 100, .max_running = 2, .max_waiting = 2, .step_tokens = 8}});
  const auto refused = [&](NewSequence fresh, Code code, const std::string& part) {
    const Status status = w.scheduler.submit(std::move(fresh), w.now);
    ASSERT_FALSE(status.ok()) << part;
    EXPECT_EQ(status.error().code, code) << status.error().message;
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
    EXPECT_TRUE(w.scheduler.idle());
  };
  refused(World::request(1, {}, 5), Code::kInvalidArgument, "empty");
  refused(World::request(0, {1}, 5), Code::kInvalidArgument, "epoch is 0");
  refused(World::request(1, {1, kVocab}, 5), Code::kInvalidArgument,
          "ids[1] is 1000; the model's ids are 0 to 999");
  refused(World::request(1, {kFromLane}, 5), Code::kInvalidArgument, "ids[0] is 4294967295");
  refused(World::request(1, counting(0, 20), 81), Code::kContextLengthExceeded, "needs 101 tokens");
  refused(World::request(1, counting(0, 20), 0xFFFFFFFF), Code::kContextLengthExceeded,
          "needs 4294967315 tokens");
  refused(World::request(1, counting(0, 100), 0), Code::kContextLengthExceeded, "needs 101 tokens");
  refused(World::request(1, counting(0, 20), 14), Code::kResourceExhausted,
          "needs 33 positions of KV cache, the whole cache has 32 (8 blocks of 4)");
  refused(World::request(1, counting(0, 33), 0), Code::kResourceExhausted, "needs 33 positions");
  NewSequence bad = World::request(1, {1}, 5);
  bad.owner = 16;
  refused(bad, Code::kInvalidArgument, "owner is 16; allowed: 0 to 15");
  bad = World::request(1, {1}, 5);
  bad.prompt_count = 2;
  refused(bad, Code::kInvalidArgument, "prompt_count is 2, but only 1 ids came");
  bad = World::request(1, {1}, 5);
  bad.stop_ids = {kVocab};
  refused(bad, Code::kInvalidArgument, "stop_ids[0]");
  bad = World::request(1, {1}, 5);
  bad.stop_ids = Ids(65, 1);
  refused(bad, Code::kInvalidArgument, "65 stop ids; at most 64");
  bad = World::request(1, {1}, 5);
  bad.sampling.logit_bias = {{.id = kVocab, .bias = 1}};
  refused(bad, Code::kInvalidArgument, "logit_bias names id 1000");
  bad = World::request(1, {1}, 5);
  bad.sampling.temperature = -1;
  refused(bad, Code::kInvalidArgument, "temperature");
  bad = World::request(1, {1}, 5);
  bad.logprobs = 22;
  refused(bad, Code::kInvalidArgument, "21 alternatives; at most 20");

  w.submit(1, counting(0, 20), 13);  // exactly the pool
  EXPECT_EQ(w.scheduler.submit(World::request(1, {1}, 5), w.now).error().code, Code::kAlreadyExists);
  w.submit(2, {1}, 1);
  EXPECT_EQ(w.scheduler.submit(World::request(3, {1}, 5), w.now).error().code, Code::kOverloaded);
  w.run();
  EXPECT_EQ(w.outputs(1).size(), 13u);
}

TEST(Life, WithoutMaxTokensItGoesToTheEndOfWhatFits) {
  World context({.scheduler = {.context_length = 30, .max_running = 2}}), pool({.blocks = 5});
  for (World* w : {&context, &pool}) {
    w->submit(1, counting(0, 10), 0);
    w->run();
    EXPECT_EQ(w->ending(1).reason, EndReason::kLength);
  }
  EXPECT_EQ(context.outputs(1).size(), 20u);
  EXPECT_EQ(pool.outputs(1).size(), 11u);  // 20 positions; the last token needs none
}

TEST(Life, ContradictingSettingsAreRefusedByName) {
  SchedulerConfig config = World::complete({.max_running = 64, .step_tokens = 32});
  const auto message = [&] {
    const Status status = Scheduler::validate(config);
    return status.ok() ? std::string("ok") : status.error().message;
  };
  EXPECT_NE(message().find("step_tokens (32) is below max_running (64)"), std::string::npos);
  config.step_tokens = 64;
  EXPECT_EQ(message(), "ok");
  config.prefill_chunk = 0;
  EXPECT_NE(message().find("prefill_chunk is 0"), std::string::npos);
  config.prefill_chunk = 1;
  config.ageing_interval = 0;
  EXPECT_NE(message().find("ageing_interval"), std::string::npos);
}

TEST(Life, AResultThatDoesNotBelongToTheStepIsAnError) {
  World w;
  EXPECT_EQ(w.scheduler.retire({.step = 1}, w.now, w.events).error().code, Code::kInternal);
  w.submit(1, {1, 2}, 5);
  w.plan();
  const auto error_of = [&](StepResult result) {
    return w.scheduler.retire(std::move(result), w.now, w.events).error().message;
  };
  EXPECT_NE(error_of({.step = 2}).find("oldest step in flight is 1"), std::string::npos);
  EXPECT_NE(error_of({.step = 1}).find("only 0 sampled rows"), std::string::npos);
  EXPECT_NE(error_of({.step = 1, .rows = {{.lane = 3, .id = 1}}}).find("planned was lane 0"),
            std::string::npos);
  EXPECT_NE(error_of({.step = 1, .rows = {{.lane = 0, .id = kVocab}}}).find("sampled id 1000"),
            std::string::npos);
  EXPECT_NE(
      error_of({.step = 1, .rows = {{.lane = 0, .id = 1}, {.lane = 0, .id = 1}}}).find("planned were 1"),
      std::string::npos);
}

}  // namespace
}  // namespace ringmaster::gpu_worker
