// Which device a name in cluster.yaml stands for.
#include <gtest/gtest.h>

#include "gpu-worker/device/device.h"
#include "tests/gpu-worker/model/gguf_builder.h"

namespace ringmaster::gpu_worker {
namespace {

class MakeDeviceTest : public ::testing::Test {
 protected:
  MakeDeviceTest() {
    config_.kv_memory = 16 << 20;
    config_.threads = 1;
  }

  Result<std::unique_ptr<Device>> make(const std::string& device, const std::string& model_path) {
    config_.device = device;
    return make_device(config_, model_path, *bell_);
  }

  Result<shm::Doorbell> bell_ = shm::Doorbell::create();
  GpuWorkerConfig config_;
};

TEST_F(MakeDeviceTest, CpuRunsTheFile) {
  const auto device = make("cpu", GgufBuilder::llama().write());
  ASSERT_TRUE(device.ok()) << device.error().message;
  EXPECT_EQ((*device)->info().kind, "cpu");
  EXPECT_EQ((*device)->info().model, "tiny");
}

TEST_F(MakeDeviceTest, FakeNeedsNoFile) {
  config_.fake.vocab_size = 100;
  config_.fake.context_length = 64;
  const auto device = make("fake", "");
  ASSERT_TRUE(device.ok()) << device.error().message;
  EXPECT_EQ((*device)->info().kind, "fake");
  EXPECT_EQ((*device)->info().vocab_size, 100u);
}

TEST_F(MakeDeviceTest, AnotherNameIsRefused) {
  const auto device = make("tpu", "");
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().code, Code::kUnsupported);
  EXPECT_EQ(device.error().message, "gpu-worker.device is 'tpu'; allowed: cpu, cuda, fake");
}

}  // namespace
}  // namespace ringmaster::gpu_worker
