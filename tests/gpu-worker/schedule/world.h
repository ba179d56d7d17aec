// A scheduler, its cache and a mock device with a clock of its own, for tests. The device computes nothing
// but keeps what a real one would keep: what is in each position of each block, and the context of each lane.
// It fails the test when a row sees anything but its own sequence's tokens, or when a block or lane changes
// hands while a step in flight uses it. Token k of a sequence is a hash of its whole context, so one wrong id
// changes everything after it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu-worker/kv/kv_cache.h"
#include "gpu-worker/schedule/scheduler.h"

namespace ringmaster::gpu_worker {

using Ids = std::vector<TokenId>;
using Blocks = std::vector<BlockId>;

inline constexpr uint32_t kVocab = 1000;

inline TokenId token_after(const Ids& context) {
  uint64_t h = 0xcbf29ce484222325;
  for (TokenId id : context) h = (h ^ id) * 0x100000001b3;
  return static_cast<TokenId>((h >> 20) % kVocab);
}

// What a request must answer, whatever happens around it.
inline Ids expected_outputs(Ids context, uint32_t count) {
  Ids out;
  for (uint32_t i = 0; i < count; ++i) {
    out.push_back(token_after(context));
    context.push_back(out.back());
  }
  return out;
}

inline Ids counting(uint32_t from, uint32_t count) {
  Ids ids(count);
  for (uint32_t i = 0; i < count; ++i) ids[i] = (from + i) % kVocab;
  return ids;
}

class MockDevice {
 public:
  MockDevice(uint32_t num_blocks, uint32_t block_tokens, uint32_t num_lanes)
      : block_tokens_(block_tokens), cells_(size_t{num_blocks} * block_tokens, kNothing), lanes_(num_lanes) {}

  std::set<Epoch> failing;  // lanes opened under these epochs give logits that are not finite

  void submit(StepPlan plan) {
    ASSERT_LT(queue_.size(), 2u);
    for (const LaneOpen& open : plan.opens) {
      for (const Queued& queued : queue_) {
        for (const StepRow& row : queued.plan.rows) {
          ASSERT_NE(row.lane, open.lane) << "a lane changed hands while step " << queued.plan.step << " runs";
        }
      }
      opened_epoch_[open.lane] = open.epoch;
    }
    Queued queued;
    std::set<Lane> seen;
    for (const StepRow& row : plan.rows) {
      ASSERT_TRUE(seen.insert(row.lane).second) << "two rows of one lane";
      ASSERT_EQ(row.num_blocks, (row.first_position + row.num_tokens + block_tokens_ - 1) / block_tokens_);
      const Epoch epoch = opened_epoch_.at(row.lane);
      for (uint32_t b = 0; b < row.num_blocks; ++b) {
        const BlockId block = plan.blocks.at(row.first_block + b);
        const bool writes = (b + 1) * block_tokens_ > row.first_position;
        queued.uses.push_back({epoch, block, writes});
      }
    }
    std::unordered_map<BlockId, std::vector<Use>> by_block;
    for (const Queued& q : queue_) {
      for (const Use& use : q.uses) by_block[use.block].push_back(use);
    }
    for (const Use& use : queued.uses) by_block[use.block].push_back(use);
    for (const auto& [block, uses] : by_block) {
      const Use& first = uses.front();
      const bool alone = std::ranges::all_of(uses, [&](const Use& use) { return use.epoch == first.epoch; });
      const bool read_only = std::ranges::none_of(uses, &Use::writes);
      ASSERT_TRUE(alone || read_only)
          << "block " << block << " is written by one sequence and used by another in step " << plan.step;
    }
    queued.plan = std::move(plan);
    queue_.push_back(std::move(queued));
  }

  StepResult retire() {
    const StepPlan plan = std::move(queue_.front().plan);
    queue_.pop_front();
    for (const LaneOpen& open : plan.opens) {
      lanes_.at(open.lane) = {open.epoch, open.context, open.prompt_count, kFromLane};
    }
    StepResult result;
    result.step = plan.step;
    for (const StepRow& row : plan.rows) run_row(plan, row, result);
    return result;
  }

  size_t in_flight() const { return queue_.size(); }
  const StepPlan& newest() const { return queue_.back().plan; }

 private:
  static constexpr TokenId kNothing = 0xFFFFFFFE;
  struct Use {
    Epoch epoch;
    BlockId block;
    bool writes;
  };
  struct Queued {
    StepPlan plan;
    std::vector<Use> uses;
  };
  struct LaneState {
    Epoch epoch = 0;
    Ids context;
    uint32_t prompt_count = 0;
    TokenId last = kFromLane;
  };

