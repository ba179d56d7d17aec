// A tiny model of tests/data/gguf laid open: its parts put together by hand, so that a test sees the logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <optional>
#include <vector>

#include "gpu-worker/device/cpu/decoder.h"
#include "gpu-worker/kernels/dispatch.h"
#include "tests/gpu-worker/device/driver.h"

namespace ringmaster::gpu_worker {

class TinyModel {
 public:
  static constexpr uint32_t kBlocks = 32, kBlockTokens = 16, kLanes = 24;

  TinyModel(const std::string& folder, const kernels::Table& table, unsigned threads = 2)
      : folder_(data_path("gguf/" + folder)), team_(threads) {
    Result<Gguf> file = Gguf::open(folder_ + "/model.gguf");
    EXPECT_TRUE(file.ok());
    Result<ModelDescription> description = describe(*file);
    EXPECT_TRUE(description.ok());
    description_ = *description;
    Result<WeightPlan> plan = WeightPlan::make(*file, description_);
    EXPECT_TRUE(plan.ok());
    buffers_.emplace(description_, table, threads);
    Result<Region> memory = Region::create(plan->bytes() + buffers_->bytes(), "test");
    EXPECT_TRUE(memory.ok());
    memory_ = std::move(*memory);
    weights_ = plan->load(memory_.data(), threads).weights;
    buffers_->place(memory_.data() + plan->bytes());
    kv_ = {.layers = description_.layers,
           .kv_heads = description_.kv_heads,
           .head_dim = description_.head_dim,
           .block_tokens = kBlockTokens};
    Result<Region> blocks = Region::create(kBlocks * kv_.block_bytes(), "test");
    EXPECT_TRUE(blocks.ok());
    kv_region_ = std::move(*blocks);
    kv_.data = kv_region_.data();
    decoder_.emplace(description_, weights_, table, kv_, *buffers_, team_, kLanes);
    expected_ = read_json(folder_ + "/expected.json");
    std::ifstream floats(folder_ + "/expected.f32", std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(floats)), {});
    values_.resize(bytes.size() / 4);
    std::memcpy(values_.data(), bytes.data(), values_.size() * 4);
  }

  const ModelDescription& description() const { return description_; }
  const nlohmann::json& expected() const { return expected_; }
  const float* tensor(const std::string& name) const {
    return &values_[expected_["tensors"][name]["offset"].get<size_t>()];
  }

  // Logits after each of the last `last` ids. [last][vocabulary]
  std::vector<std::vector<float>> logits(const Ids& ids, uint32_t last) {
    std::vector<std::vector<float>> out;
    Sequence s;
    s.ids = ids;
    for (BlockId b = 0; b <= ids.size() / kBlockTokens; ++b) s.blocks.push_back(kBlocks - 1 - b);
    while (s.computed < ids.size()) {
      StepPlan plan;
      const auto left = static_cast<uint32_t>(ids.size()) - s.computed;
      if (left > last) Driver::add_row(plan, s, left - last, 0, false);
      while (s.computed < ids.size() && plan.rows.size() < kLanes)
        Driver::add_row(plan, s, 1, static_cast<Lane>(plan.rows.size()), true);
      const std::vector<SampledRow> rows = decoder_->run(plan);
      for (size_t i = 0; i < rows.size(); ++i) {
        const float* row = buffers_->logits + i * buffers_->logit_width;
        out.emplace_back(row, row + description_.vocab_size);
      }
    }
    return out;
  }

 private:
  std::string folder_;
  Team team_;
  ModelDescription description_;
  std::optional<StepBuffers> buffers_;
  Region memory_, kv_region_;
  Weights weights_;
  KvMemory kv_;
  std::optional<Decoder> decoder_;
  nlohmann::json expected_;
  std::vector<float> values_;
};

}  // namespace ringmaster::gpu_worker
