// The sampler on the device against the one of the cpu device: the same logits, parameters and seed give the
// same token.
#include <gtest/gtest.h>

#include <algorithm>

#include "gpu-worker/kernels/cuda/sampler.h"
#include "gpu-worker/kernels/dispatch.h"
#include "gpu-worker/model/sampler.h"
#include "tests/gpu-worker/kernels_cuda/device_array.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

class Sampler : public testing::Test {
 protected:
  static constexpr uint32_t kLanes = 4;

  explicit Sampler(uint32_t vocab = 5003)
      : vocab_(vocab),
        state_(std::vector<LaneState>(kLanes, LaneState{})),
        bias_(size_t{kLanes} * kMaxLogitBias),
        suppressed_(size_t{kLanes} * kMaxSuppressed),
        seen_(size_t{kLanes} * vocab),
        last_id_(kLanes),
        adjusted_(size_t{kLanes} * vocab) {}

  LaneTables tables() const {
    return {state_.get(), bias_.get(), suppressed_.get(), seen_.get(), last_id_.get()};
  }

  void open(const LaneOpen& o) {
    const Sampling& s = o.sampling;
    const LaneState state{
        .temperature = s.temperature,
        .top_p = s.top_p,
        .min_p = s.min_p,
        .repetition_penalty = s.repetition_penalty,
        .frequency_penalty = s.frequency_penalty,
        .presence_penalty = s.presence_penalty,
        .top_k = s.top_k,
        .min_tokens = o.min_tokens,
        .num_bias = static_cast<uint32_t>(s.logit_bias.size()),
        .num_suppressed = static_cast<uint32_t>(o.suppressed.size()),
        .logprobs = o.logprobs,
        .penalises = s.repetition_penalty != 1 || s.frequency_penalty != 0 || s.presence_penalty != 0,
        .seed = s.seed};
    EXPECT_CUDA(cudaMemcpy(state_.get() + o.lane, &state, sizeof state, cudaMemcpyHostToDevice));
    EXPECT_CUDA(cudaMemcpy(bias_.get() + size_t{o.lane} * kMaxLogitBias, s.logit_bias.data(),
                           s.logit_bias.size() * sizeof(LogitBias), cudaMemcpyHostToDevice));
    EXPECT_CUDA(cudaMemcpy(suppressed_.get() + size_t{o.lane} * kMaxSuppressed, o.suppressed.data(),
                           o.suppressed.size() * sizeof(TokenId), cudaMemcpyHostToDevice));
    const DeviceArray<uint32_t> context(o.context.empty() ? std::vector<uint32_t>{0} : o.context);
    EXPECT_CUDA(open_lane(test_launch(false), tables(), o.lane, vocab_, context.get(),
                          static_cast<uint32_t>(o.context.size()), o.prompt_count));
    EXPECT_CUDA(cudaDeviceSynchronize());
    cpu_.open(o, vocab_);
  }

  std::vector<float> random_logits(uint32_t seed, float scale) const {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> logits(vocab_);
    for (float& l : logits) l = normal(generator);
    return logits;
  }

  // Both; the cpu's answer is what is expected.
  void compare(const std::vector<float>& logits, Lane lane, uint32_t token_number) {
    const DeviceArray<float> on_device(logits);
    const DeviceArray<SampleRow> row(std::vector<SampleRow>{{lane, token_number}});
    const DeviceArray<SampledToken> out(1);
    EXPECT_CUDA(sample(test_launch(), tables(), on_device.get(), adjusted_.get(), vocab_, vocab_, row.get(),
                       1, out.get()));
    const SampledToken got = out.read()[0];
    std::vector<float> copy = logits;
    const SampledRow wanted = cpu_.sample(kernels::best_table(), copy, token_number, scratch_);
    ASSERT_EQ(got.failed != 0, wanted.failed);
    ASSERT_EQ(got.id, wanted.id) << "token " << token_number;
    EXPECT_EQ(last_id_.read()[lane], wanted.id);
    if (wanted.failed) return;
    EXPECT_NEAR(got.logprob, wanted.logprob, 1e-3);
    ASSERT_EQ(got.num_top, wanted.top.size());
    for (uint32_t i = 0; i < got.num_top; ++i) {
      EXPECT_EQ(got.top_id[i], wanted.top[i].id);
      EXPECT_NEAR(got.top_logprob[i], wanted.top[i].logprob, 1e-3);
    }
  }

  void run(LaneOpen o, float scale = 2, uint32_t tokens = 40) {
    o.lane = 2;
    open(o);
    for (uint32_t t = 0; t < tokens; ++t) compare(random_logits(t + 1, scale), 2, t);
  }

