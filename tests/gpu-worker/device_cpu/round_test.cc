#include "gpu-worker/device/cpu/round.h"

#include <gtest/gtest.h>

namespace ringmaster::gpu_worker {
namespace {

constexpr RoundLimits kLimits = {.tokens = 8, .query_tokens = 4, .parts = 64, .kv_heads = 2, .threads = 2};

StepPlan plan_of(const std::vector<StepRow>& rows) {
  StepPlan plan;
  for (StepRow row : rows) {
    row.first_id = static_cast<uint32_t>(plan.ids.size());
    for (uint32_t i = 0; i < row.num_tokens; ++i) plan.ids.push_back(row.lane * 100 + i);
    plan.rows.push_back(row);
  }
  return plan;
}

TEST(Rounds, TokensAreCutWhereARoundIsFull) {
  const StepPlan plan = plan_of({{.lane = 1, .num_tokens = 1, .first_position = 40, .samples = true},
                                 {.lane = 2, .num_tokens = 10, .first_position = 5, .samples = true},
                                 {.lane = 3, .num_tokens = 2, .first_position = 0, .samples = false},
                                 {.lane = 4, .num_tokens = 1, .first_position = 9, .samples = true}});
  const std::vector<Round> rounds = make_rounds(plan, kLimits);
  ASSERT_EQ(rounds.size(), 2u);
  ASSERT_EQ(rounds[0].tokens.size(), 8u);
  EXPECT_EQ(rounds[0].tokens[0].position, 40u);
  EXPECT_EQ(rounds[0].tokens[7].id, 206u);
  EXPECT_EQ(rounds[0].tokens[7].position, 11u);
  ASSERT_EQ(rounds[1].tokens.size(), 6u);
  EXPECT_EQ(rounds[1].tokens[0].id, 207u);
  EXPECT_EQ(rounds[1].tokens[0].position, 12u);
  EXPECT_EQ(rounds[1].tokens[3].row, 2u);
  // Results in the order of the plan's sampling rows.
  ASSERT_EQ(rounds[0].samples.size(), 1u);
  ASSERT_EQ(rounds[1].samples.size(), 2u);
  EXPECT_EQ(rounds[0].samples[0].result, 0u);
  EXPECT_EQ(rounds[1].samples[0].token, 2u);
  EXPECT_EQ(rounds[1].samples[0].result, 1u);
  EXPECT_EQ(rounds[1].samples[1].token, 5u);
  EXPECT_EQ(rounds[1].samples[1].result, 2u);
}

TEST(Rounds, PiecesCoverEveryTokenAndHeadOnce) {
  const StepPlan plan =
      plan_of({{.lane = 0, .num_tokens = 6, .first_position = 125}, {.lane = 1, .num_tokens = 1}});
  const std::vector<Round> rounds = make_rounds(plan, kLimits);
  ASSERT_EQ(rounds.size(), 1u);
  std::vector<int> seen(2 * 7);
  for (const AttentionPiece& piece : rounds[0].pieces) {
    EXPECT_LE(piece.tokens, 4u);
    EXPECT_EQ(piece.part, AttentionPiece::kWhole);
    EXPECT_EQ(piece.first_span, 0u);
    const RoundToken& last = rounds[0].tokens[piece.first_token + piece.tokens - 1];
    EXPECT_EQ(piece.last_span, last.position / 128);
    EXPECT_EQ(piece.row, last.row);
    for (uint32_t t = 0; t < piece.tokens; ++t) ++seen[piece.kv_head * 7 + piece.first_token + t];
  }
  EXPECT_EQ(seen, std::vector<int>(14, 1));
  EXPECT_TRUE(rounds[0].merges.empty());
}

TEST(Rounds, ALoneLongSequenceIsSplitAmongThreads) {
  const StepPlan plan = plan_of({{.lane = 0, .num_tokens = 1, .first_position = 128 * 4}});
  const std::vector<Round> rounds = make_rounds(plan, kLimits);
  ASSERT_EQ(rounds[0].merges.size(), 2u);
  EXPECT_EQ(rounds[0].merges[0].spans, 5u);
  EXPECT_EQ(rounds[0].merges[1].part, 5u);
  std::vector<int> parts(10);
  for (const AttentionPiece& piece : rounds[0].pieces)
    for (uint32_t span = piece.first_span; span <= piece.last_span; ++span) {
      const uint32_t part = piece.part + span - piece.first_span;
      EXPECT_EQ(part, piece.kv_head * 5 + span);
      ++parts[part];
    }
  EXPECT_EQ(parts, std::vector<int>(10, 1));
}

TEST(Rounds, NothingIsSplitWithOneThreadOrWithoutRoomForTheParts) {
  const StepPlan plan = plan_of({{.lane = 0, .num_tokens = 1, .first_position = 128 * 4}});
  RoundLimits limits = kLimits;
  limits.threads = 1;
  EXPECT_TRUE(make_rounds(plan, limits)[0].merges.empty());
  limits = kLimits;
  limits.parts = 9;
  EXPECT_TRUE(make_rounds(plan, limits)[0].merges.empty());
}

}  // namespace
}  // namespace ringmaster::gpu_worker
