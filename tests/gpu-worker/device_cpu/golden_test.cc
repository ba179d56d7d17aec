// Tiny models against the float32 reference (transformers on the dequantised weights), with every table of
// kernels.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/gpu-worker/device_cpu/tiny_model.h"

namespace ringmaster::gpu_worker {
namespace {

// Distance of a logit from the reference, whose logits have a standard deviation of about 4.3 and reach 20.
struct Tolerance {
  double largest, root_mean_square;
};
// Activations unrounded. What is left is keys and values in half precision, 2^-12 of values that add up to
// 20; twice what is measured. A wrong reading of the model moves logits by 0.3 or more.
constexpr Tolerance kUnrounded = {1e-2, 2e-3};
// Activations rounded to 8 bits before every product: noise of 1/254 of a block's largest value on each of
// them, which this model (one layer, 256 wide, random weights: nothing averages out) turns into the measured
// 0.25 and 0.06 at most.
constexpr Tolerance kRounded = {0.4, 0.08};

Tolerance tolerance(const kernels::Table& table, const std::string& folder) {
  return folder == "f16" || std::string(table.name) == "generic" ? kUnrounded : kRounded;
}

using Case = std::tuple<const kernels::Table*, const char*>;
class Golden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    table_ = std::get<0>(GetParam());
    tolerance_ = tolerance(*table_, std::get<1>(GetParam()));
    model_ = std::make_unique<TinyModel>(std::get<1>(GetParam()), *table_);
  }

  void compare(const std::vector<float>& logits, const float* expected, const std::string& what) {
    double worst = 0, squares = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double error = static_cast<double>(logits[i]) - static_cast<double>(expected[i]);
      worst = std::max(worst, std::abs(error));
      squares += error * error;
    }
    EXPECT_LE(worst, tolerance_.largest) << what;
    EXPECT_LE(std::sqrt(squares / static_cast<double>(logits.size())), tolerance_.root_mean_square) << what;
    worst_ = std::max(worst_, worst);
  }

  const kernels::Table* table_ = nullptr;
  Tolerance tolerance_{};
  double worst_ = 0;
  std::unique_ptr<TinyModel> model_;
};

TEST_P(Golden, LogitsOfEveryPosition) {
  const uint32_t vocab = model_->description().vocab_size;
  const Ids ids = model_->expected()["prompts"]["48"];
  const auto logits = model_->logits(ids, 48);
  ASSERT_EQ(logits.size(), 48u);
  for (size_t i = 0; i < 48; ++i)
    compare(logits[i], model_->tensor("logits_48") + i * vocab, "position " + std::to_string(i));
  RecordProperty("worst", std::to_string(worst_));
}

TEST_P(Golden, LogitsOfALongerPrompt) {
  const Ids ids = model_->expected()["prompts"]["200"];
  compare(model_->logits(ids, 1)[0], model_->tensor("logits_200_last"), "last of 200");
  compare(model_->logits(Ids(ids.begin(), ids.begin() + 101), 1)[0], model_->tensor("logits_200_at_100"),
          "at 100");
  RecordProperty("worst", std::to_string(worst_));
}

// Teacher-forced over the reference's greedy text: the same next id wherever its margin is above twice the
// tolerance.
TEST_P(Golden, GreedyIds) {
  for (const char* prompt : {"24", "48", "200"}) {
    Ids ids = model_->expected()["prompts"][prompt];
    const auto& greedy = model_->expected()[std::string("greedy_") + prompt];
    const Ids expected = greedy["ids"];
    ids.insert(ids.end(), expected.begin(), expected.end() - 1);
    const auto logits = model_->logits(ids, static_cast<uint32_t>(expected.size()));
    for (size_t i = 0; i < expected.size(); ++i) {
      if (greedy["margins"][i].get<double>() <= 2 * tolerance_.largest) continue;
      const auto best = std::max_element(logits[i].begin(), logits[i].end()) - logits[i].begin();
      EXPECT_EQ(best, expected[i]) << prompt << " token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, Golden,
                         testing::Combine(testing::ValuesIn(kernels::available_tables()),
                                          testing::Values("f16", "q4_1", "q8_0")),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param)->name) + "_" + std::get<1>(of.param);
                         });

}  // namespace
}  // namespace ringmaster::gpu_worker
