// Norm, activation, rotation, and what the sampler asks of a row of logits.
#include "tests/gpu-worker/kernels/tables.h"

namespace ringmaster::gpu_worker::kernels {
namespace {

class Vectors : public EveryTable {};

TEST_P(Vectors, RmsNormEqualsItsFormula) {
  for (const size_t n : {16, 48, 576, 2048}) {
    const std::vector<float> x = normal(n, 3), weight = normal(n);
    std::vector<float> out(n);
    table().rms_norm(out.data(), x.data(), weight.data(), n, 1e-5f);
    double squares = 0;
    for (const float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
    for (size_t i = 0; i < n; ++i)
      ASSERT_NEAR(out[i], static_cast<double>(x[i]) * scale * static_cast<double>(weight[i]), 4e-6);
  }
}

TEST_P(Vectors, SiluMulEqualsItsFormulaAndSurvivesExtremes) {
  std::vector<float> gate = normal(256, 4), up = normal(256), out(256);
  gate[0] = -1e30f;
  gate[1] = 1e30f;
  gate[2] = -100;
  gate[3] = 0;
  table().silu_mul(out.data(), gate.data(), up.data(), 256);
  for (size_t i = 0; i < 256; ++i) {
    const double g = static_cast<double>(gate[i]),
                 expected = g / (1 + std::exp(-g)) * static_cast<double>(up[i]);
    ASSERT_NEAR(out[i], expected, std::abs(expected) * 1e-6 + 1e-6) << table().name << " gate " << g;
  }
}

TEST_P(Vectors, SiluMulKeepsNotANumber) {
  std::vector<float> gate(16, 1), up(16, 1), out(16);
  gate[3] = NAN;
  up[5] = NAN;
  table().silu_mul(out.data(), gate.data(), up.data(), 16);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(std::isnan(out[i]), i == 3 || i == 5);
}

TEST_P(Vectors, RopeTurnsNeighbours) {
  std::vector<float> x(32), cosine(16, 1), sine(16, 0);
  for (size_t i = 0; i < 32; ++i) x[i] = static_cast<float>(i);
  // The first pair by 90 degrees, the second by 60, the others not.
  cosine[0] = cosine[1] = 0;
  sine[0] = -1;
  sine[1] = 1;
  cosine[2] = cosine[3] = 0.5f;
  sine[2] = -0.8660254f;
  sine[3] = 0.8660254f;
  table().rope_pairs(x.data(), cosine.data(), sine.data(), 2, 16, 2);
  EXPECT_FLOAT_EQ(x[0], -2);
  EXPECT_FLOAT_EQ(x[1], 0);
  EXPECT_FLOAT_EQ(x[2], 2 * (2 * 0.5f - 3 * 0.8660254f));
  EXPECT_FLOAT_EQ(x[3], 2 * (3 * 0.5f + 2 * 0.8660254f));
  EXPECT_FLOAT_EQ(x[15], 30);
  EXPECT_FLOAT_EQ(x[16], -34);
  EXPECT_FLOAT_EQ(x[17], 32);
}

TEST_P(Vectors, ExponentialsAreAccurate) {
  std::vector<float> x;
  for (float value = -90; value <= 0; value += 0.037f) x.push_back(value);
  std::vector<float> out(x.size());
  table().exponentials(out.data(), x.data(), x.size(), 0, 1);
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(static_cast<double>(x[i]));
    ASSERT_NEAR(out[i], expected, expected * 3e-7 + 2e-38) << table().name << " " << x[i];
  }
  const float special[] = {5, -INFINITY, -1e30f, 4};
  table().exponentials(out.data(), special, 4, 5, 2);
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 0);
  EXPECT_EQ(out[2], 0);
  EXPECT_NEAR(out[3], std::exp(-2.0), 1e-7);
}

TEST_P(Vectors, ExtentFindsTheLowestIndexOfTheMaximum) {
  for (const size_t n : {1, 2, 15, 16, 17, 127, 128, 129, 1000, 49152}) {
    std::vector<float> x = normal(n);
    for (const size_t at : {size_t{0}, n / 2, n - 1}) {
      std::vector<float> y = x;
      y[at] = 100;
      y[n - 1] = 100;
      const Extent extent = table().extent(y.data(), n);
      EXPECT_TRUE(extent.finite);
      EXPECT_EQ(extent.max, 100);
      EXPECT_EQ(extent.index, at) << table().name << " n " << n;
    }
  }
  const std::vector<float> equal(300, -7);
  EXPECT_EQ(table().extent(equal.data(), 300).index, 0u);
}

TEST_P(Vectors, ExtentReportsWhatIsNotFinite) {
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const size_t at : {0, 5, 130, 299}) {
      std::vector<float> x = normal(300);
      x[at] = bad;
      EXPECT_FALSE(table().extent(x.data(), 300).finite) << table().name << " " << bad << " at " << at;
    }
}

TEST_P(Vectors, BlockMaximaAndSums) {
  for (const size_t n : {1, 127, 128, 129, 300, 4000}) {
    const std::vector<float> x = normal(n, 2);
    const size_t blocks = (n + kExtentBlock - 1) / kExtentBlock;
    std::vector<float> maxima(blocks);
    std::vector<double> sums(blocks);
    table().block_maxima(maxima.data(), x.data(), n);
    table().block_exp_sums(sums.data(), x.data(), n, 3, 0.5f);
    for (size_t b = 0; b < blocks; ++b) {
      float top = -HUGE_VALF;
      double sum = 0;
      for (size_t i = b * kExtentBlock; i < std::min(n, (b + 1) * kExtentBlock); ++i) {
        top = std::max(top, x[i]);
        sum += std::exp((static_cast<double>(x[i]) - 3) * 0.5);
      }
      EXPECT_EQ(maxima[b], top);
      EXPECT_NEAR(sums[b], sum, sum * 2e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, Vectors, testing::ValuesIn(available_tables()), table_name);

TEST(Dispatch, FastestFirstGenericLast) {
  const std::vector<const Table*> tables = available_tables();
  ASSERT_FALSE(tables.empty());
  EXPECT_STREQ(tables.back()->name, "generic");
  EXPECT_EQ(&best_table(), tables.front());
}

}  // namespace
}  // namespace ringmaster::gpu_worker::kernels
