#include "gpu-worker/device/fake/fake_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/context_hash.h"

namespace ringmaster::gpu_worker {
namespace {

using context_hash::expected;

constexpr uint32_t kVocab = 1000;
constexpr uint32_t kBlockTokens = 4;

GpuWorkerConfig small_config() {
  GpuWorkerConfig config;
  config.device = "fake";
  config.block_tokens = kBlockTokens;
  config.kv_memory = 32 * kBlockTokens * kFakeKvBytesPerToken;  // 32 blocks
  config.max_running = 4;
  config.fake.vocab_size = kVocab;
  config.fake.context_length = 64;
  config.fake.step_time = 2 * kMillisecond;
  return config;
}

LaneOpen lane_open(const std::vector<TokenId>& context, Lane lane = 0) {
  LaneOpen open;
  open.lane = lane;
  open.epoch = 1 + lane;
  open.context = context;
  open.prompt_count = static_cast<uint32_t>(context.size());
  return open;
}

// One sequence in lane 0 driven by hand: a chunked prefill, then decode steps, over a block table that a test
// may spoil.
class Bench {
 public:
  explicit Bench(const GpuWorkerConfig& config) {
    auto made = make_fake_device(config, "", [this] { return now_; });
    EXPECT_TRUE(made.ok()) << made.error().message;
    device_ = std::move(made).value();
  }

  void open(LaneOpen open) { opens_.push_back(std::move(open)); }
  StepPlan plan(Lane lane, std::vector<TokenId> ids, uint32_t position, std::vector<BlockId> blocks,
                bool samples, uint32_t token_number = 0) {
    StepPlan plan;
    plan.step = ++step_;
    plan.opens = std::exchange(opens_, {});
    plan.rows.push_back({lane, 0, static_cast<uint32_t>(ids.size()), position, 0,
                         static_cast<uint32_t>(blocks.size()), samples, token_number});
    plan.ids = std::move(ids);
    plan.blocks = std::move(blocks);
    return plan;
  }
  StepResult run(StepPlan plan) {
    device_->submit(std::move(plan));
    now_ = device_->next_event();
    auto result = device_->retire(now_);
    EXPECT_TRUE(result.has_value());
    return result ? std::move(*result) : StepResult{};
  }
  // Prefill `prompt` in chunks, then decode until there are `count` tokens.
  std::vector<TokenId> generate(const std::vector<TokenId>& prompt, uint32_t chunk,
                                const std::vector<BlockId>& table, uint32_t count, Lane lane = 0) {
    open(lane_open(prompt, lane));
    std::vector<TokenId> tokens;
    for (uint32_t at = 0; at < prompt.size(); at += chunk) {
      const auto end = std::min<size_t>(at + chunk, prompt.size());
      auto result = run(plan(lane, {prompt.begin() + at, prompt.begin() + static_cast<ptrdiff_t>(end)}, at,
                             table, end == prompt.size()));
      for (const SampledRow& row : result.rows) tokens.push_back(row.id);
    }
    return decode(static_cast<uint32_t>(prompt.size()), table, std::move(tokens), count, lane);
  }
  std::vector<TokenId> decode(uint32_t prompt_count, const std::vector<BlockId>& table,
                              std::vector<TokenId> tokens, uint32_t count, Lane lane = 0) {
    while (tokens.size() < count) {
      const auto number = static_cast<uint32_t>(tokens.size());
      auto result = run(plan(lane, {kFromLane}, prompt_count + number - 1, table, true, number));
      EXPECT_FALSE(result.error) << result.error->message;
      if (result.rows.empty()) break;
      tokens.push_back(result.rows[0].id);
    }
    return tokens;
  }

