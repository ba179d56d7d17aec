// The fake device, with an eye on what the scheduler does with blocks: a block that a step in flight touches
// is not written by anybody else, and counts as used, until that step has retired.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "gpu-worker/device/device.h"
#include "tests/simulate/world.h"

namespace ringmaster::simulate {

class WatchedDevice final : public gpu_worker::Device {
 public:
  // `act`: what every call does first.
  WatchedDevice(
      World& world, std::unique_ptr<gpu_worker::Device> device, std::function<void()> act = [] {});

  const gpu_worker::DeviceInfo& info() const override { return device_->info(); }
  void submit(gpu_worker::StepPlan plan) override;
  std::optional<gpu_worker::StepResult> retire(Nanos now) override;
  Nanos next_event() const override { return device_->next_event(); }

  uint32_t blocks_in_flight() const;  // different ones

 private:
  struct Touch {
    gpu_worker::BlockId block = 0;
    uint64_t opened = 0;  // which opening of a lane: one run of one sequence
    bool writes = false;
  };
  std::vector<Touch> touches(const gpu_worker::StepPlan& plan) const;
  void compare(uint64_t step, const Touch& mine, const std::vector<Touch>& others);

  World& world_;
  std::unique_ptr<gpu_worker::Device> device_;
  const std::function<void()> act_;
  std::vector<uint64_t> opened_;  // [lanes]
  uint64_t openings_ = 0;
  std::deque<std::vector<Touch>> flights_;
};

}  // namespace ringmaster::simulate
