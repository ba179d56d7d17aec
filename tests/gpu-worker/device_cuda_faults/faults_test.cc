// What the cuda device does when CUDA fails, hangs or is not there. Needs no GPU (fake_runtime.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "gpu-worker/device/cuda/cuda_device.h"
#include "tests/gpu-worker/device_cuda_faults/fake_runtime.h"
#include "tests/gpu-worker/model/gguf_builder.h"

namespace ringmaster::gpu_worker {
namespace {

using ::testing::HasSubstr;

// A llama with the smallest head that the device has kernels for.
std::string tiny_model() {
  GgufBuilder b = GgufBuilder::llama();
  b.integers["llama.attention.head_count"] = 1;
  for (const char* name : {"blk.0.attn_k.weight", "blk.0.attn_v.weight"}) b.tensors[name].shape = {64, 64};
  return b.write("faults.gguf");
}

GpuWorkerConfig tiny_config() {
  GpuWorkerConfig config;
  config.device = "cuda";
  config.threads = 1;
  config.kv_memory = 1 << 20;
  config.max_running = 2;
  config.step_tokens = 64;
  return config;
}

// 40 ids of prompt, so that the products of many rows are in it, and the token after it.
StepPlan prefill() {
  StepPlan plan;
  plan.step = 1;
  LaneOpen open;
  open.lane = 0;
  open.context.assign(40, 7);
  open.prompt_count = 40;
  plan.opens.push_back(open);
  plan.ids.assign(40, 7);
  plan.blocks = {0, 1, 2};
  plan.rows.push_back({.lane = 0, .num_tokens = 40, .num_blocks = 3, .samples = true});
  return plan;
}
StepPlan decode() {
  StepPlan plan;
  plan.step = 2;
  plan.ids = {kFromLane};
  plan.blocks = {0, 1, 2};
  plan.rows.push_back({.lane = 0,
                       .num_tokens = 1,
                       .first_position = 40,
                       .num_blocks = 3,
                       .samples = true,
                       .token_number = 1});
  return plan;
}

class CudaFaults : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Device>> make() { return make_cuda_device(config_, model_, *bell_); }

  static std::optional<StepResult> wait(Device& device, shm::Doorbell& bell) {
    const Nanos deadline = monotonic_now() + 20 * kSecond;
    while (monotonic_now() < deadline) {
      const uint32_t seen = bell.sequence();
      if (auto result = device.retire(monotonic_now())) return result;
      bell.wait(seen, deadline);
    }
    return std::nullopt;
  }

  // Start, two steps in flight together, stop. What was told: the message of the refusal or of a step's
  // error.
  struct Told {
    std::string what;
    Code code = Code::kOk;
    bool at_start = false;
  };
  Told live_through() {
    auto device = make();
    if (!device) return {device.error().message, device.error().code, true};
    (*device)->submit(prefill());
    (*device)->submit(decode());
    Told told;
    for (uint64_t step = 1; step <= 2; ++step) {
      const auto result = wait(**device, *bell_);
      EXPECT_TRUE(result) << "step " << step << " did not retire";
      if (!result) break;
      EXPECT_EQ(result->step, step);
      EXPECT_TRUE(result->error || result->rows.size() == 1);
      EXPECT_TRUE(result->error || told.what.empty()) << "a lost device stays lost";
      if (result->error && told.what.empty()) told = {result->error->message, result->error->code, false};
    }
    return told;
  }

  // Every n: each failure is told, typed, and nothing stays taken.
  void sweep(bool sticky) {
    long n = 0, starts = 0, steps = 0;
    for (;;) {
      fake_cuda::set({.fail_at = ++n, .sticky = sticky});
      const Told told = live_through();
      const std::string call = fake_cuda::failed_call();
      ASSERT_EQ(fake_cuda::live(), 0) << "call " << n << ", " << call << ": " << told.what;
      if (call.empty()) break;
      SCOPED_TRACE("call " + std::to_string(n) + ", " + call);
      if (told.what.empty()) {
        // The last of all is the wait for the stream in the destructor.
        EXPECT_EQ(call, "cudaStreamSynchronize");
        continue;
      }
      ++(told.at_start ? starts : steps);
      if (call == "cudaMalloc" || call == "cudaHostAlloc") {
        EXPECT_EQ(told.code, Code::kResourceExhausted) << told.what;
        EXPECT_THAT(told.what, HasSubstr("out of memory"));
      } else if (call != "cudaGetDeviceCount") {
        EXPECT_EQ(told.code, Code::kWorkerLost) << told.what;
        EXPECT_THAT(told.what, HasSubstr("a failure of the fake runtime"));
      }
      if (HasFailure()) return;
    }
    EXPECT_GT(starts, 50);
    EXPECT_GT(steps, 20);
  }

