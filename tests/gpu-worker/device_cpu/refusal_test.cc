// What the device refuses at start, with the numbers, and what it answers to a step that cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "gpu-worker/device/cpu/cpu_device.h"
#include "gpu-worker/kernels/dispatch.h"
#include "tests/gpu-worker/device/driver.h"
#include "tests/gpu-worker/model/gguf_builder.h"

namespace ringmaster::gpu_worker {
namespace {

using testing::HasSubstr;

void expect_refused(const GpuWorkerConfig& config, const std::string& path, Code code,
                    const std::string& part) {
  const Result<std::unique_ptr<Driver>> driver = Driver::open(config, path);
  ASSERT_FALSE(driver.ok()) << "accepted although " << part;
  EXPECT_EQ(driver.error().code, code) << driver.error().message;
  EXPECT_THAT(driver.error().message, HasSubstr(part));
}

GpuWorkerConfig small_config() {
  GpuWorkerConfig config;
  config.kv_memory = 1 << 20;
  config.threads = 2;
  return config;
}

TEST(Refusals, FilesThatAreMissingOrTruncated) {
  expect_refused(small_config(), "/nonexistent/model.gguf", Code::kNotFound, "/nonexistent/model.gguf");
  const std::string path = GgufBuilder::llama().write("truncated.gguf");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4000);
  expect_refused(small_config(), path, Code::kMalformed, "truncated.gguf");
}

TEST(Refusals, MemoryThatIsNotThere) {
  GpuWorkerConfig config = small_config();
  config.kv_memory = uint64_t{1} << 40;
  expect_refused(config, GgufBuilder::llama().write(), Code::kResourceExhausted, "kv_memory 1048576 MiB");
  config.kv_memory = 100;
  expect_refused(config, GgufBuilder::llama().write(), Code::kResourceExhausted, "kv_memory is 100 bytes");
}

TEST(Refusals, ConfigurationTheDeviceCannotServe) {
  GpuWorkerConfig config = small_config();
  config.block_tokens = 12;
  expect_refused(config, GgufBuilder::llama().write(), Code::kInvalidArgument, "block_tokens is 12");
}

TEST(Refusals, ModelsTheDeviceDoesNotExecute) {
  GgufBuilder b = GgufBuilder::llama();
  b.integers["llama.attention.sliding_window"] = 32;
  expect_refused(small_config(), b.write(), Code::kUnsupported, "sliding-window attention (window 32)");
  b = GgufBuilder::llama();
  b.integers["llama.attention.key_length"] = 40;
  b.integers["llama.attention.value_length"] = 40;
  expect_refused(small_config(), b.write(), Code::kUnsupported, "heads of 40 values");
}

TEST(Device, RefusesAContextLongerThanTheModels) {
  GpuWorkerConfig config = small_config();
  config.context_length = 129;
  expect_refused(config, GgufBuilder::llama().write(), Code::kInvalidArgument,
                 "gpu-worker.context_length is 129; allowed with this model: at most 128");
}

TEST(Device, InfoSaysOneContextLimit) {
  GpuWorkerConfig config = small_config();
  const std::string path = GgufBuilder::llama().write();
  Result<std::unique_ptr<Driver>> driver = Driver::open(config, path);
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  const DeviceInfo& info = (*driver)->device().info();
  EXPECT_EQ(info.kind, "cpu");
  EXPECT_EQ(info.variant, kernels::best_table().name);
  EXPECT_EQ(info.context_length, 128u);
  EXPECT_EQ(info.num_blocks, (1u << 20) / (2 * 32 * 16 * 2));
  EXPECT_EQ(info.num_lanes, config.max_running);
  EXPECT_NE(info.weights_hash, 0u);

  config.context_length = 100;
  EXPECT_EQ((*Driver::open(config, path))->device().info().context_length, 100u);
  config.kv_memory = 3 * 2 * 32 * 16 * 2;  // PRM-05: three blocks of 16
  EXPECT_EQ((*Driver::open(config, path))->device().info().context_length, 48u);
}

TEST(Device, ImpossibleStepsAreAnsweredWithAnError) {
  Result<shm::Doorbell> bell = shm::Doorbell::create();
  ASSERT_TRUE(bell.ok());
  Result<std::unique_ptr<Device>> device =
      make_cpu_device(small_config(), GgufBuilder::llama().write(), *bell);
  ASSERT_TRUE(device.ok());
  StepPlan good;
  good.rows = {{.lane = 0, .num_tokens = 2, .num_blocks = 1, .samples = true}};
  good.ids = {1, 2};
  good.blocks = {5};
  const auto error = [&](const StepPlan& plan) {
    (*device)->submit(plan);
    const Nanos deadline = monotonic_now() + 10 * kSecond;
    for (;;) {
      const uint32_t seen = bell->sequence();
      if (std::optional<StepResult> result = (*device)->retire(0))
        return result->error ? result->error->message : "";
      if (!bell->wait(seen, deadline)) return std::string("no answer");
    }
  };
  EXPECT_EQ(error(good), "");
  StepPlan plan = good;
  plan.ids[1] = 40;
  EXPECT_THAT(error(plan), HasSubstr("id 40"));
  plan = good;
  plan.blocks[0] = (*device)->info().num_blocks;
  EXPECT_THAT(error(plan), HasSubstr("block 512"));
  plan = good;
  plan.rows[0].first_position = 15;  // the second token would lie in a block that is not given
  EXPECT_THAT(error(plan), HasSubstr("lane 0"));
  plan = good;
  plan.rows[0].num_tokens = 3;
  EXPECT_THAT(error(plan), HasSubstr("lane 0"));
  plan = good;
  plan.opens.push_back({.lane = 64});
  EXPECT_THAT(error(plan), HasSubstr("lane 64"));
  EXPECT_EQ(error(good), "");
}

// Two steps in flight, the second fed with what the first sampled.
TEST(Device, StepsRetireInOrderAndLanesCarryTheId) {
  Result<shm::Doorbell> bell = shm::Doorbell::create();
  ASSERT_TRUE(bell.ok());
  Result<std::unique_ptr<Device>> device =
      make_cpu_device(small_config(), GgufBuilder::llama().write(), *bell);
  ASSERT_TRUE(device.ok());
  const auto collect = [&](uint64_t expected_step) {
    const Nanos deadline = monotonic_now() + 10 * kSecond;
    for (;;) {
      const uint32_t seen = bell->sequence();
      if (std::optional<StepResult> result = (*device)->retire(0)) {
        EXPECT_EQ(result->step, expected_step);
        return result->rows.at(0).id;
      }
      if (!bell->wait(seen, deadline)) ADD_FAILURE() << "no answer";
    }
  };
  const auto plan = [](uint64_t step, TokenId id, uint32_t position) {
    StepPlan p;
    p.step = step;
    p.rows = {{.lane = 7, .num_tokens = 1, .first_position = position, .num_blocks = 1, .samples = true}};
    p.ids = {id};
    p.blocks = {3};
    return p;
  };
  (*device)->submit(plan(1, 5, 0));
  (*device)->submit(plan(2, kFromLane, 1));
  const TokenId first = collect(1), second = collect(2);
  (*device)->submit(plan(3, first, 1));
  EXPECT_EQ(collect(3), second);
}

TEST(Device, IsTakenDownWithStepsInFlight) {
  Result<shm::Doorbell> bell = shm::Doorbell::create();
  ASSERT_TRUE(bell.ok());
  Result<std::unique_ptr<Device>> device =
      make_cpu_device(small_config(), GgufBuilder::llama().write(), *bell);
  ASSERT_TRUE(device.ok());
  StepPlan plan;
  plan.rows = {{.lane = 0, .num_tokens = 100, .num_blocks = 7, .samples = true}};
  plan.ids.assign(100, 3);
  plan.blocks = {0, 1, 2, 3, 4, 5, 6};
  (*device)->submit(plan);
  (*device)->submit(plan);
  device->reset();
}

}  // namespace
}  // namespace ringmaster::gpu_worker