  Nanos now_ = kSecond;
  uint64_t step_ = 0;
  std::unique_ptr<Device> device_;
  std::vector<LaneOpen> opens_;
};

std::vector<TokenId> some_prompt(uint32_t count, uint32_t salt = 0) {
  std::vector<TokenId> ids(count);
  for (uint32_t i = 0; i < count; ++i) ids[i] = (i * 37 + 11 + salt * 101) % kVocab;
  return ids;
}

TEST(FakeDevice, HashModeSaysTheContextHashWhateverTheChunksAndBlocks) {
  const auto prompt = some_prompt(19);
  const auto want = expected(prompt, kVocab, {}, 20);
  for (const uint32_t chunk : {1u, 3u, 4u, 7u, 19u}) {
    Bench bench(small_config());
    EXPECT_EQ(bench.generate(prompt, chunk, {7, 3, 30, 1, 12, 0, 31, 5, 6, 9}, 20), want)
        << "chunk " << chunk;
  }
}

TEST(FakeDevice, ALostRepeatedOrSwappedIdChangesEverythingAfter) {
  const auto prompt = some_prompt(12);
  const auto want = expected(prompt, kVocab, {}, 8);
  auto lost = prompt, repeated = prompt, swapped = prompt;
  lost.erase(lost.begin() + 5);
  repeated.insert(repeated.begin() + 5, repeated[5]);
  std::swap(swapped[4], swapped[5]);
  for (const auto& wrong : {lost, repeated, swapped}) {
    Bench bench(small_config());
    const auto got = bench.generate(wrong, 5, {0, 1, 2, 3, 4, 5, 6}, 8);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NE(got[i], want[i]) << i;
  }
}

// The detector detects: each way in which a block table can be wrong, at any block, changes the output for
// good.
TEST(FakeDevice, AWrongBlockAnywhereInTheTableChangesTheOutput) {
  const auto prompt = some_prompt(16);
  const auto want = expected(prompt, kVocab, {}, 8);
  for (uint32_t spoilt = 0; spoilt < 4; ++spoilt) {
    Bench bench(small_config());
    const std::vector<BlockId> table = {0, 1, 2, 3, 4, 5};
    auto tokens = bench.generate(prompt, 16, table, 2);
    ASSERT_EQ(tokens, std::vector<TokenId>(want.begin(), want.begin() + 2));
    auto wrong = table;
    wrong[spoilt] = 20;  // never written
    const auto got = bench.decode(16, wrong, tokens, 8);
    for (size_t i = 2; i < 8; ++i) EXPECT_NE(got[i], want[i]) << "block " << spoilt << ", token " << i;
  }
}

TEST(FakeDevice, OneStepWithAWrongTableIsNotForgotten) {
  const auto prompt = some_prompt(16);
  const auto want = expected(prompt, kVocab, {}, 8);
  Bench bench(small_config());
  auto tokens = bench.generate(prompt, 16, {0, 1, 2, 3, 4, 5}, 2);
  tokens = bench.decode(16, {1, 0, 2, 3, 4, 5}, tokens, 3);
  tokens = bench.decode(16, {0, 1, 2, 3, 4, 5}, tokens, 8);
  for (size_t i = 2; i < 8; ++i) EXPECT_NE(tokens[i], want[i]) << i;
}

TEST(FakeDevice, ABlockReusedTooEarlyChangesItsFormerOwner) {
  const auto prompt = some_prompt(16);
  const auto want = expected(prompt, kVocab, {}, 8);
  for (const BlockId reused : {0u, 1u, 3u}) {
    for (const uint32_t written : {1u, 4u}) {  // even a single position of it
      Bench bench(small_config());
      auto tokens = bench.generate(prompt, 16, {0, 1, 2, 3, 4, 5}, 2);
      const auto other = bench.generate(some_prompt(written, 3), 4, {reused, 21}, 1, /*lane=*/1);
      EXPECT_EQ(other, expected(some_prompt(written, 3), kVocab, {}, 1));
      const auto got = bench.decode(16, {0, 1, 2, 3, 4, 5}, tokens, 8);
      for (size_t i = 2; i < 8; ++i) EXPECT_NE(got[i], want[i]) << "block " << reused << ", token " << i;
    }
  }
}

// What the device does, said the slow way: every position of the context is read at every step. The device
// reads again only what may have changed.
class SlowMemory {
 public:
  uint64_t run(const std::vector<BlockId>& table, uint32_t position, const std::vector<TokenId>& ids) {
    uint64_t state = context_hash::kStart;
    for (uint32_t i = 0; i < position; ++i) {
      const Entry& entry = at(table, i);
      const bool holds = entry.hash == context_hash::mix(state, entry.id);
      state = holds ? entry.hash : context_hash::mix(entry.hash, 0xFFFFFFFF);
      faults += !holds;
    }
    for (const TokenId id : ids) at(table, position++) = {state = context_hash::mix(state, id), id};
    return state;
  }
  uint32_t faults = 0;

