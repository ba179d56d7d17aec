// The memory budget by worked example; that a cuda device takes just that is in device_cuda_faults.
#include "gpu-worker/device/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gpu-worker/device/device.h"
#include "tests/gpu-worker/model/gguf_builder.h"

namespace ringmaster::gpu_worker {
namespace {

using ::testing::HasSubstr;

Budget example() {
  return {.device = "cuda",
          .model = "m",
          .weights = 4 << 20,
          .step_buffers = 1 << 20,
          .kv = 3 << 20,
          .reserve = 2 << 20,
          .free = 10 << 20,
          .total = 12 << 20,
          .pinned = 1,
          .block_bytes = 1 << 16,
          .block_tokens = 16,
          .context_length = 100,
          .lanes = 6};
}

TEST(Plan, ABudgetFitsUpToTheLastByte) {
  Budget b = example();
  EXPECT_EQ(b.needed(), 10u << 20);
  EXPECT_TRUE(check_fits(b).ok());
  EXPECT_EQ(b.blocks_of_a_sequence(), 7u);
  EXPECT_EQ(b.sequences_that_fit(), 6u);  // 3 MiB are 48 blocks
  b.free -= 1;
  const Status status = check_fits(b);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kResourceExhausted);
  EXPECT_EQ(
      status.error().message,
      "the cuda device needs 10 MiB (weights 4 MiB, kv_memory 3 MiB, step buffers 1 MiB, reserve 2 MiB); "
      "free: 10 MiB of 12 MiB. Lower gpu-worker.kv_memory or max_running, choose a smaller model, or end "
      "the process that holds the rest");
  b.free = 7 << 20;
  EXPECT_EQ(b.sequences_that_fit(), 0u);
  b.free = 0;
  EXPECT_EQ(b.sequences_that_fit(), 0u);
}

TEST(Plan, ItsTextAndItsJsonSayTheSame) {
  const GpuWorkerConfig config{.slots = 2};
  const auto json = nlohmann::json::parse(as_json(example(), config));
  EXPECT_EQ(json["needed_bytes"], 10 << 20);
  EXPECT_EQ(json["kv_bytes_per_token"], 4096);
  EXPECT_EQ(json["blocks"], 48);
  EXPECT_EQ(json["sequences_that_fit"], 6);
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["host_rings_bytes"], 2 * ((256 << 10) + (8 << 20) + (1 << 20)));
  EXPECT_EQ(as_text(example(), config),
            "m on cuda: 6 sequences of 100 tokens\n\n"
            "weights                  4 MiB\n"
            "step buffers             1 MiB  activations, inputs of steps, sampling\n"
            "keys and values          3 MiB  4096 bytes a token, 48 blocks of 16 tokens\n"
            "reserve                  2 MiB  CUDA's context, graphs\n"
            "needed                  10 MiB\n"
            "memory                  10 MiB\n"
            "sequences that fit           6  of 100 tokens, all blocks at once\n\n"
            "host: rings             19 MiB  2 slots\n"
            "host: pinned             1 MiB\n");
  Budget tight = example();
  tight.free = 9 << 20;
  EXPECT_THAT(as_text(tight, config), HasSubstr("memory                   9 MiB  does not fit\n"));
}

// The device, given the kv_memory of the plan, has just what the plan says.
TEST(Plan, TheCpuDeviceTakesWhatItsPlanSays) {
  GpuWorkerConfig config;
  config.device = "cpu";
  config.threads = 1;
  config.context_length = 100;
  config.max_running = 3;
  const std::string model = GgufBuilder::llama().write();
  const auto budget = plan_device(config, model);
  ASSERT_TRUE(budget.ok()) << budget.error().message;
  // Keys and values of one layer with one head of 32, two bytes each.
  EXPECT_EQ(budget->block_bytes, 16u * 2 * 32 * 2);
  EXPECT_EQ(budget->kv, 3u * 7 * budget->block_bytes);
  EXPECT_EQ(budget->context_length, 100u);
  EXPECT_EQ(budget->lanes, 3u);
  config.kv_memory = budget->kv;
  auto bell = shm::Doorbell::create();
  ASSERT_TRUE(bell.ok());
  const auto device = make_device(config, model, *bell);
  ASSERT_TRUE(device.ok()) << device.error().message;
  EXPECT_EQ((*device)->info().weights_bytes, budget->weights);
  EXPECT_EQ((*device)->info().kv_bytes, budget->kv);
  EXPECT_EQ((*device)->info().context_length, 100u);
}

TEST(Plan, RefusesWhatTheDeviceWouldRefuse) {
  GpuWorkerConfig config;
  config.device = "cpu";
  const std::string model = GgufBuilder::llama().write();
  config.context_length = 129;
  EXPECT_EQ(plan_device(config, model).error().message,
            "gpu-worker.context_length is 129; allowed with this model: at most 128, or 0 for that");
  config.context_length = 0;
  config.weights = "random";
  EXPECT_EQ(plan_device(config, model).error().code, Code::kUnsupported);
  config.device = "fake";
  EXPECT_EQ(plan_device(config, model).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace ringmaster::gpu_worker
