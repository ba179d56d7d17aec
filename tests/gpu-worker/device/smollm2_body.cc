// SmolLM2 on the device under test against the float32 reference (tests/data/smollm2). The model file is what
// `ringmaster pull smollm2` fetches, as scripts/test does; without it these tests fail and say so.
#include <gtest/gtest.h>

#include <cmath>

#include "base/config.h"
#include "tests/gpu-worker/device/driver.h"

namespace ringmaster::gpu_worker {
namespace {

constexpr uint32_t kLanes = 64;

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    const Result<std::string> model = resolve_model("smollm2");
    ASSERT_TRUE(model.ok()) << model.error().message;
    GpuWorkerConfig config;
    config.max_running = kLanes;
    config.kv_memory = 400ull << 20;
    Result<std::unique_ptr<Driver>> driver = Driver::open(config, *model);
    ASSERT_TRUE(driver.ok()) << driver.error().message;
    driver_ = std::move(*driver);
    goldens_ = read_json(SMOLLM2_GOLDENS);
  }

  // Feeds `continuation` after the prompt whatever is predicted; returns the prediction for each of its
  // tokens.
  std::vector<SampledRow> teacher_force(const Ids& prompt, const Ids& continuation, bool score) {
    Sequence s = driver_->sequence(prompt, static_cast<uint32_t>(continuation.size()));
    s.ids.insert(s.ids.end(), continuation.begin(), continuation.end() - 1);
    const auto first = static_cast<uint32_t>(prompt.size()) - 1;
    std::vector<SampledRow> predictions;
    while (s.computed < s.ids.size()) {
      StepPlan plan;
      if (s.computed < first)
        Driver::add_row(plan, s, std::min(first - s.computed, 448u), 0,
                        false);  // with the rows below within step_tokens
      while (s.computed >= first && s.computed < s.ids.size() && plan.rows.size() < kLanes) {
        LaneOpen open;
        open.lane = static_cast<Lane>(plan.rows.size());
        open.logprobs = 1;
        // A large bias makes the given token the sampled one; its log-probability is that of the raw logits.
        if (score) open.sampling.logit_bias = {{continuation[s.computed - first], 100}};
        plan.opens.push_back(open);
        Driver::add_row(plan, s, 1, open.lane, true);
      }
      StepResult result = driver_->step(std::move(plan));
      predictions.insert(predictions.end(), result.rows.begin(), result.rows.end());
    }
    return predictions;
  }

  std::unique_ptr<Driver> driver_;
  nlohmann::json goldens_;
};

TEST_F(SmolLm2, NextTokenAgreesWhereTheReferenceIsSure) {
  uint32_t compared = 0, near_ties = 0, differing = 0;
  for (const auto& prompt : goldens_["prompts"]) {
    const Ids expected = prompt["greedy"]["ids"];
    const std::vector<float> margins = prompt["greedy"]["margins"];
    const std::vector<SampledRow> predicted = teacher_force(prompt["ids"], expected, false);
    ASSERT_EQ(predicted.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_FALSE(predicted[i].failed);
      if (margins[i] <= 0.5f) {
        ++near_ties;
        differing += predicted[i].id != expected[i] ? 1 : 0;
        continue;
      }
      ++compared;
      EXPECT_EQ(predicted[i].id, expected[i]) << prompt["name"] << " token " << i << " margin " << margins[i];
    }
  }
  EXPECT_EQ(compared + near_ties, 20u * 128u);
  RecordProperty("compared", static_cast<int>(compared));
  printf("compared %u, margins at most 0.5: %u of which %u differ\n", compared, near_ties, differing);
}

TEST_F(SmolLm2, LogProbabilitiesOfGivenTextsAreClose) {
  double worst = 0, sum = 0, signed_sum = 0;
  uint32_t count = 0;
  for (const auto& prompt : goldens_["prompts"]) {
    const Ids forced = prompt["forced"]["ids"];
    const std::vector<float> expected = prompt["forced"]["logprobs"];
    const std::vector<SampledRow> predicted = teacher_force(prompt["ids"], forced, true);
    ASSERT_EQ(predicted.size(), forced.size());
    for (size_t i = 0; i < forced.size(); ++i, ++count) {
      ASSERT_EQ(predicted[i].id, forced[i]);
      const double error = static_cast<double>(predicted[i].logprob) - static_cast<double>(expected[i]);
      worst = std::max(worst, std::abs(error));
      sum += std::abs(error);
      signed_sum += error;
    }
  }
  printf("log-probability: mean error %.5f, mean magnitude %.5f, worst %.4f of %u\n", signed_sum / count,
         sum / count, worst, count);
  EXPECT_EQ(count, 20u * 64u);
  // No bias to speak of: perplexity is measured by bench/quality.
  const Tolerance allowed = tolerance_of_device_under_test();
  EXPECT_LT(sum / count, allowed.mean_magnitude);
  EXPECT_LT(std::abs(signed_sum / count), allowed.mean);
  EXPECT_LT(worst, allowed.worst);
}

}  // namespace
}  // namespace ringmaster::gpu_worker
