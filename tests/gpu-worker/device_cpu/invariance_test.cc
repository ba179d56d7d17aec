// The same prompt must give the same bits whatever happens around it: alone, in a batch, in chunks, after a
// prefix hit, after preemption, on one thread or several, its attention split or whole.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "base/config.h"
#include "gpu-worker/device/cpu/cpu_device.h"
#include "gpu-worker/kernels/dispatch.h"
#include "tests/gpu-worker/device/driver.h"

namespace ringmaster::gpu_worker {
namespace {

struct Token {
  TokenId id;
  float logprob;
  std::vector<TopToken> top;
};

bool same_bits(float a, float b) {
  return std::memcmp(&a, &b, 4) == 0;
}

void expect_same(const std::vector<Token>& a, const std::vector<Token>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].id, b[i].id) << what << ", token " << i;
    ASSERT_TRUE(same_bits(a[i].logprob, b[i].logprob)) << what << ", token " << i;
    ASSERT_EQ(a[i].top.size(), b[i].top.size());
    for (size_t j = 0; j < a[i].top.size(); ++j) {
      ASSERT_EQ(a[i].top[j].id, b[i].top[j].id) << what << ", token " << i;
      ASSERT_TRUE(same_bits(a[i].top[j].logprob, b[i].top[j].logprob)) << what << ", token " << i;
    }
  }
}

struct Model {
  std::string name, path;
  const kernels::Table* table;
};

std::vector<Model> models() {
  std::vector<Model> out;
  for (const kernels::Table* table : kernels::available_tables())
    for (const char* name : {"q4_1", "q8_0", "f16"}) {
      // The reference has one code path for all forms, and is slow: one model.
      if (std::string(table->name) == "generic" && std::string(name) != "q8_0") continue;
      out.push_back({std::string(table->name) + "_" + name,
                     data_path(std::string("gguf/") + name + "/model.gguf"), table});
    }
  const Result<std::string> smollm2 = resolve_model("smollm2");
  if (smollm2 && std::filesystem::exists(*smollm2))
    out.push_back({"smollm2", *smollm2, &kernels::best_table()});
  return out;
}

class Invariance : public testing::TestWithParam<Model> {
 protected:
  static constexpr uint32_t kOutput = 12;

  void SetUp() override { open(2); }
  void open(uint32_t threads) {
    GpuWorkerConfig config;
    config.threads = threads;
    config.max_running = 17;
    config.kv_memory = 300ull << 20;
    if (GetParam().name != "smollm2") config.kv_memory = 8 << 20;
    Result<std::unique_ptr<Driver>> driver = Driver::open([&](shm::Doorbell& bell) {
      return make_cpu_device(config, GetParam().path, bell, *GetParam().table);
    });
    ASSERT_TRUE(driver.ok()) << driver.error().message;
    driver_ = std::move(*driver);
  }

  Ids prompt(uint32_t length, uint32_t seed) {
    std::mt19937 random(seed);
    Ids ids;
    for (uint32_t i = 0; i < length; ++i)
      ids.push_back(random() % std::min(driver_->device().info().vocab_size, 40000u));
    return ids;
  }

  static LaneOpen lane_open(Lane lane, const Ids& context, size_t prompt_count, bool sampled) {
    LaneOpen open;
    open.lane = lane;
    open.logprobs = 6;
    open.context = context;
    open.prompt_count = static_cast<uint32_t>(prompt_count);
    if (sampled) {
      open.sampling.temperature = 0.9f;
      open.sampling.top_p = 0.95f;
      open.sampling.repetition_penalty = 1.1f;
      open.sampling.presence_penalty = 0.3f;
      open.sampling.seed = 99;
    }
    return open;
  }

  static void keep(std::vector<Token>& out, const SampledRow& row) {
    EXPECT_FALSE(row.failed);
    out.push_back({row.id, row.logprob, row.top});
  }

  void decode(Sequence& s, Lane lane, uint32_t from, uint32_t to, std::vector<Token>& out) {
    for (uint32_t number = from; number < to; ++number) {
      s.ids.push_back(kFromLane);
      StepPlan plan;
      Driver::add_row(plan, s, 1, lane, true, number);
      keep(out, driver_->step(std::move(plan)).rows[0]);
      s.ids.back() = out[out.size() - 2].id;
    }
  }

  std::vector<Token> alone(const Ids& ids, uint32_t chunk, bool sampled) {
    Sequence s = driver_->sequence(ids, kOutput);
    const LaneOpen open = lane_open(3, ids, ids.size(), sampled);
    std::vector<Token> out;
    keep(out, driver_->prefill(s, chunk, 3, &open));
    decode(s, 3, 1, kOutput, out);
    return out;
  }

  std::unique_ptr<Driver> driver_;
};

TEST_P(Invariance, ChunksOf1And7And512) {
  for (const bool sampled : {false, true}) {
    const Ids ids = prompt(150, 1);
    const std::vector<Token> whole = alone(ids, 512, sampled);
    expect_same(whole, alone(ids, 1, sampled), "chunks of 1");
    expect_same(whole, alone(ids, 7, sampled), "chunks of 7");
    expect_same(whole, alone(ids, 64, sampled), "chunks of 64");
  }
}

TEST_P(Invariance, SMP_03_TwiceAfterUnrelatedTraffic) {
  const Ids ids = prompt(40, 1);
  const std::vector<Token> first = alone(ids, 512, true);
  alone(prompt(33, 2), 10, false);
  expect_same(first, alone(ids, 512, true), "again");
}

TEST_P(Invariance, InABatchOf16) {
  const Ids ids = prompt(70, 1);
  const std::vector<Token> single = alone(ids, 512, true);
  std::vector<Sequence> sequences;
  std::vector<std::vector<Token>> out(16);
  StepPlan first;
  for (Lane lane = 0; lane < 16; ++lane) {
    const Ids own = lane == 9 ? ids : prompt(5 + 13 * lane, 100 + lane);
    sequences.push_back(driver_->sequence(own, kOutput));
    first.opens.push_back(lane_open(lane, own, own.size(), lane == 9 || lane % 3 == 0));
    Driver::add_row(first, sequences.back(), static_cast<uint32_t>(own.size()), lane, true);
  }
  StepResult result = driver_->step(std::move(first));
  for (Lane lane = 0; lane < 16; ++lane) keep(out[lane], result.rows[lane]);
  for (uint32_t number = 1; number < kOutput; ++number) {
    StepPlan plan;
    for (Lane lane = 0; lane < 16; ++lane) {
      sequences[lane].ids.push_back(kFromLane);
      Driver::add_row(plan, sequences[lane], 1, lane, true, number);
    }
    result = driver_->step(std::move(plan));
    for (Lane lane = 0; lane < 16; ++lane) keep(out[lane], result.rows[lane]);
  }
  expect_same(single, out[9], "in a batch of 16");
}

TEST_P(Invariance, MixedWithAPromptThatIsBeingRead) {
  const Ids ids = prompt(20, 1);
  const std::vector<Token> single = alone(ids, 512, false);
  Sequence s = driver_->sequence(ids, kOutput), other = driver_->sequence(prompt(200, 8), 0);
  const LaneOpen open = lane_open(0, ids, ids.size(), false);
  std::vector<Token> out;
  keep(out, driver_->prefill(s, 512, 0, &open));
  for (uint32_t number = 1; number < kOutput; ++number) {
    StepPlan plan;
    Driver::add_row(plan, other, number % 2 == 0 ? 17 : 3, 1, false);
    s.ids.push_back(kFromLane);
    Driver::add_row(plan, s, 1, 0, true, number);
    keep(out, driver_->step(std::move(plan)).rows[0]);
  }
  expect_same(single, out, "beside a prompt");
}

TEST_P(Invariance, SMP_05_AfterAPrefixHit) {
  const Ids ids = prompt(150, 1);
  const std::vector<Token> miss = alone(ids, 512, true);
  Sequence owner = driver_->sequence(ids, 0);
  driver_->prefill(owner, 40, 0, nullptr);
  const uint32_t block_tokens = driver_->device().info().block_tokens;
  for (const uint32_t shared : {1u, 4u, 8u, 9u}) {  // whole blocks taken over, the rest computed
    Sequence hit = driver_->sequence(ids, kOutput);
    std::copy(owner.blocks.begin(), owner.blocks.begin() + shared, hit.blocks.begin());
    hit.computed = shared * block_tokens;
    const LaneOpen open = lane_open(2, ids, ids.size(), true);
    std::vector<Token> out;
    keep(out, driver_->prefill(hit, 512, 2, &open));
    decode(hit, 2, 1, kOutput, out);
    expect_same(miss, out, "hit of " + std::to_string(shared) + " blocks");
  }
}

TEST_P(Invariance, AfterPreemptionByRecompute) {
  for (const bool sampled : {false, true}) {
    const Ids ids = prompt(61, 1);
    const std::vector<Token> undisturbed = alone(ids, 512, sampled);
    Sequence s = driver_->sequence(ids, kOutput);
    LaneOpen open = lane_open(0, ids, ids.size(), sampled);
    std::vector<Token> out;
    keep(out, driver_->prefill(s, 512, 0, &open));
    decode(s, 0, 1, 5, out);
    // Preempted here; recomputed elsewhere from prompt and output.
    Ids context = ids;
    for (const Token& token : out) context.push_back(token.id);
    Sequence again = driver_->sequence(context, kOutput);
    open = lane_open(11, context, ids.size(), sampled);
    StepPlan plan;
    plan.opens.push_back(open);
    Driver::add_row(plan, again, 30, 11, false);
    driver_->step(std::move(plan));
    StepPlan rest;
    Driver::add_row(rest, again, static_cast<uint32_t>(context.size()) - 30, 11, true, 5);
    keep(out, driver_->step(std::move(rest)).rows[0]);
    decode(again, 11, 6, kOutput, out);
    expect_same(undisturbed, out, "after preemption");
  }
}

// Long enough that a lone sequence's attention is split among threads; one thread never splits.
TEST_P(Invariance, OneThreadOrSeveral) {
  const uint32_t length = GetParam().table == &kernels::best_table() ? 700 : 530;
  const Ids ids = prompt(std::min(length, driver_->device().info().context_length - kOutput), 1);
  const std::vector<Token> two = alone(ids, 512, true);
  open(1);
  expect_same(two, alone(ids, 512, true), "one thread");
  open(5);
  expect_same(two, alone(ids, 100, true), "five threads");
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance, testing::ValuesIn(models()),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace ringmaster::gpu_worker
