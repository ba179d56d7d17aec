// A step's arrays by worked example; needs no GPU.
#include "gpu-worker/device/cuda/step_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ringmaster::gpu_worker::cuda {
namespace {

using ::testing::ElementsAre;

class StepInputsTest : public testing::Test {
 protected:
  StepInputsTest()
      : memory_(StepInputs::place(limits_, nullptr).bytes), in_(StepInputs::place(limits_, memory_.data())) {}

  // Adds a row whose blocks are 10 * lane, 10 * lane + 1, ...
  void row(Lane lane, uint32_t first_position, std::vector<TokenId> ids, bool samples,
           uint32_t token_number = 0) {
    const auto count = static_cast<uint32_t>(ids.size());
    const uint32_t blocks = (first_position + count + 15) / 16;
    plan_.rows.push_back({.lane = lane,
                          .first_id = static_cast<uint32_t>(plan_.ids.size()),
                          .num_tokens = count,
                          .first_position = first_position,
                          .first_block = static_cast<uint32_t>(plan_.blocks.size()),
                          .num_blocks = blocks,
                          .samples = samples,
                          .token_number = token_number});
    plan_.ids.insert(plan_.ids.end(), ids.begin(), ids.end());
    for (uint32_t b = 0; b < blocks; ++b) plan_.blocks.push_back(10 * lane + b);
  }

  template <typename T>
  std::vector<T> first(const T* array, uint32_t count) {
    return {array, array + count};
  }

  StepLimits limits_{.tokens = 64,
                     .rows = 4,
                     .blocks = 64,
                     .scratch_block = 99,
                     .scratch_lane = 4,
                     .kv_heads = 2,
                     .decode_warps = 8};
  std::vector<std::byte> memory_;
  StepInputs in_;
  StepPlan plan_;
};

TEST_F(StepInputsTest, ADecodeStepIsPaddedToItsClass) {
  row(0, 17, {kFromLane}, true, 3);
  row(2, 40, {7}, true, 9);
  const Result<StepShape> shape = fill_inputs(plan_, limits_, 4, in_);
  ASSERT_TRUE(shape.ok());
  EXPECT_TRUE(shape->decode_only);
  EXPECT_EQ(shape->tokens, 4u);
  EXPECT_EQ(shape->samples, 4u);
  EXPECT_EQ(shape->real_samples, 2u);
  EXPECT_EQ(shape->tiles, 0u);
  EXPECT_THAT(first(in_.ids, 4), ElementsAre(kFromLane, 7, 0, 0));
  EXPECT_THAT(first(in_.lane, 4), ElementsAre(0, 2, 4, 4));
  EXPECT_THAT(first(in_.position, 4), ElementsAre(17, 40, 0, 0));
  // Position 17: second block of lane 0, place 1; position 40: third block of lane 2, place 8.
  EXPECT_THAT(first(in_.kv_slot, 4), ElementsAre(1 * 16 + 1, 22 * 16 + 8, 99 * 16, 99 * 16));
  EXPECT_THAT(first(in_.sample_token, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(in_.samples[1].lane, 2u);
  EXPECT_EQ(in_.samples[1].token_number, 9u);
  EXPECT_EQ(in_.samples[3].lane, 4u);
  EXPECT_THAT(first(in_.block_table, 5), ElementsAre(0, 1, 20, 21, 22));
}

TEST_F(StepInputsTest, KeysAreDividedSoThatAllWarpsAreDoneSoonest) {
  row(1, 159, {7}, true);  // 160 keys, two heads, eight warps: four pieces of 48 make one round
  const Result<StepShape> shape = fill_inputs(plan_, limits_, 1, in_);
  ASSERT_TRUE(shape.ok());
  ASSERT_EQ(shape->pieces, 4u);
  EXPECT_EQ(*in_.piece_count, 4u);
  uint32_t key = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const DecodePiece& piece = in_.pieces[i];
    EXPECT_EQ(piece.first_key, key);
    EXPECT_EQ(piece.keys, i < 3 ? 48u : 16u);
    EXPECT_EQ(piece.part, i);
    EXPECT_EQ(piece.first_part, 0u);
    EXPECT_EQ(piece.parts, 4u);
    key += piece.keys;
  }
  EXPECT_EQ(key, 160u);
}

TEST_F(StepInputsTest, PromptsBecomeTilesAndGroupsOfABlock) {
  row(0, 20, std::vector<TokenId>(30, 5), false);  // positions 20 to 49
  row(1, 3, {6}, true, 1);
  const Result<StepShape> shape = fill_inputs(plan_, limits_, 0, in_);
  ASSERT_TRUE(shape.ok());
  EXPECT_FALSE(shape->decode_only);
  EXPECT_EQ(shape->tokens, 31u);
  EXPECT_EQ(shape->samples, 1u);
  EXPECT_EQ(in_.sample_token[0], 30u);
  ASSERT_EQ(shape->tiles, 1u);
  EXPECT_EQ(in_.tiles[0].first_token, 0u);
  EXPECT_EQ(in_.tiles[0].tokens, 30u);
  EXPECT_EQ(in_.tiles[0].first_position, 20u);
  ASSERT_EQ(shape->pieces, 1u);
  EXPECT_EQ(in_.pieces[0].token, 30u);
  EXPECT_EQ(in_.pieces[0].keys, 4u);
  EXPECT_EQ(in_.pieces[0].first_block, 4u);
  // Positions 20-31, 32-47, 48-49; then the other row's 3.
  ASSERT_EQ(shape->groups, 4u);
  const auto group = [&](uint32_t i) {
    return std::vector<uint32_t>{in_.groups[i].first_token, in_.groups[i].tokens, in_.groups[i].first_slot};
  };
  EXPECT_THAT(group(0), ElementsAre(0, 12, 1 * 16 + 4));
  EXPECT_THAT(group(1), ElementsAre(12, 16, 2 * 16));
  EXPECT_THAT(group(2), ElementsAre(28, 2, 3 * 16));
  EXPECT_THAT(group(3), ElementsAre(30, 1, 10 * 16 + 3));
}

TEST_F(StepInputsTest, LongTilesComeFirst) {
  limits_.tokens = 1024;
  memory_.resize(StepInputs::place(limits_, nullptr).bytes);
  in_ = StepInputs::place(limits_, memory_.data());
  row(0, 0, std::vector<TokenId>(1000, 5), false);
  const Result<StepShape> shape = fill_inputs(plan_, limits_, 0, in_);
  ASSERT_TRUE(shape.ok());
  ASSERT_EQ(shape->tiles, 3u);
  EXPECT_EQ(in_.tiles[0].first_token, 768u);
  EXPECT_EQ(in_.tiles[0].tokens, 232u);
  EXPECT_EQ(in_.tiles[2].first_token, 0u);
}

TEST_F(StepInputsTest, APlanBeyondTheLimitsIsAnErrorWithItsNumbers) {
  row(0, 0, std::vector<TokenId>(65, 5), false);
  const Result<StepShape> shape = fill_inputs(plan_, limits_, 0, in_);
  ASSERT_FALSE(shape.ok());
  EXPECT_EQ(shape.error().code, Code::kInternal);
  EXPECT_THAT(shape.error().message,
              testing::HasSubstr("65 tokens, 1 rows and 5 blocks; the device takes 64, 4 and 64"));
}

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda
