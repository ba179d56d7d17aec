// What one step contains, as literal arrays. Blocks hold 4 tokens.
#include <gtest/gtest.h>

#include "tests/gpu-worker/schedule/world.h"

namespace ringmaster::gpu_worker {
namespace {

constexpr TokenId kLane = kFromLane;

TEST(Plan, OnePromptInChunksThenDecode) {
  World w({.scheduler = {.max_running = 4, .step_tokens = 4}});
  w.submit(7, {10, 11, 12, 13, 14, 15, 16, 17, 18}, 3);
  EXPECT_EQ(w.plan(), "0: 0+4");
  EXPECT_EQ(w.last.step, 1u);
  ASSERT_EQ(w.last.opens.size(), 1u);
  EXPECT_EQ(w.last.opens[0].lane, 0u);
  EXPECT_EQ(w.last.opens[0].epoch, 7u);
  EXPECT_EQ(w.last.opens[0].context, (Ids{10, 11, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(w.last.opens[0].prompt_count, 9u);
  EXPECT_EQ(w.last.ids, (Ids{10, 11, 12, 13}));
  EXPECT_EQ(w.last.blocks, (Blocks{0}));
  EXPECT_EQ(w.plan(), "0: 4+4");
  EXPECT_TRUE(w.last.opens.empty());
  EXPECT_EQ(w.last.ids, (Ids{14, 15, 16, 17}));
  EXPECT_EQ(w.last.blocks, (Blocks{0, 1}));
  EXPECT_EQ(w.plan(), "") << "two steps are in flight";
  w.retire();
  EXPECT_EQ(w.plan(), "0: 8+1 #0");
  EXPECT_EQ(w.last.ids, (Ids{18}));
  EXPECT_EQ(w.last.blocks, (Blocks{0, 1, 2}));
  w.retire();
  EXPECT_EQ(w.plan(), "0: 9+1 #1");
  EXPECT_EQ(w.last.ids, (Ids{kLane})) << "token 0 is still on its way";
  w.retire();
  EXPECT_EQ(w.outputs(7), expected_outputs(counting(10, 9), 1));
  EXPECT_EQ(w.plan(), "0: 10+1 #2");
  w.retire();
  EXPECT_EQ(w.plan(), "") << "all three tokens are computed or on their way";
  w.retire();
  EXPECT_EQ(w.outputs(7), expected_outputs(counting(10, 9), 3));
  EXPECT_EQ(w.ending(7).reason, EndReason::kLength);
  EXPECT_EQ(w.ending(7).prompt_tokens, 9u);
  EXPECT_EQ(w.ending(7).output_tokens, 3u);
  w.expect_baseline();
}

TEST(Plan, ATokenKnownOnTheHostIsSentAsItself) {
  World w;
  w.submit(1, {5, 6}, 3);
  EXPECT_EQ(w.plan_and_retire(), "0: 0+2 #0");
  EXPECT_EQ(w.plan(), "0: 2+1 #1");
  EXPECT_EQ(w.last.ids, expected_outputs({5, 6}, 1));
}

TEST(Plan, TwoRequestsShareAStep) {
  World w({.scheduler = {.max_running = 4, .step_tokens = 8}});
  w.submit(1, {1, 2, 3}, 2);
  w.submit(2, {4, 5, 6, 7, 8, 9}, 2);
  EXPECT_EQ(w.plan(), "0: 0+3 #0, 1: 0+5");
  EXPECT_EQ(w.last.ids, (Ids{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(w.last.blocks, (Blocks{0, 1, 2}));
  EXPECT_EQ(w.last.rows[1].first_id, 3u);
  EXPECT_EQ(w.last.rows[1].first_block, 1u);
  EXPECT_EQ(w.last.rows[1].num_blocks, 2u);
  EXPECT_EQ(w.plan(), "0: 3+1 #1, 1: 5+1 #0");
  EXPECT_EQ(w.last.ids, (Ids{kLane, 9}));
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs({1, 2, 3}, 2));
  EXPECT_EQ(w.outputs(2), expected_outputs({4, 5, 6, 7, 8, 9}, 2));
  w.expect_baseline();
}

TEST(Plan, PrefillIsMixedWithDecodeInCappedChunks) {
  World w({.scheduler = {.max_running = 4, .step_tokens = 16, .prefill_chunk = 5}});
  w.submit(1, {1, 2, 3}, 10);
  EXPECT_EQ(w.plan_and_retire(), "0: 0+3 #0");
  w.submit(2, counting(100, 12), 10);
  EXPECT_EQ(w.plan_and_retire(), "0: 3+1 #1, 1: 0+5");
  EXPECT_EQ(w.plan_and_retire(), "0: 4+1 #2, 1: 5+5");
  EXPECT_EQ(w.plan_and_retire(), "0: 5+1 #3, 1: 10+2 #0");
  EXPECT_EQ(w.plan_and_retire(), "0: 6+1 #4, 1: 12+1 #1");
  w.run();
  EXPECT_EQ(w.outputs(1), expected_outputs({1, 2, 3}, 10));
  EXPECT_EQ(w.outputs(2), expected_outputs(counting(100, 12), 10));
}

TEST(Plan, NoMoreThanTheBudgetAndDecodesFirst) {
  World w({.scheduler = {.max_running = 3, .step_tokens = 4, .prefill_chunk = 4}});
  w.submit(1, {1}, 10);
  w.submit(2, {2}, 10);
  EXPECT_EQ(w.plan_and_retire(), "0: 0+1 #0, 1: 0+1 #0");
  w.submit(3, counting(50, 9), 10);
  EXPECT_EQ(w.plan_and_retire(), "0: 1+1 #1, 1: 1+1 #1, 2: 0+2");
  EXPECT_EQ(w.plan_and_retire(), "0: 2+1 #2, 1: 2+1 #2, 2: 2+2");
}

// A hit ends at the last full block, and leaves at least one token to compute.
TEST(Plan, APrefixHitAtTheEdgesOfABlock) {
  const struct {
    uint32_t length;
    const char* rows;
    Blocks blocks;
    uint32_t cached;
  } cases[] = {{7, "0: 4+3 #0", {0, 2}, 4},      // one below two blocks
               {8, "0: 4+4 #0", {0, 2}, 4},      // exactly: the last token must be computed
               {9, "0: 8+1 #0", {0, 1, 2}, 8}};  // one above
  for (const auto& c : cases) {
    World w;
    w.submit(1, counting(10, 9), 1);
    w.run();
    EXPECT_EQ(w.kv.num_cached(), 2u);
    w.submit(2, counting(10, c.length), 1);
    EXPECT_EQ(w.plan(), c.rows);
    EXPECT_EQ(w.last.blocks, c.blocks) << c.length;
    EXPECT_EQ(w.last.opens[0].context.size(), c.length);
    w.run();
    EXPECT_EQ(w.outputs(2), expected_outputs(counting(10, c.length), 1));
    EXPECT_EQ(w.ending(2).cached_tokens, c.cached);
    EXPECT_EQ(w.ending(1).cached_tokens, 0u);
    w.expect_baseline();
  }
}

TEST(Plan, APrefixIsSharedOnlyOnceItsStepHasRetired) {
  World w;
  w.submit(1, counting(10, 9), 5);
  EXPECT_EQ(w.plan(), "0: 0+9 #0");
  w.submit(2, counting(10, 9), 5);
  EXPECT_EQ(w.plan(), "0: 9+1 #1, 1: 0+9 #0") << "nothing to share yet";
  w.retire();
  w.submit(3, counting(10, 9), 5);
  EXPECT_EQ(w.plan(), "0: 10+1 #2, 1: 9+1 #1, 2: 8+1 #0");
  w.run();
  for (Epoch epoch : {1, 2, 3}) EXPECT_EQ(w.outputs(epoch), expected_outputs(counting(10, 9), 5)) << epoch;
  EXPECT_GE(w.kv.stats().merged_blocks, 2u);
  w.expect_baseline();
}

// The stop id arrives while the step after it is already out: that row's result is dropped, and its block and
// lane are free only when it has retired.
TEST(Plan, AStopWhileTheNextStepIsInFlight) {
  World w({.blocks = 4});
  const Ids out = expected_outputs({1, 2, 3}, 1);
  NewSequence fresh = World::request(1, {1, 2, 3}, 10);
  fresh.stop_ids = {999, out[0]};
  w.submit(fresh);
  EXPECT_EQ(w.plan(), "0: 0+3 #0");
  EXPECT_EQ(w.last.opens[0].suppressed.size(), 2u);
  EXPECT_EQ(w.plan(), "0: 3+1 #1");
  w.retire();
  EXPECT_EQ(w.outputs(1), out) << "the stop id itself is delivered";
  EXPECT_EQ(w.ending(1).reason, EndReason::kStop);
  EXPECT_EQ(w.ending(1).output_tokens, 1u);
  EXPECT_EQ(w.kv.num_used(), 1u);
  EXPECT_FALSE(w.scheduler.idle());
  EXPECT_EQ(w.scheduler.find(1), nullptr);
  w.submit(2, {4, 5, 6}, 1);
  EXPECT_EQ(w.plan(), "1: 0+3 #0") << "lane 0 and block 0 still belong to step 2";
  EXPECT_EQ(w.last.blocks, (Blocks{1}));
  w.retire();
  EXPECT_EQ(w.scheduler.stats().discarded_rows, 1u);
  EXPECT_EQ(w.outputs(1).size(), 1u);
  w.run();
  w.expect_baseline();
}

TEST(Plan, AStopIdBeforeMinTokensIsAToken) {
  World w;
  const Ids out = expected_outputs({1, 2, 3}, 4);
  NewSequence fresh = World::request(1, {1, 2, 3}, 4);
  fresh.stop_ids = {out[1], out[2]};
  fresh.min_tokens = 2;
  w.submit(fresh);
  w.run();
  EXPECT_EQ(w.outputs(1), Ids(out.begin(), out.begin() + 3));
  EXPECT_EQ(w.ending(1).reason, EndReason::kStop);
}

// Chunks, company and hits change nothing in what a sequence sees (the mock device compares every context).
TEST(Plan, OutputsDoNotDependOnChunksOrCompany) {
  const Ids prompt = counting(300, 33);
  for (uint32_t step_tokens : {4u, 7u, 64u}) {
    for (uint32_t chunk : {1u, 3u, 64u}) {
      World w({.scheduler = {.max_running = 4, .step_tokens = step_tokens, .prefill_chunk = chunk}});
      w.submit(1, {1, 2}, 30);
      w.submit(2, prompt, 8);
      w.submit(3, counting(300, 20), 8);
      w.run();
      w.submit(4, prompt, 8);
      w.run();
      EXPECT_EQ(w.outputs(2), expected_outputs(prompt, 8));
      EXPECT_EQ(w.outputs(4), expected_outputs(prompt, 8));
      EXPECT_EQ(w.outputs(3), expected_outputs(counting(300, 20), 8));
      EXPECT_EQ(w.ending(4).cached_tokens, 32u);
      w.expect_baseline();
    }
  }
}

// One long prompt beside running streams: every step has a row of each stream, and no more prompt than one
// chunk, so the longest gap of a stream is that of a step with one chunk (here 1 ms and 10 us a token),
// whatever the prompt's length.
TEST(Plan, SCH_01_ALongPromptDoesNotStopRunningStreams) {
  constexpr uint32_t kLong = 16000;
  World w(
      {.blocks = 5000,
       .scheduler = {.context_length = 20000, .max_running = 8, .step_tokens = 512, .prefill_chunk = 128}});
  w.submit(1, {1, 2, 3}, 600);
  w.submit(2, {4, 5, 6}, 600);
  EXPECT_EQ(w.plan_and_retire(), "0: 0+3 #0, 1: 0+3 #0");
  w.submit(3, counting(0, kLong), 4);
  uint32_t steps = 0;
  double longest_gap_us = 0;
  while (w.outputs(3).empty()) {
    ASSERT_NE(w.plan(), "");
    ASSERT_EQ(w.last.rows.size(), 3u);
    ASSERT_TRUE(w.last.rows[0].samples && w.last.rows[1].samples);
    longest_gap_us = std::max(longest_gap_us, 1000 + 10.0 * static_cast<double>(w.last.ids.size()));
    ++steps;
    w.retire();
  }
  EXPECT_EQ(steps, kLong / 128);
  EXPECT_EQ(longest_gap_us, 1000 + 10.0 * (128 + 2));
  EXPECT_EQ(w.outputs(3), expected_outputs(counting(0, kLong), 1));
}

}  // namespace
}  // namespace ringmaster::gpu_worker