  void run_row(const StepPlan& plan, const StepRow& row, StepResult& result) {
    LaneState& lane = lanes_.at(row.lane);
    const auto cell = [&](uint32_t position) -> TokenId& {
      const BlockId block = plan.blocks.at(row.first_block + position / block_tokens_);
      return cells_.at(size_t{block} * block_tokens_ + position % block_tokens_);
    };
    for (uint32_t i = 0; i < row.num_tokens; ++i) {
      TokenId id = plan.ids.at(row.first_id + i);
      if (id == kFromLane) id = lane.last;
      cell(row.first_position + i) = id;
    }
    const uint32_t end = row.first_position + row.num_tokens;
    Ids seen;
    for (uint32_t p = 0; p < end; ++p) seen.push_back(cell(p));
    ASSERT_LE(end, lane.context.size());
    EXPECT_EQ(seen, Ids(lane.context.begin(), lane.context.begin() + end)) << "epoch " << lane.epoch;
    EXPECT_EQ(row.samples, end == lane.context.size()) << "epoch " << lane.epoch;
    if (!row.samples) return;
    EXPECT_EQ(row.token_number, lane.context.size() - lane.prompt_count) << "epoch " << lane.epoch;
    SampledRow& sampled = result.rows.emplace_back();
    sampled.lane = row.lane;
    sampled.id = token_after(seen);
    sampled.logprob = -0.5f;
    sampled.failed = failing.contains(lane.epoch);
    lane.last = sampled.id;
    lane.context.push_back(sampled.id);
  }

  const uint32_t block_tokens_;
  Ids cells_;  // [num_blocks][block_tokens]
  std::vector<LaneState> lanes_;
  std::map<Lane, Epoch> opened_epoch_;
  std::deque<Queued> queue_;
};

// Row as text: "lane first_position+num_tokens", then "#token_number" if it samples.
inline std::string rows_of(const StepPlan& plan) {
  std::string out;
  for (const StepRow& row : plan.rows) {
    if (!out.empty()) out += ", ";
    out += std::to_string(row.lane) + ": " + std::to_string(row.first_position) + "+" +
           std::to_string(row.num_tokens);
    if (row.samples) out += " #" + std::to_string(row.token_number);
  }
  return out;
}

struct WorldConfig {
  uint32_t blocks = 64;
  uint32_t block_tokens = 4;
  bool prefix_cache = true;
  SchedulerConfig scheduler = {};
};

class World {
 public:
  explicit World(WorldConfig config = {})
      : kv(KvConfig{.num_blocks = config.blocks,
                    .block_tokens = config.block_tokens,
                    .prefix_cache = config.prefix_cache,
                    .key = {1, 2}}),
        scheduler(complete(config.scheduler), kv),
        device(config.blocks, config.block_tokens, config.scheduler.max_running) {}

  static SchedulerConfig complete(SchedulerConfig config) {
    config.vocab_size = kVocab;
    if (config.context_length == 0) config.context_length = 4096;
    return config;
  }

  static NewSequence request(Epoch epoch, Ids prompt, uint32_t max_tokens) {
    NewSequence fresh;
    fresh.epoch = epoch;
    fresh.prompt_count = static_cast<uint32_t>(prompt.size());
    fresh.ids = std::move(prompt);
    fresh.max_tokens = max_tokens;
    fresh.granted = 1u << 30;
    return fresh;
  }

  void submit(NewSequence fresh) {
    const Status status = scheduler.submit(std::move(fresh), now);
    ASSERT_TRUE(status.ok()) << status.error().message;
    check();
  }
  void submit(Epoch epoch, Ids prompt, uint32_t max_tokens) {
    submit(request(epoch, std::move(prompt), max_tokens));
  }

  // Plans one step and submits it; "" when there is none.
  std::string plan() {
    std::optional<StepPlan> step = scheduler.plan(now);
    check();
    if (!step) return "";
    last = *step;
    device.submit(std::move(*step));
    return rows_of(last);
  }

  // Retires the oldest step; its events are appended to `events`.
  void retire() {
    ASSERT_GT(device.in_flight(), 0u);
    now += kMillisecond;
    const Status status = scheduler.retire(device.retire(), now, events);
    ASSERT_TRUE(status.ok()) << status.error().message;
    check();
  }

  std::string plan_and_retire() {
    const std::string rows = plan();
    if (!rows.empty()) retire();
    return rows;
  }

  // Runs with two steps in flight until nothing is left to do.
  void run(int most_steps = 10000) {
    for (int i = 0; i < most_steps; ++i) {
      while (device.in_flight() < 2 && !plan().empty()) {
      }
      if (device.in_flight() == 0) return;
      retire();
    }
    FAIL() << "still busy after " << most_steps << " steps\n" << scheduler.dump();
  }

  void check() {
    const Status status = scheduler.check();
    ASSERT_TRUE(status.ok()) << status.error().message;
  }

  Ids outputs(Epoch epoch) const {
    Ids out;
    for (const TokenEvent& event : events.tokens) {
      if (event.epoch != epoch) continue;
      EXPECT_EQ(event.token_number, out.size()) << "epoch " << epoch;
      out.push_back(event.id);
    }
    return out;
  }

  // The one ending of an epoch; fails when there is none or more than one.
  EndEvent ending(Epoch epoch) const {
    std::vector<EndEvent> found;
    for (const EndEvent& event : events.endings) {
      if (event.epoch == epoch) found.push_back(event);
    }
    EXPECT_EQ(found.size(), 1u) << "endings of epoch " << epoch;
    return found.empty() ? EndEvent{} : found[0];
  }

  void expect_baseline() {
    EXPECT_TRUE(scheduler.idle()) << scheduler.dump();
    EXPECT_EQ(kv.num_used(), 0u) << scheduler.dump();
    check();
  }

  KvCache kv;
  Scheduler scheduler;
  MockDevice device;
  Events events;
  StepPlan last;
  Nanos now = kSecond;
};

}  // namespace ringmaster::gpu_worker
