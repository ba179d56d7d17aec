// Drives a device step by step, the way the worker's loop does, and waits with a deadline. Sequences get
// blocks one after another from the device's pool; nothing is freed: a test has few.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "shm/doorbell.h"
#include "tests/gpu-worker/device/device_under_test.h"

namespace ringmaster::gpu_worker {

using Ids = std::vector<TokenId>;

struct Sequence {
  Ids ids;  // computed so far, and to be computed
  uint32_t computed = 0;
  std::vector<BlockId> blocks;
};

class Driver {
 public:
  using Make = std::function<Result<std::unique_ptr<Device>>(shm::Doorbell& bell)>;

  // The device that this test binary is about.
  static Result<std::unique_ptr<Driver>> open(const GpuWorkerConfig& config, const std::string& model) {
    return open([&](shm::Doorbell& bell) { return make_device_under_test(config, model, bell); });
  }
  static Result<std::unique_ptr<Driver>> open(const Make& make) {
    Result<shm::Doorbell> bell = shm::Doorbell::create();
    if (!bell) return bell.error();
    auto driver = std::make_unique<Driver>(std::move(*bell));
    Result<std::unique_ptr<Device>> device = make(driver->bell_);
    if (!device) return device.error();
    driver->device_ = std::move(*device);
    return driver;
  }
  explicit Driver(shm::Doorbell bell) : bell_(std::move(bell)) {}

  Device& device() { return *device_; }

  Sequence sequence(Ids ids, uint32_t room) {
    Sequence s;
    const uint32_t block_tokens = device_->info().block_tokens;
    const size_t needed = (ids.size() + room + block_tokens - 1) / block_tokens;
    for (size_t i = 0; i < needed; ++i) s.blocks.push_back(next_block_++);
    EXPECT_LE(next_block_, device_->info().num_blocks);
    s.ids = std::move(ids);
    return s;
  }

  StepResult step(StepPlan plan) {
    plan.step = ++steps_;
    const uint64_t number = plan.step;
    device_->submit(std::move(plan));
    const Nanos deadline = monotonic_now() + 60 * kSecond;
    for (;;) {
      const uint32_t seen = bell_.sequence();
      if (std::optional<StepResult> result = device_->retire(monotonic_now())) {
        EXPECT_EQ(result->step, number);
        EXPECT_FALSE(result->error) << result->error->message;
        return std::move(*result);
      }
      if (monotonic_now() > deadline) {
        ADD_FAILURE() << "step " << number << " did not retire";
        return {};
      }
      bell_.wait(seen, deadline);
    }
  }

  // Adds the next `count` ids of the sequence as a row.
  static void add_row(StepPlan& plan, Sequence& s, uint32_t count, Lane lane, bool samples,
                      uint32_t token_number = 0) {
    StepRow row;
    row.lane = lane;
    row.first_id = static_cast<uint32_t>(plan.ids.size());
    row.num_tokens = count;
    row.first_position = s.computed;
    row.first_block = static_cast<uint32_t>(plan.blocks.size());
    row.num_blocks = static_cast<uint32_t>(s.blocks.size());
    row.samples = samples;
    row.token_number = token_number;
    plan.ids.insert(plan.ids.end(), s.ids.begin() + s.computed, s.ids.begin() + s.computed + count);
    plan.blocks.insert(plan.blocks.end(), s.blocks.begin(), s.blocks.end());
    plan.rows.push_back(row);
    s.computed += count;
  }

  // The prompt in chunks; the last one samples (token number 0).
  SampledRow prefill(Sequence& s, uint32_t chunk, Lane lane, const LaneOpen* open) {
    SampledRow sampled;
    bool first = true;
    while (s.computed < s.ids.size()) {
      StepPlan plan;
      if (first && open != nullptr) plan.opens.push_back(*open);
      first = false;
      const auto count = std::min(chunk, static_cast<uint32_t>(s.ids.size()) - s.computed);
      const bool last = s.computed + count == s.ids.size();
      add_row(plan, s, count, lane, last);
      StepResult result = step(std::move(plan));
      if (last && result.rows.size() == 1) sampled = result.rows[0];
    }
    return sampled;
  }

 private:
  shm::Doorbell bell_;
  std::unique_ptr<Device> device_;
  uint64_t steps_ = 0;
  BlockId next_block_ = 0;
};

inline std::string data_path(const std::string& name) {
  return std::string(RINGMASTER_SOURCE_DIR) + "/tests/data/" + name;
}

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

}  // namespace ringmaster::gpu_worker