  const uint32_t vocab_;
  DeviceArray<LaneState> state_;
  DeviceArray<LogitBias> bias_;
  DeviceArray<uint32_t> suppressed_;
  DeviceArray<uint16_t> seen_;
  DeviceArray<uint32_t> last_id_;
  DeviceArray<float> adjusted_;
  LaneSampler cpu_;
  SamplerScratch scratch_;
};

TEST_F(Sampler, Greedy) {
  run({});
}
TEST_F(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  open({});
  std::vector<float> logits(vocab_, 1);
  compare(logits, 0, 0);
  logits[17] = logits[4000] = 2;
  compare(logits, 0, 1);
}
TEST_F(Sampler, LogProbabilitiesOfTheChosenAndTheBest) {
  run({.logprobs = 21});
}
TEST_F(Sampler, TemperatureAlone) {
  run({.sampling = {.temperature = 1, .seed = 5}, .logprobs = 1});
}
TEST_F(Sampler, PRM_07_TemperaturesNearZeroAndHuge) {
  for (const float t : {1e-30f, 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e30f})
    run({.sampling = {.temperature = t, .seed = 6}}, 10, 5);
}
TEST_F(Sampler, TopK) {
  for (const uint32_t k : {1u, 2u, 40u, 5002u})
    run({.sampling = {.temperature = 1.3f, .top_k = k, .seed = 7}});
}
TEST_F(Sampler, TopP) {
  for (const float p : {0.01f, 0.5f, 0.9f, 0.999f})
    run({.sampling = {.temperature = 1, .top_p = p, .seed = 8}});
}
TEST_F(Sampler, MinP) {
  for (const float p : {0.01f, 0.3f, 1.0f}) run({.sampling = {.temperature = 1, .min_p = p, .seed = 9}});
}
TEST_F(Sampler, AllCutsTogether) {
  run({.sampling = {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f, .min_p = 0.05f, .seed = 10}});
}
TEST_F(Sampler, CutsAmongEqualsTakeTheLowestIds) {
  for (const Sampling& s : {Sampling{.temperature = 1, .top_k = 7, .seed = 11},
                           Sampling{.temperature = 1, .top_p = 0.25f, .seed = 12}}) {
    open({.lane = 1, .sampling = s});
    std::vector<float> logits(vocab_, -3);
    for (uint32_t i = 0; i < 100; ++i) logits[i * 13 + 5] = 2;
    for (uint32_t t = 0; t < 40; ++t) compare(logits, 1, t);
  }
}
TEST_F(Sampler, PenaltiesCountFromThePromptAndTheOutput) {
  LaneOpen o{.sampling = {.repetition_penalty = 1.2f, .frequency_penalty = 0.7f, .presence_penalty = -0.4f},
             .logprobs = 3};
  o.context = {5, 9, 9, 100, 4000, 4000, 4000};
  o.prompt_count = 4;
  run(o, 0.5f);
  o.sampling.temperature = 0.9f;
  o.sampling.top_p = 0.8f;
  run(o, 0.5f);
}
TEST_F(Sampler, BiasBansAndForces) {
  LaneOpen o{.logprobs = 2};
  const std::vector<float> first = random_logits(1, 2);
  const auto best = static_cast<TokenId>(std::max_element(first.begin(), first.end()) - first.begin());
  o.sampling.logit_bias = {{best, -100}, {77, 1.5f}};
  run(o);
  o.sampling.logit_bias = {{123, 100}};
  run(o);
}
TEST_F(Sampler, StopIdsAreSuppressedUntilMinTokens) {
  LaneOpen o{.min_tokens = 3};
  const std::vector<float> logits = random_logits(1, 2);
  o.suppressed = {static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
  open(o);
  for (uint32_t t = 0; t < 5; ++t) compare(logits, 0, t);
}
TEST_F(Sampler, ARowThatIsNotFiniteFailsAlone) {
  open({});
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> logits = random_logits(1, 2);
    logits[4444] = bad;
    compare(logits, 0, 0);
  }
}
TEST_F(Sampler, FlatAndPeaked) {
  run({.sampling = {.temperature = 1, .top_p = 0.9f, .seed = 13}}, 0.01f);
  run({.sampling = {.temperature = 1, .top_p = 0.9f, .seed = 14}}, 30);
}

class LargeVocabulary : public Sampler {
 protected:
  LargeVocabulary() : Sampler(256000) {}
};
TEST_F(LargeVocabulary, AllCutsTogether) {
  run({.sampling = {.temperature = 0.8f, .top_k = 500, .top_p = 0.95f, .min_p = 0.01f, .seed = 15},
       .logprobs = 6},
      2, 10);
}

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda
