// Too few blocks or lanes: preemption, victims, skip-ahead, ageing. Blocks hold 4 tokens.
#include <gtest/gtest.h>

#include "tests/gpu-worker/schedule/world.h"

namespace ringmaster::gpu_worker {
namespace {

TEST(Pressure, PreemptionByRecomputeGivesTheSameTokens) {
  for (const bool prefix_cache : {false, true}) {
    World w({.blocks = 6, .prefix_cache = prefix_cache, .scheduler = {.max_running = 3, .step_tokens = 32}});
    w.submit(1, counting(10, 6), 15);  // 20 positions: 5 blocks
    w.submit(2, counting(50, 6), 15);
    w.submit(3, counting(90, 3), 15);
    w.run();
    EXPECT_GT(w.scheduler.stats().preemptions, 0u);
    EXPECT_GT(w.scheduler.stats().recomputed_tokens, 0u);
    EXPECT_EQ(w.outputs(1), expected_outputs(counting(10, 6), 15));
    EXPECT_EQ(w.outputs(2), expected_outputs(counting(50, 6), 15));
    EXPECT_EQ(w.outputs(3), expected_outputs(counting(90, 3), 15));
    for (Epoch epoch : {1, 2, 3}) EXPECT_EQ(w.ending(epoch).reason, EndReason::kLength);
    w.expect_baseline();
  }
}

// Two steps are in flight when 2 loses its blocks: the token on its way still counts, the blocks come back
// when the last of its steps has retired, and it starts again from its prompt and output with the right token
// number.
TEST(Pressure, AVictimInFlightDeliversThenStartsAgain) {
  World w({.blocks = 4, .prefix_cache = false, .scheduler = {.max_running = 2, .step_tokens = 32}});
  w.submit(1, counting(10, 7), 8);  // 14 positions, 4 blocks
  w.submit(2, counting(50, 3), 8);  // 10 positions, 3 blocks
  EXPECT_EQ(w.plan(), "0: 0+7 #0, 1: 0+3 #0");
  EXPECT_EQ(w.plan(), "0: 7+1 #1, 1: 3+1 #1");
  w.retire();
  EXPECT_EQ(w.plan(), "0: 8+1 #2") << "1 takes the last block, 2 needs one: it is the victim";
  EXPECT_EQ(w.scheduler.stats().preemptions, 1u);
  EXPECT_EQ(w.scheduler.find(2)->state, SequenceState::kWaiting);
  EXPECT_EQ(w.scheduler.find(2)->rows_in_flight, 1u);
  EXPECT_EQ(w.kv.releasing(), 1u);
  w.retire();
  EXPECT_EQ(w.kv.releasing(), 0u);
  EXPECT_EQ(w.outputs(2).size(), 2u);
  EXPECT_EQ(w.plan(), "0: 9+1 #3") << "2 needs two blocks and one is free";
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs(counting(10, 7), 8));
  EXPECT_EQ(w.outputs(2), expected_outputs(counting(50, 3), 8));
  EXPECT_EQ(w.scheduler.stats().recomputed_tokens, 4u);
  w.expect_baseline();
}

// 1 has a row in step 8 and loses its blocks to 2 in the same step; then 2 goes away and there is room at
// once. 1 may not start again before step 8 has retired: its lane and its next token are still out there.
TEST(Pressure, AVictimDoesNotStartAgainWhileItIsInFlight) {
  World w({.blocks = 5, .prefix_cache = false, .scheduler = {.max_running = 2, .step_tokens = 32}});
  NewSequence low = World::request(1, {9}, 12);
  low.priority = -1;
  w.submit(low);
  w.plan();
  w.submit(2, counting(50, 7), 10);
  for (int step = 2; step <= 7; ++step) {
    w.plan();
    w.retire();
  }
  EXPECT_EQ(w.plan(), "0: 7+1 #7") << "2 needs a fourth block and waits for those of 1";
  EXPECT_EQ(w.scheduler.stats().preemptions, 1u);
  EXPECT_EQ(w.scheduler.stats().starved_rows, 1u);
  w.scheduler.cancel(2, w.events);
  w.retire();
  EXPECT_EQ(w.kv.num_free(), 3u);
  EXPECT_EQ(w.plan(), "");
  w.retire();
  EXPECT_EQ(w.plan(), "0: 0+9 #8");
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs({9}, 12));
  w.expect_baseline();
}

TEST(Pressure, OneBlockForEachRunningSequenceStaysFree) {
  World w({.blocks = 4, .prefix_cache = false, .scheduler = {.max_running = 2, .step_tokens = 32}});
  w.submit(1, counting(10, 5), 5);
  EXPECT_EQ(w.plan_and_retire(), "0: 0+5 #0");
  w.submit(2, counting(50, 7), 2);
  EXPECT_EQ(w.plan_and_retire(), "0: 5+1 #1") << "two blocks are free and 2 needs two, but 1 will want one";
  w.run();
  EXPECT_EQ(w.scheduler.stats().preemptions, 0u);
  w.expect_baseline();
}

TEST(Pressure, PriorityDecidesWhoIsTheVictim) {
  World w({.blocks = 4, .prefix_cache = false, .scheduler = {.max_running = 2, .step_tokens = 32}});
  NewSequence low = World::request(1, counting(10, 7), 8);
  low.priority = -1;
  w.submit(low);
  w.submit(2, counting(50, 3), 8);
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs(counting(10, 7), 8));
  EXPECT_EQ(w.outputs(2), expected_outputs(counting(50, 3), 8));
  const auto ended_before = [&](Epoch a, Epoch b) {
    return w.ending(a).last_token_at < w.ending(b).last_token_at;
  };
  EXPECT_TRUE(ended_before(2, 1));
  EXPECT_GE(w.scheduler.stats().recomputed_tokens, 7u);
}

// A long request, well on its way, and short ones that arrive before and after it. Which work is thrown away
// is a policy; how much is reported.
uint64_t recomputed_with(VictimPolicy policy) {
  World w({.blocks = 20,
           .prefix_cache = false,
           .scheduler = {.max_running = 4, .step_tokens = 64, .victims = policy}});
  w.submit(1, counting(10, 3), 40);  // early, short
  w.plan_and_retire();
  w.submit(2, counting(50, 40), 30);  // later, long
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs(counting(10, 3), 40));
  EXPECT_EQ(w.outputs(2), expected_outputs(counting(50, 40), 30));
  EXPECT_GT(w.scheduler.stats().preemptions, 0u);
  EXPECT_GE(w.scheduler.stats().computed_tokens, 42u + 69u + w.scheduler.stats().recomputed_tokens);
  return w.scheduler.stats().recomputed_tokens;
}

TEST(Pressure, SCH_03_LongWorkIsNotThrownAwayForShort) {
  const uint64_t least_progress = recomputed_with(VictimPolicy::kLeastProgress);
  const uint64_t latest_arrival = recomputed_with(VictimPolicy::kLatestArrival);
  EXPECT_GT(least_progress, 0u);
  EXPECT_LT(least_progress, 40u) << "the short one is computed again, never the 40-token prompt";
  EXPECT_GT(latest_arrival, 40u);
}

TEST(Pressure, SCH_05_ABigRequestNeitherBlocksSmallOnesNorStarves) {
  World w({.blocks = 16,
           .prefix_cache = false,
           .scheduler = {.max_running = 8, .step_tokens = 64, .max_skips = 5}});
  w.submit(1, counting(1, 20), 8);  // 5 blocks at once, 7 in the end
  EXPECT_EQ(w.plan_and_retire(), "0: 0+20 #0");
  w.submit(2, counting(100, 50), 4);  // 13 blocks: does not fit beside 1
  Epoch next = 10;
  uint32_t small_started_before = 0;
  for (int step = 0; step < 300 && w.scheduler.find(2) != nullptr; ++step) {
    if (w.scheduler.find(2)->first_step_at == 0) {
      w.submit(next, {static_cast<TokenId>(next % kVocab), 3}, 4);  // somebody small always wants in
      ++next;
    }
    w.plan_and_retire();
  }
  for (Epoch epoch = 10; epoch < next; ++epoch) {
    small_started_before +=
        w.scheduler.find(epoch) == nullptr && w.ending(epoch).first_step_at < w.ending(2).first_step_at;
  }
  EXPECT_EQ(small_started_before, 5u) << "exactly max_skips pass it";
  w.run();
  EXPECT_EQ(w.outputs(2), expected_outputs(counting(100, 50), 4));
  for (Epoch epoch = 10; epoch < next; ++epoch) EXPECT_EQ(w.ending(epoch).reason, EndReason::kLength);
  EXPECT_EQ(w.scheduler.stats().skips, 5u);
  w.expect_baseline();
}

TEST(Pressure, SCH_07_RecomputationDoesNotCountAsPrefixHits) {
  World w({.blocks = 24, .scheduler = {.max_running = 8, .step_tokens = 64}});
  for (Epoch epoch = 1; epoch <= 24; ++epoch) {
    w.submit(epoch, counting(static_cast<uint32_t>(epoch * 37), 10), 20);  // no two share a start
  }
  w.run();
  const KvStats& stats = w.kv.stats();
  EXPECT_GT(w.scheduler.stats().preemptions, 3u);
  EXPECT_GT(stats.rerun_hit_tokens, 0u) << "own blocks were found again";
  EXPECT_EQ(stats.hit_tokens, 0u);
  EXPECT_EQ(stats.lookup_tokens, 240u);
  for (Epoch epoch = 1; epoch <= 24; ++epoch) {
    EXPECT_EQ(w.ending(epoch).cached_tokens, 0u);
    EXPECT_EQ(w.outputs(epoch), expected_outputs(counting(static_cast<uint32_t>(epoch * 37), 10), 20));
  }
  w.expect_baseline();
}