 private:
  struct Entry {
    uint64_t hash = 0;
    TokenId id = 0;
  };
  Entry& at(const std::vector<BlockId>& table, uint32_t position) {
    return entries_[table[position / kBlockTokens] * kBlockTokens + position % kBlockTokens];
  }
  std::vector<Entry> entries_ = std::vector<Entry>(32 * kBlockTokens);
};

// Lanes that grow, share and steal blocks, go back, jump over a hole and lose a table for a step.
TEST(FakeDevice, FindsTheSameFaultsAsReadingEverythingEachTime) {
  uint32_t right = 0, wrong = 0;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    Bench bench(small_config());
    SlowMemory slow;
    struct {
      std::vector<BlockId> table;
      uint32_t length = 0;
    } lanes[4];
    for (int step = 0; step < 300; ++step) {
      const Lane lane = below(4);
      auto& [table, length] = lanes[lane];
      if (table.empty() || length > 24 || below(40) == 0) {
        table.resize(8);
        for (uint32_t i = 0; i < 8; ++i) table[i] = lane * 8 + i;
        length = 0;
        if (below(3) == 0) {  // begins with another lane's blocks, as after a prefix hit
          const auto& other = lanes[below(4)];
          const uint32_t shared = other.length / kBlockTokens;
          std::copy_n(other.table.begin(), shared, table.begin());
          length = shared * kBlockTokens;
        }
        bench.open(lane_open({1}, lane));
      }
      auto used = table;
      if (below(30) == 0) used[below(8)] = below(32);
      if (below(60) == 0) table[below(8)] = below(32);
      if (below(30) == 0) length = below(length + 1);
      if (below(100) == 0) length += 1;
      const auto ids = some_prompt(1 + below(3), below(9));
      slow.faults = 0;
      const uint64_t state = slow.run(used, length, ids);
      (slow.faults == 0 ? right : wrong) += 1;
      const auto result = bench.run(bench.plan(lane, ids, length, used, true));
      ASSERT_EQ(result.rows.size(), 1u);
      ASSERT_EQ(result.rows[0].id, context_hash::token_of(state, kVocab, {}))
          << "seed " << seed << ", step " << step << ", faults " << slow.faults;
      length += static_cast<uint32_t>(ids.size());
    }
  }
  EXPECT_GT(right, 3000u);
  EXPECT_GT(wrong, 300u);
}

TEST(FakeDevice, APrefixHitIsRightOnlyForTheSamePrefix) {
  Bench bench(small_config());
  const auto first = some_prompt(8);
  bench.generate(first, 8, {0, 1, 2}, 1);
  for (const bool same : {true, false}) {
    auto second = first;
    if (!same) second[2] = 999;
    for (const TokenId id : some_prompt(3, 7)) second.push_back(id);
    bench.open(lane_open(second, 1));
    const auto result =
        bench.run(bench.plan(1, {second.begin() + 8, second.end()}, 8, {0, 1, same ? 10u : 11u}, true));
    ASSERT_EQ(result.rows.size(), 1u);
    EXPECT_EQ(result.rows[0].id == expected(second, kVocab, {}, 1)[0], same);
  }
}

TEST(FakeDevice, PRM_11_ABannedWinnerNeverAppearsAndAForcedIdAlways) {
  const auto prompt = some_prompt(5);
  const auto winner = expected(prompt, kVocab, {}, 1)[0];
  for (const float bias : {-100.f, 100.f}) {
    Bench bench(small_config());
    LaneOpen open = lane_open(prompt);
    open.logprobs = 3;
    open.sampling.logit_bias = {{bias < 0 ? winner : 17, bias}};
    bench.open(open);
    const auto result = bench.run(bench.plan(0, prompt, 0, {0, 1}, true));
    ASSERT_EQ(result.rows.size(), 1u);
    const SampledRow& row = result.rows[0];
    if (bias < 0) {
      EXPECT_NE(row.id, winner);
    } else {
      EXPECT_EQ(row.id, 17u);
    }
    // Log-probabilities are of the raw logits: the winner leads them whatever was said.
    ASSERT_EQ(row.top.size(), 2u);
    EXPECT_EQ(row.top[0].id, winner);
    EXPECT_GT(row.top[0].logprob, row.top[1].logprob);
    EXPECT_LT(row.logprob, row.top[0].logprob);
  }
}

TEST(FakeDevice, SuppressedIdsWaitForMinTokens) {
  const auto prompt = some_prompt(5);
  const auto winner = expected(prompt, kVocab, {}, 1)[0];
  for (const uint32_t min_tokens : {0u, 1u}) {
    Bench bench(small_config());
    LaneOpen open = lane_open(prompt);
    open.suppressed = {winner};
    open.min_tokens = min_tokens;
    bench.open(open);
    const auto result = bench.run(bench.plan(0, prompt, 0, {0, 1}, true));
    EXPECT_EQ(result.rows.at(0).id == winner, min_tokens == 0);
  }
}

TEST(FakeDevice, LogprobsAddUpToAtMostOne) {
  const auto prompt = some_prompt(5);
  Bench bench(small_config());
  LaneOpen open = lane_open(prompt);
  open.logprobs = kMaxTopLogprobs + 1;
  bench.open(open);
  const auto result = bench.run(bench.plan(0, prompt, 0, {0, 1}, true));
  const auto& top = result.rows.at(0).top;
  ASSERT_EQ(top.size(), kMaxTopLogprobs);
  EXPECT_EQ(top[0].logprob, result.rows[0].logprob);
  const double sum = std::accumulate(top.begin(), top.end(), 0.0, [](double s, const TopToken& t) {
    return s + std::exp(double{t.logprob});
  });
  EXPECT_LE(sum, 1.0 + 1e-6);
  EXPECT_GT(sum, 0.9);
}

TEST(FakeDevice, EveryIdSuppressedFailsTheRowAlone) {
  auto config = small_config();
  config.fake.vocab_size = 3;
  Bench bench(config);
  LaneOpen open = lane_open({1});
  open.suppressed = {2, 0, 1};
  open.min_tokens = 5;
  bench.open(open);
  const auto result = bench.run(bench.plan(0, {1}, 0, {0}, true));
  EXPECT_FALSE(result.error);
  EXPECT_TRUE(result.rows.at(0).failed);
}

TEST(FakeDevice, TextModePlaysItsIdsThenTheFirstEndId) {
  auto config = small_config();
  config.fake.mode = FakeConfig::Mode::kText;
  config.fake.ids = {5, 6, 7};
  Bench bench(config);
  LaneOpen open = lane_open({1});
  open.suppressed = {42, 2};
  bench.open(open);
  std::vector<TokenId> tokens = {bench.run(bench.plan(0, {1}, 0, {0, 1}, true)).rows.at(0).id};
  EXPECT_EQ(bench.decode(1, {0, 1}, tokens, 4), (std::vector<TokenId>{5, 6, 7, 42}));
  // No stop ids (ignore_eos): from the start again.
  bench.open(lane_open({1}, 1));
  tokens = {bench.run(bench.plan(1, {1}, 0, {2, 3}, true)).rows.at(0).id};
  EXPECT_EQ(bench.decode(1, {2, 3}, tokens, 5, 1), (std::vector<TokenId>{5, 6, 7, 5, 6}));
}

TEST(FakeDevice, TimeIsATimerAndStepsQueueUp) {
  auto config = small_config();
  config.fake.prefill_time_per_token = kMicrosecond;
  Bench bench(config);
  EXPECT_EQ(bench.device_->next_event(), kNever);
  bench.open(lane_open(some_prompt(8)));
  bench.device_->submit(bench.plan(0, some_prompt(8), 0, {0, 1, 2}, true));
  bench.device_->submit(bench.plan(0, {kFromLane}, 8, {0, 1, 2}, true, 1));
  const Nanos first = kSecond + 2 * kMillisecond + 8 * kMicrosecond;
  EXPECT_EQ(bench.device_->next_event(), first);
  EXPECT_FALSE(bench.device_->retire(first - 1));
  EXPECT_EQ(bench.device_->retire(first)->step, 1u);
  EXPECT_EQ(bench.device_->next_event(), first + 2 * kMillisecond);
  EXPECT_FALSE(bench.device_->retire(first));
  EXPECT_EQ(bench.device_->retire(first + 2 * kMillisecond)->step, 2u);
  EXPECT_EQ(bench.device_->next_event(), kNever);
}

TEST(FakeDevice, FailsAndStallsAtTheConfiguredStep) {
  auto config = small_config();
  config.fake.fail_at_step = 2;
  Bench failing(config);
  EXPECT_EQ(failing.generate(some_prompt(4), 4, {0, 1}, 1).size(), 1u);
  const auto result = failing.run(failing.plan(0, {kFromLane}, 4, {0, 1}, true, 1));
  ASSERT_TRUE(result.error);
  EXPECT_NE(result.error->message.find("fail_at_step"), std::string::npos);
  EXPECT_TRUE(failing.run(failing.plan(0, {kFromLane}, 5, {0, 1}, true, 2)).error)
      << "a lost device stays lost";

  config.fake.fail_at_step = 0;
  config.fake.stall_at_step = 2;
  Bench stalling(config);
  EXPECT_EQ(stalling.generate(some_prompt(4), 4, {0, 1}, 1).size(), 1u);
  stalling.device_->submit(stalling.plan(0, {kFromLane}, 4, {0, 1}, true, 1));
  stalling.device_->submit(stalling.plan(0, {kFromLane}, 5, {0, 1}, true, 2));
  EXPECT_EQ(stalling.device_->next_event(), kNever);
  EXPECT_FALSE(stalling.device_->retire(kNever));
}

TEST(FakeDevice, APlanThatBreaksTheContractIsAnErrorNotACrash) {
  const auto error_of = [](auto spoil) {
    Bench bench(small_config());
    bench.open(lane_open({1, 2}));
    StepPlan plan = bench.plan(0, {1, 2}, 0, {0}, true);
    spoil(plan);
    auto result = bench.run(std::move(plan));
    return result.error ? result.error->message : std::string();
  };
  EXPECT_EQ(error_of([](StepPlan&) {}), "");
  EXPECT_NE(error_of([](StepPlan& p) { p.rows[0].lane = 4; }), "");
  EXPECT_NE(error_of([](StepPlan& p) { p.rows[0].lane = 1; }), "") << "never opened";
  EXPECT_NE(error_of([](StepPlan& p) { p.rows[0].num_tokens = 3; }), "");
  EXPECT_NE(error_of([](StepPlan& p) { p.rows[0].num_tokens = 0; }), "");
  EXPECT_NE(error_of([](StepPlan& p) { p.rows[0].first_position = 3; }), "") << "table too short";
  EXPECT_NE(error_of([](StepPlan& p) { p.rows[0].first_position = 0xFFFFFFFF; }), "");
  EXPECT_NE(error_of([](StepPlan& p) { p.rows[0].num_blocks = 2; }), "");
  EXPECT_NE(error_of([](StepPlan& p) { p.blocks[0] = 32; }), "");
  EXPECT_NE(error_of([](StepPlan& p) { p.ids[0] = kVocab; }), "");
  EXPECT_NE(error_of([](StepPlan& p) { p.ids[0] = kFromLane; }), "") << "nothing sampled yet";
  EXPECT_NE(error_of([](StepPlan& p) { p.rows.push_back(p.rows[0]); }), "") << "two rows in a lane";
  EXPECT_NE(error_of([](StepPlan& p) { p.opens.push_back(p.opens[0]); }), "");
  EXPECT_NE(error_of([](StepPlan& p) { p.step = 0; }), "");
}

TEST(FakeDevice, PRM_05_TheContextIsNeverLongerThanTheBlocksHold) {
  auto config = small_config();
  EXPECT_EQ((*make_fake_device(config, ""))->info().context_length, 64u);
  config.kv_memory = 15 * kBlockTokens * kFakeKvBytesPerToken;
  EXPECT_EQ((*make_fake_device(config, ""))->info().context_length, 60u);
  config.context_length = 20;
  EXPECT_EQ((*make_fake_device(config, ""))->info().context_length, 20u);
}

TEST(FakeDevice, RefusesWhatCannotWorkWithTheNumbers) {
  const auto message_of = [](auto spoil) {
    auto config = small_config();
    spoil(config);
    auto made = make_fake_device(config, "");
    return made ? std::string() : made.error().message;
  };
  EXPECT_EQ(message_of([](GpuWorkerConfig&) {}), "");
  EXPECT_NE(message_of([](auto& c) { c.fake.vocab_size = 0; }).find("vocab_size"), std::string::npos);
  const std::string memory = message_of([](auto& c) { c.kv_memory = kBlockTokens * kFakeKvBytesPerToken - 1; });
  EXPECT_NE(memory.find("one block of 4 tokens takes 92160"), std::string::npos) << memory;
  EXPECT_NE(message_of([](auto& c) { c.context_length = 65; }).find("context_length"), std::string::npos);
  EXPECT_NE(message_of([](auto& c) { c.fake.mode = FakeConfig::Mode::kText; }).find("ids"),
            std::string::npos);
  EXPECT_NE(message_of([](auto& c) {
              c.fake.mode = FakeConfig::Mode::kText;
              c.fake.ids = {kVocab};
            }).find("1000"),
            std::string::npos);
  EXPECT_NE(make_fake_device(small_config(), "/nonexistent.gguf").ok(), true);
}

}  // namespace
}  // namespace ringmaster::gpu_worker
