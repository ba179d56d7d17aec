// The watch on blocks, against plans that no correct scheduler makes.
#include "tests/simulate/watched_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ringmaster::simulate {
namespace {

using gpu_worker::StepPlan;

class IdleDevice final : public gpu_worker::Device {
 public:
  IdleDevice() {
    info_.block_tokens = 4;
    info_.num_lanes = 2;
  }
  const gpu_worker::DeviceInfo& info() const override { return info_; }
  void submit(StepPlan plan) override { steps_.push_back(plan.step); }
  std::optional<gpu_worker::StepResult> retire(Nanos) override {
    if (steps_.empty()) return std::nullopt;
    gpu_worker::StepResult result;
    result.step = steps_.front();
    steps_.pop_front();
    return result;
  }

 private:
  gpu_worker::DeviceInfo info_;
  std::deque<uint64_t> steps_;
};

class WatchedDeviceTest : public testing::Test {
 protected:
  // One row: `lane` computes the position behind those that `blocks` but the last hold.
  static StepPlan step(uint64_t number, gpu_worker::Lane lane, std::vector<gpu_worker::BlockId> blocks,
                       bool opens) {
    StepPlan plan;
    plan.step = number;
    plan.ids = {7};
    gpu_worker::StepRow row;
    row.lane = lane;
    row.num_tokens = 1;
    row.first_position = 4 * static_cast<uint32_t>(blocks.size() - 1);
    row.num_blocks = static_cast<uint32_t>(blocks.size());
    plan.blocks = std::move(blocks);
    plan.rows = {row};
    if (opens) plan.opens.emplace_back().lane = lane;
    return plan;
  }

  const Plan plan = make_plan(1);
  World world{plan, nullptr};
  WatchedDevice device{world, std::make_unique<IdleDevice>()};
};

TEST_F(WatchedDeviceTest, OneSequenceWritesItsBlockStepAfterStep) {
  device.submit(step(1, 0, {5}, true));
  device.submit(step(2, 0, {5}, false));
  EXPECT_EQ(world.violation(), "");
  EXPECT_EQ(device.blocks_in_flight(), 1u);
}

TEST_F(WatchedDeviceTest, FullBlocksMayBeRead) {
  device.submit(step(1, 0, {5, 6}, true));
  device.submit(step(2, 1, {5, 7}, true));
  EXPECT_EQ(world.violation(), "");
}

TEST_F(WatchedDeviceTest, ABlockIsNotWrittenByAnotherBeforeItsStepHasRetired) {
  device.submit(step(1, 0, {5}, true));
  device.submit(step(2, 1, {5}, true));
  EXPECT_THAT(world.violation(), testing::HasSubstr("step 2 writes block 5"));
}

TEST_F(WatchedDeviceTest, AfterwardsItIs) {
  device.submit(step(1, 0, {5}, true));
  device.retire(world.now());
  device.submit(step(2, 1, {5}, true));
  EXPECT_EQ(world.violation(), "");
}

TEST_F(WatchedDeviceTest, NeitherByTheSameSequenceStartedAnew) {
  device.submit(step(1, 0, {5, 6}, true));
  device.submit(step(2, 0, {5}, true));
  EXPECT_NE(world.violation(), "");
}

}  // namespace
}  // namespace ringmaster::simulate