TEST(Pressure, HigherPriorityStartsFirst) {
  World w({.scheduler = {.max_running = 1, .step_tokens = 8}});
  w.submit(1, {1}, 2);
  w.plan_and_retire();
  w.submit(2, {2}, 1);
  NewSequence urgent = World::request(3, {3}, 1);
  urgent.priority = 5;
  w.submit(urgent);
  w.run();
  EXPECT_LT(w.ending(3).first_step_at, w.ending(2).first_step_at);
}

TEST(Pressure, WaitingIsWorthPriority) {
  for (const Nanos waited : {19 * kSecond, 21 * kSecond}) {
    World w({.scheduler = {.max_running = 1, .step_tokens = 8, .ageing_interval = 10 * kSecond}});
    w.submit(1, {1}, 2);
    w.plan_and_retire();
    w.submit(2, {2}, 1);
    w.now += waited;
    NewSequence urgent = World::request(3, {3}, 1);
    urgent.priority = 2;  // worth 20 s in line
    w.submit(urgent);
    w.run();
    EXPECT_EQ(w.ending(2).first_step_at<w.ending(3).first_step_at, waited> 20 * kSecond);
  }
}

TEST(Pressure, PausedSequencesGiveUpTheirLaneFirstAndKeepTheirBlocks) {
  World w({.scheduler = {.max_running = 1, .step_tokens = 8}});
  NewSequence paused = World::request(1, counting(10, 5), 6);
  paused.granted = 2;
  w.submit(paused);
  w.submit(2, {7, 8}, 3);
  w.run();
  EXPECT_EQ(w.outputs(1).size(), 2u);
  EXPECT_EQ(w.outputs(2), expected_outputs({7, 8}, 3));
  EXPECT_EQ(w.scheduler.find(1)->state, SequenceState::kPaused);
  EXPECT_EQ(w.scheduler.find(1)->lane, std::nullopt);
  EXPECT_EQ(w.scheduler.stats().preemptions, 0u);
  ASSERT_TRUE(w.scheduler.grant(1, 6));
  EXPECT_EQ(w.plan(), "0: 6+1 #2") << "nothing is computed again";
  EXPECT_EQ(w.last.opens.at(0).context.size(), 7u);
  EXPECT_EQ(w.last.opens.at(0).prompt_count, 5u);
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs(counting(10, 5), 6));
  w.expect_baseline();
}

// It was paused at the end of a block and comes back without a lane: its next token needs one more block.
TEST(Pressure, AResumedSequenceTakesItsNextBlock) {
  World w({.scheduler = {.max_running = 1, .step_tokens = 8}});
  NewSequence paused = World::request(1, counting(10, 3), 6);
  paused.granted = 2;
  w.submit(paused);
  w.submit(2, {7, 8}, 3);
  w.run();
  EXPECT_EQ(w.scheduler.find(1)->kv.blocks.size(), 1u);
  w.scheduler.grant(1, 6);
  EXPECT_EQ(w.plan(), "0: 4+1 #2");
  EXPECT_EQ(w.last.blocks.size(), 2u);
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs(counting(10, 3), 6));
  w.expect_baseline();
}

TEST(Pressure, PausedSequencesGiveUpBlocksToThoseWhoCanRun) {
  World w({.blocks = 6, .prefix_cache = false, .scheduler = {.max_running = 2, .step_tokens = 32}});
  NewSequence paused = World::request(1, counting(10, 12), 6);
  paused.granted = 1;
  paused.priority = 100;  // counts for nothing while it cannot run
  w.submit(paused);
  w.run();
  EXPECT_EQ(w.kv.num_used(), 3u);
  w.submit(2, counting(50, 16), 3);
  w.run();
  EXPECT_EQ(w.outputs(2), expected_outputs(counting(50, 16), 3));
  EXPECT_EQ(w.scheduler.stats().preemptions, 1u);
  EXPECT_EQ(w.scheduler.find(1)->state, SequenceState::kPaused);
  w.scheduler.grant(1, 6);
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs(counting(10, 12), 6));
  w.expect_baseline();
}

// A resumed sequence that waits for a lane with its blocks stands behind a big one that needs them.
TEST(Pressure, WaitingWithBlocksDoesNotBlockTheLine) {
  World w({.blocks = 8,
           .prefix_cache = false,
           .scheduler = {.max_running = 1, .step_tokens = 64, .max_skips = 1}});
  NewSequence holder = World::request(1, counting(10, 12), 6);
  holder.granted = 1;
  w.submit(holder);
  w.run();
  NewSequence big = World::request(2, counting(50, 30), 3);
  big.priority = 3;
  w.submit(3, {1, 2}, 4);
  w.plan_and_retire();  // 3 has the lane of 1
  w.submit(big);
  w.scheduler.grant(1, 6);  // 1 waits with 3 blocks, behind 2
  EXPECT_EQ(w.scheduler.num_waiting(), 2u);
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs(counting(10, 12), 6));
  EXPECT_EQ(w.outputs(2), expected_outputs(counting(50, 30), 3));
  EXPECT_LT(w.ending(2).last_token_at, w.ending(1).last_token_at);
  w.expect_baseline();
}

}  // namespace
}  // namespace ringmaster::gpu_worker
