#include "tests/simulate/watched_device.h"

#include <set>

namespace ringmaster::simulate {

using gpu_worker::StepPlan;

WatchedDevice::WatchedDevice(World& world, std::unique_ptr<gpu_worker::Device> device,
                             std::function<void()> act)
    : world_(world), device_(std::move(device)), act_(std::move(act)), opened_(device_->info().num_lanes) {}

std::vector<WatchedDevice::Touch> WatchedDevice::touches(const StepPlan& plan) const {
  std::vector<Touch> all;
  const uint32_t block_tokens = info().block_tokens;
  for (const gpu_worker::StepRow& row : plan.rows) {
    const uint32_t first_written = row.first_position / block_tokens;
    for (uint32_t i = 0; i < row.num_blocks; ++i)
      all.push_back({plan.blocks[row.first_block + i], opened_[row.lane], i >= first_written});
  }
  return all;
}

void WatchedDevice::compare(uint64_t step, const Touch& mine, const std::vector<Touch>& others) {
  for (const Touch& other : others) {
    if (other.block != mine.block || other.opened == mine.opened || !(other.writes || mine.writes)) continue;
    world_.fail(fmt::format("step {} {} block {} that another sequence {} in a step that has not retired",
                            step, mine.writes ? "writes" : "reads", mine.block,
                            other.writes ? "writes" : "reads"));
  }
}

void WatchedDevice::submit(StepPlan plan) {
  act_();
  for (const gpu_worker::LaneOpen& open : plan.opens) opened_[open.lane] = ++openings_;
  std::vector<Touch> mine = touches(plan);
  for (const Touch& touch : mine) {
    compare(plan.step, touch, mine);
    for (const auto& flight : flights_) compare(plan.step, touch, flight);
  }
  flights_.push_back(std::move(mine));
  if (world_.plan.sabotage == Sabotage::kWrongId && plan.step == 5 && plan.ids[0] != gpu_worker::kFromLane)
    plan.ids[0] ^= 1;
  device_->submit(std::move(plan));
}

std::optional<gpu_worker::StepResult> WatchedDevice::retire(Nanos now) {
  auto result = device_->retire(now);
  if (result) {
    flights_.pop_front();
    act_();
  }
  return result;
}

uint32_t WatchedDevice::blocks_in_flight() const {
  std::set<gpu_worker::BlockId> blocks;
  for (const auto& flight : flights_)
    for (const Touch& touch : flight) blocks.insert(touch.block);
  return static_cast<uint32_t>(blocks.size());
}

}  // namespace ringmaster::simulate
