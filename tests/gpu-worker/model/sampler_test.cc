#include "gpu-worker/model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>

#include "gpu-worker/kernels/dispatch.h"
#include "gpu-worker/model/philox.h"

namespace ringmaster::gpu_worker {
namespace {

// Known answers of the authors' library (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(philox4x32({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, {0xFFFFFFFF, 0xFFFFFFFF}),
            (std::array<uint32_t, 4>{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
            (std::array<uint32_t, 4>{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(Philox, UniformIsInRangeAndItsMeanIsAHalf) {
  double sum = 0;
  for (uint32_t i = 0; i < 100000; ++i) {
    const double u = uniform(42, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.004);  // four standard deviations
}

class Sampler : public testing::TestWithParam<const kernels::Table*> {
 protected:
  SampledRow sample(const LaneOpen& open, std::vector<float> logits, uint32_t token_number = 0) {
    LaneSampler lane;
    lane.open(open, static_cast<uint32_t>(logits.size()));
    return lane.sample(*GetParam(), logits, token_number, scratch_);
  }
  // How often each id comes out over many token numbers.
  std::map<TokenId, int> draw(const LaneOpen& open, const std::vector<float>& logits, int times) {
    LaneSampler lane;
    lane.open(open, static_cast<uint32_t>(logits.size()));
    std::map<TokenId, int> counts;
    for (int i = 0; i < times; ++i) {
      std::vector<float> copy = logits;
      ++counts[lane.sample(*GetParam(), copy, static_cast<uint32_t>(i), scratch_).id];
    }
    return counts;
  }
  std::vector<TokenId> ids(const LaneOpen& open, const std::vector<float>& logits, int times) {
    std::vector<TokenId> out;
    for (const auto& [id, count] : draw(open, logits, times)) out.push_back(id);
    return out;
  }
  SamplerScratch scratch_;
};

LaneOpen with_temperature(float temperature, uint64_t seed = 1) {
  LaneOpen open;
  open.sampling.temperature = temperature;
  open.sampling.seed = seed;
  return open;
}

std::vector<float> normal_logits(size_t n, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> values(0, deviation);
  std::vector<float> out(n);
  for (float& x : out) x = values(random);
  return out;
}

TEST_P(Sampler, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  EXPECT_EQ(sample({}, {1, 3, 2, 3}).id, 1u);
  EXPECT_EQ(sample({}, {0, 0, 0}).id, 0u);
  EXPECT_EQ(sample({}, {-5}).id, 0u);
}

TEST_P(Sampler, LogProbabilitiesAreOfTheRawLogits) {
  LaneOpen open;
  open.logprobs = 4;
  open.sampling.logit_bias = {{0, 100}};
  open.sampling.repetition_penalty = 2;
  open.context = {2};
  open.prompt_count = 1;
  const SampledRow row = sample(open, {1, 2, 3, 0});
  const double log_sum = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0) + 1);
  EXPECT_EQ(row.id, 0u);
  EXPECT_NEAR(row.logprob, 1 - log_sum, 1e-6);
  ASSERT_EQ(row.top.size(), 3u);
  EXPECT_EQ(row.top[0].id, 2u);
  EXPECT_NEAR(row.top[0].logprob, 3 - log_sum, 1e-6);
  EXPECT_EQ(row.top[1].id, 1u);
  EXPECT_EQ(row.top[2].id, 0u);
}

TEST_P(Sampler, TopLogprobsOfALargeVocabularyAreTheTrueOnes) {
  const std::vector<float> logits = normal_logits(49152, 3, 5);
  LaneOpen open;
  open.logprobs = 21;
  const SampledRow row = sample(open, logits);
  std::vector<TokenId> order(logits.size());
  for (TokenId i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  ASSERT_EQ(row.top.size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(row.top[i].id, order[i]);
  EXPECT_EQ(row.top[0].logprob, row.logprob);
}

TEST_P(Sampler, MoreLogprobsThanTokens) {
  LaneOpen open;
  open.logprobs = 21;
  EXPECT_EQ(sample(open, {3, 1, 2}).top.size(), 3u);
}

TEST_P(Sampler, PRM_11_LogitBiasBansTheWinner) {
  LaneOpen open;
  open.sampling.logit_bias = {{1, -100}};
  EXPECT_EQ(sample(open, {1, 9, 2}).id, 2u);
  open.sampling.temperature = 1;
  EXPECT_EQ(draw(open, {1, 9, 2}, 500).count(1), 0u);
}

TEST_P(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegative) {
  LaneOpen open;
  open.sampling.repetition_penalty = 2;
  open.context = {0, 1};
  open.prompt_count = 1;                               // 0 of the prompt, 1 of the output: both count
  EXPECT_EQ(sample(open, {4, 1, 2.5f}).id, 2u);        // 4 / 2 < 2.5
  EXPECT_EQ(sample(open, {-1, -1.5f, -1.9f}).id, 2u);  // -2, -3, -1.9
  EXPECT_EQ(sample(open, {5.2f, 1, 2.5f}).id, 0u);
}

TEST_P(Sampler, FrequencyAndPresencePenaltiesCountTheOutputOnly) {
  LaneOpen open;
  open.sampling.frequency_penalty = 0.5f;
  open.sampling.presence_penalty = 0.25f;
  open.context = {0, 0, 0, 1, 1};
  open.prompt_count = 3;
  EXPECT_EQ(sample(open, {2, 2.9f, 1}).id, 0u);  // 2, 2.9 - 2 * 0.5 - 0.25 = 1.65
  EXPECT_EQ(sample(open, {1.6f, 2.9f, 1}).id, 1u);
}

TEST_P(Sampler, PenaltiesCountWhatIsSampledAndComeBackFromTheContext) {
  LaneOpen open;
  open.sampling.presence_penalty = 1.5f;
  open.context = {3};
  open.prompt_count = 1;
  const std::vector<float> logits = {3, 2, 1, 0};
  LaneSampler lane;
  lane.open(open, 4);
  std::vector<TokenId> out;
  for (uint32_t i = 0; i < 4; ++i) {
    std::vector<float> copy = logits;
    out.push_back(lane.sample(*GetParam(), copy, i, scratch_).id);
    EXPECT_EQ(lane.last_id(), out.back());
  }
  EXPECT_EQ(out, (std::vector<TokenId>{0, 1, 0, 0}));
  open.context = {3, 0, 1};  // taken over after two tokens
  EXPECT_EQ(sample(open, logits, 2).id, 0u);
  open.context = {3, 0};
  EXPECT_EQ(sample(open, logits, 1).id, 1u);
}

TEST_P(Sampler, StopIdsWaitForMinTokens) {
  LaneOpen open;
  open.suppressed = {1, 7};  // 7 is not in this vocabulary: ignored
  open.min_tokens = 2;
  EXPECT_EQ(sample(open, {1, 9, 2}, 0).id, 2u);
  EXPECT_EQ(sample(open, {1, 9, 2}, 1).id, 2u);
  EXPECT_EQ(sample(open, {1, 9, 2}, 2).id, 1u);
  open.suppressed = {0, 1, 2};
  EXPECT_TRUE(sample(open, {1, 9, 2}, 0).failed);
}

TEST_P(Sampler, PRM_07_TinyAndHugeTemperatures) {
  // Logits as an FP16 head gives them: coarse steps and ties.
  std::vector<float> logits = normal_logits(1000, 4, 9);
  for (float& x : logits) x = std::round(x * 64) / 64;
  const TokenId best = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (const float temperature : {0.0f, 1e-6f, 9e-6f})
    for (uint64_t seed = 0; seed < 20; ++seed)
      EXPECT_EQ(sample(with_temperature(temperature, seed), logits).id, best);
  for (const float temperature : {1e-5f, 1e-4f, 1e-3f})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      LaneOpen open = with_temperature(temperature, seed);
      for (const float top_p : {1.0f, 0.9f})
        for (const uint32_t top_k : {0u, 40u}) {
          open.sampling.top_p = top_p;
          open.sampling.top_k = top_k;
          const SampledRow row = sample(open, logits);
          EXPECT_FALSE(row.failed);
          EXPECT_EQ(logits[row.id], logits[best]) << temperature;  // one of the tied best
        }
    }
  const std::map<TokenId, int> flat = draw(with_temperature(1e30f), {10, 0, -10, 3}, 4000);
  for (TokenId id = 0; id < 4; ++id) EXPECT_NEAR(flat.at(id), 1000, 120);
}

TEST_P(Sampler, SMP_07_RowsThatAreNotFiniteFailAlone) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> logits = normal_logits(300, 1, 3);
    logits[200] = bad;
    for (const float temperature : {0.0f, 1.0f}) {
      LaneOpen open = with_temperature(temperature);
      open.logprobs = 3;
      EXPECT_TRUE(sample(open, logits).failed);
    }
  }
  EXPECT_FALSE(sample(with_temperature(1), normal_logits(300, 1, 3)).failed);
}

TEST_P(Sampler, ExtremePenaltiesAndLogitsStayFinite) {
  LaneOpen open = with_temperature(1);
  open.sampling.repetition_penalty = 1e-38f;
  open.context = {0, 1};
  const SampledRow row = sample(open, {3e38f, -3e38f, 0});
  EXPECT_FALSE(row.failed);
  EXPECT_EQ(row.id, 0u);
}

TEST_P(Sampler, SMP_01_SeededRowsDependOnTheirOwnRequestOnly) {
  const std::vector<float> logits = normal_logits(5000, 3, 11);
  LaneOpen open = with_temperature(0.8f, 42);
  open.sampling.top_p = 0.95f;
  std::vector<TokenId> alone;
  LaneSampler lane;
  lane.open(open, 5000);
  for (uint32_t i = 0; i < 50; ++i) {
    std::vector<float> copy = logits;
    alone.push_back(lane.sample(*GetParam(), copy, i, scratch_).id);
  }
  for (uint64_t run = 0; run < 4; ++run) {
    LaneSampler seeded, neighbour;
    seeded.open(open, 5000);
    neighbour.open(with_temperature(1.3f, 1000 + run), 5000);
    for (uint32_t i = 0; i < 50; ++i) {
      std::vector<float> copy = logits, other = logits;
      neighbour.sample(*GetParam(), other, i, scratch_);
      EXPECT_EQ(seeded.sample(*GetParam(), copy, i, scratch_).id, alone[i]);
    }
  }
}

TEST_P(Sampler, FrequenciesAreThoseOfTheSoftmax) {
  const std::vector<float> logits = {0, 1, 2, -1};
  const int times = 20000;
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    const std::map<TokenId, int> counts = draw(with_temperature(temperature), logits, times);
    double total = 0, chi = 0;
    for (const float l : logits) total += std::exp(static_cast<double>(l / temperature));
    for (TokenId id = 0; id < 4; ++id) {
      const double expected = times * std::exp(static_cast<double>(logits[id] / temperature)) / total;
      const double seen = counts.contains(id) ? counts.at(id) : 0;
      chi += (seen - expected) * (seen - expected) / expected;
    }
    EXPECT_LT(chi, 16.3) << "temperature " << temperature;  // 3 degrees of freedom, p = 0.001
  }
}

TEST_P(Sampler, TopKKeepsTheKLikeliest) {
  LaneOpen open = with_temperature(1);
  open.sampling.top_k = 2;
  EXPECT_EQ(ids(open, {1, 1.2f, 1.1f, 0.9f}, 500), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(ids(open, {1, 1, 1, 1}, 500), (std::vector<TokenId>{0, 1}));  // ties: the lowest ids
  open.sampling.top_k = 9;                                                // more than there are
  EXPECT_EQ(ids(open, {1, 1, 1, 1}, 500).size(), 4u);
}

TEST_P(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  LaneOpen open = with_temperature(1);
  const std::vector<float> logits = {std::log(0.5f), std::log(0.25f), std::log(0.15f), std::log(0.1f)};
  for (const auto& [p, kept] : {std::pair{0.4f, 1u}, {0.6f, 2u}, {0.76f, 3u}, {0.95f, 4u}}) {
    open.sampling.top_p = p;
    EXPECT_EQ(ids(open, logits, 1000).size(), kept) << p;
  }
  // Over what top-k left: 0.5 / 0.75 is below 0.7, so both stay.
  open.sampling.top_k = 2;
  open.sampling.top_p = 0.7f;
  EXPECT_EQ(ids(open, logits, 1000), (std::vector<TokenId>{0, 1}));
  open.sampling.top_p = 0.6f;
  EXPECT_EQ(ids(open, logits, 1000), (std::vector<TokenId>{0}));
}

TEST_P(Sampler, MinPKeepsWhatIsLikelyBesideTheLikeliest) {
  LaneOpen open = with_temperature(1);
  const std::vector<float> logits = {std::log(0.5f), std::log(0.25f), std::log(0.15f), std::log(0.1f)};
  open.sampling.min_p = 0.29f;  // 0.15 / 0.5 = 0.3 stays, 0.1 / 0.5 = 0.2 goes
  EXPECT_EQ(ids(open, logits, 1000), (std::vector<TokenId>{0, 1, 2}));
  open.sampling.min_p = 1;
  EXPECT_EQ(ids(open, logits, 200), (std::vector<TokenId>{0}));
  open.sampling.min_p = 0.29f;
  open.sampling.top_p = 0.6f;
  EXPECT_EQ(ids(open, logits, 1000), (std::vector<TokenId>{0, 1}));
}

// The slow, simple reference: sort everything, cut, draw in order of id.
TokenId reference(const std::vector<float>& logits, const Sampling& s, double u) {
  struct Entry {
    TokenId id;
    double p;
  };
  std::vector<Entry> all;
  const float top = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (TokenId id = 0; id < logits.size(); ++id) {
    all.push_back({id, std::exp(static_cast<double>((logits[id] - top) * (1 / s.temperature)))});
    total += all.back().p;
  }
  std::stable_sort(all.begin(), all.end(),
                   [&](const Entry& a, const Entry& b) { return logits[a.id] > logits[b.id]; });
  if (s.top_k > 0 && s.top_k < all.size()) all.resize(s.top_k);
  if (s.top_k > 0) {
    total = 0;
    for (const Entry& e : all) total += e.p;
  }
  double reached = 0;
  size_t kept = 0;
  while (kept < all.size() && (kept == 0 || reached < static_cast<double>(s.top_p) * total))
    reached += all[kept++].p;
  if (s.top_p < 1) all.resize(kept);
  std::erase_if(all, [&](const Entry& e) { return e.p < static_cast<double>(s.min_p); });
  std::sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) { return a.id < b.id; });
  double sum = 0, below = 0;
  for (const Entry& e : all) sum += e.p;
  for (const Entry& e : all)
    if ((below += e.p) > u * sum) return e.id;
  return all.back().id;
}

TEST_P(Sampler, EqualsTheReferenceOnLargeVocabularies) {
  uint32_t compared = 0, different = 0;
  for (const float deviation : {0.01f, 1.0f, 4.0f}) {
    const std::vector<float> logits = normal_logits(20000, deviation, 17);
    for (const float top_p : {1.0f, 0.95f, 0.3f})
      for (const uint32_t top_k : {0u, 1u, 50u, 5000u})
        for (const float min_p : {0.0f, 0.05f}) {
          LaneOpen open = with_temperature(0.9f, 77);
          open.sampling.top_p = top_p;
          open.sampling.top_k = top_k;
          open.sampling.min_p = min_p;
          for (uint32_t number = 0; number < 4; ++number, ++compared)
            different +=
                sample(open, logits, number).id != reference(logits, open.sampling, uniform(77, number));
        }
  }
  // A draw within rounding of the border between two ids may fall on the other side; nothing else may differ.
  EXPECT_LE(different, 1u) << "of " << compared;
}

INSTANTIATE_TEST_SUITE_P(Tables, Sampler, testing::ValuesIn(kernels::available_tables()),
                         [](const auto& of) { return std::string(of.param->name); });

}  // namespace
}  // namespace ringmaster::gpu_worker