  const std::string model_ = tiny_model();
  GpuWorkerConfig config_ = tiny_config();
  Result<shm::Doorbell> bell_ = shm::Doorbell::create();
};

TEST_F(CudaFaults, NothingFails) {
  fake_cuda::set({});
  EXPECT_EQ(live_through().what, "");
  EXPECT_EQ(fake_cuda::live(), 0);
}

TEST_F(CudaFaults, EveryCallThatFailsOnceIsToldAndLeavesNothing) {
  sweep(false);
}

TEST_F(CudaFaults, EveryCallAfterWhichAllFailIsToldAndLeavesNothing) {
  sweep(true);
}

TEST_F(CudaFaults, StreamsHaveTheirPriority) {
  for (const auto& [name, priority] : {std::pair{"high", -5}, {"normal", 0}, {"low", 0}}) {
    fake_cuda::set({});
    config_.stream_priority = name;
    ASSERT_TRUE(make().ok());
    EXPECT_EQ(fake_cuda::last_priority(), priority) << name;
  }
}

TEST_F(CudaFaults, WhatIsNotThereIsRefusedBeforeMemoryIsTaken) {
  struct Case {
    fake_cuda::Setting setting;
    Code code;
    std::string what;
  };
  for (const Case& c :
       {Case{{.devices = 0}, Code::kUnavailable, "no GPU: the driver lists none. Check nvidia-smi"},
        Case{{.device_count_error = cudaErrorInsufficientDriver},
             Code::kUnavailable,
             "the NVIDIA driver serves CUDA 11.4; this build needs 12.8. Update the driver"},
        Case{{.major = 8, .minor = 6},
             Code::kUnsupported,
             "Fake GPU has compute capability 8.6; this build has kernels for 9.0"},
        // Another process holds all but 900 MiB.
        Case{{.free = size_t{900} << 20, .total = size_t{141} << 30},
             Code::kResourceExhausted,
             "free: 900 MiB of 144384 MiB"}}) {
    fake_cuda::set(c.setting);
    const auto device = make();
    ASSERT_FALSE(device.ok()) << c.what;
    EXPECT_EQ(device.error().code, c.code);
    EXPECT_THAT(device.error().message, HasSubstr(c.what));
    EXPECT_EQ(fake_cuda::allocations(), 0);
    EXPECT_EQ(fake_cuda::live(), 0);
  }
}

// Phi-3-mini in 16 bits: 32 layers of 113,252,352 weights, embedding and head of 98,500,608 each, a norm.
TEST_F(CudaFaults, APlanOfPhi3MiniIsWhatItsSizesSay) {
  config_.weights = "random";
  config_.context_length = 4096;
  config_.max_running = 64;
  const auto budget =
      plan_cuda_device(config_, RINGMASTER_SOURCE_DIR "/gpu-worker/model/shapes/phi-3-mini.json");
  ASSERT_TRUE(budget.ok()) << budget.error().message;
  EXPECT_GE(budget->weights, 7'642'159'104u);
  EXPECT_LT(budget->weights, 7'642'159'104u + 4096);
  EXPECT_EQ(budget->block_bytes / budget->block_tokens, 393'216u);
  EXPECT_EQ(budget->kv, (64u * 4096 + 16) * 393'216ull);  // and the scratch block
  EXPECT_EQ(budget->free, 139ull << 30);
  EXPECT_TRUE(check_fits(*budget).ok());
  EXPECT_GE(budget->sequences_that_fit(), 64u);
}

// The plan is the start's own budget: it takes just that, and needs just that to be free.
TEST_F(CudaFaults, TheDeviceTakesWhatItsPlanSays) {
  config_.context_length = 100;
  const auto budget = plan_cuda_device(config_, model_);
  ASSERT_TRUE(budget.ok()) << budget.error().message;
  config_.kv_memory = budget->kv - budget->block_bytes;  // the scratch block comes on top
  fake_cuda::set({.free = budget->needed()});
  {
    const auto device = make();
    ASSERT_TRUE(device.ok()) << device.error().message;
    EXPECT_EQ((*device)->info().weights_bytes, budget->weights);
    EXPECT_EQ((*device)->info().kv_bytes, budget->kv);
    EXPECT_EQ((*device)->info().context_length, 100u);
    const size_t counted = budget->needed() - budget->reserve;
    EXPECT_GE(fake_cuda::device_bytes(), counted);
    EXPECT_LT(fake_cuda::device_bytes(), counted + budget->reserve / 4) << "the products' workspace";
  }
  fake_cuda::set({.free = budget->needed() - 1});
  EXPECT_EQ(make().error().code, Code::kResourceExhausted);
  EXPECT_EQ(fake_cuda::allocations(), 0);
}

// The loop thread could be inside the driver, so the device ends the process itself.
TEST_F(CudaFaults, AStepThatHangsEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  config_.step_timeout = 200 * kMillisecond;
  const auto hang = [&](bool destroy) {
    fake_cuda::set({});
    auto device = make();
    if (!device.ok()) _exit(90);
    fake_cuda::hang();
    (*device)->submit(prefill());
    if (destroy) device->reset();
    sleep(20);
    _exit(91);
  };
  for (const bool destroy : {false, true})
    EXPECT_EXIT(hang(destroy), testing::ExitedWithCode(kExitDeviceHung),
                "ending: step 1 did not end within 200 ms");
}

}  // namespace
}  // namespace ringmaster::gpu_worker
