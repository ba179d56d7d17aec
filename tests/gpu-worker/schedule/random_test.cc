// Random commands, loads and pool sizes against a model that knows nothing of steps, blocks or lanes: a
// request is its list of expected tokens and a few limits. Books are checked after every event (World does),
// every context by the mock device.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/gpu-worker/schedule/world.h"

namespace ringmaster::gpu_worker {
namespace {

struct Model {
  Ids expected;        // all output tokens it could ever have; stops at a stop id or max_tokens
  bool stops = false;  // the last of `expected` is a stop id
  uint32_t delivered = 0;
  uint32_t granted = 0;
  uint32_t stop_at = UINT32_MAX;
  uint32_t owner = 0;
  bool cancelled = false;
  bool fails = false;
  Nanos deadline = kNever;
  bool ended = false;
};

class RandomRun {
 public:
  explicit RandomRun(uint32_t seed) : random_(seed), world_(config(random_)) {}

  void run(int turns) {
    for (int turn = 0; turn < turns && !::testing::Test::HasFatalFailure(); ++turn) {
      command();
      world_.scheduler.expire(world_.now, world_.events);
      take_events();
      world_.check();
      if (below(3) > 0) world_.plan();
      if (world_.device.in_flight() > 0 && (world_.device.in_flight() == 2 || below(3) > 0)) {
        world_.retire();
        take_events();
      }
      world_.now += below(2) * kMillisecond;
    }
    settle_all();
  }

  SchedulerStats stats() const { return world_.scheduler.stats(); }
  const KvStats& kv_stats() const { return world_.kv.stats(); }
  uint32_t endings(EndReason reason) { return reasons_[reason]; }

 private:
  static uint32_t pick(std::mt19937& random, uint32_t n) { return static_cast<uint32_t>(random() % n); }
  uint32_t below(uint32_t n) { return pick(random_, n); }

  static WorldConfig config(std::mt19937& random) {
    WorldConfig c;
    c.block_tokens = 1 + pick(random, 5);
    c.blocks = 60 / c.block_tokens + pick(random, 20);
    c.prefix_cache = pick(random, 4) > 0;
    c.scheduler.context_length = 55;
    c.scheduler.max_running = 1 + pick(random, 6);
    c.scheduler.max_waiting = 12;
    c.scheduler.max_owners = 3;
    c.scheduler.step_tokens = c.scheduler.max_running + pick(random, 30);
    c.scheduler.prefill_chunk = 1 + pick(random, 12);
    c.scheduler.batching_window = pick(random, 3) * kMillisecond;
    c.scheduler.ageing_interval = (1 + pick(random, 20)) * kMillisecond;
    c.scheduler.max_skips = pick(random, 4);
    c.scheduler.victims = pick(random, 2) ? VictimPolicy::kLeastProgress : VictimPolicy::kLatestArrival;
    return c;
  }

  Epoch any_epoch() { return 1 + below(static_cast<uint32_t>(next_epoch_) + 1); }

  void command() {
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        submit();
        break;
      case 4: {
        const Epoch epoch = any_epoch();
        if (below(3) > 0) break;
        EXPECT_EQ(world_.scheduler.cancel(epoch, world_.events), alive(epoch));
        if (alive(epoch)) models_[epoch].cancelled = true;
        break;
      }
      case 5: {
        const Epoch epoch = any_epoch();
        if (!alive(epoch) || below(3) > 0) break;
        Model& m = models_[epoch];
        m.stop_at = std::min(m.stop_at, m.delivered - std::min(m.delivered, below(2)));
        world_.scheduler.stop_at(epoch, m.stop_at, world_.events);
        break;
      }
      case 6: {
        const uint32_t owner = below(3);
        held_[owner] = !held_[owner];
        world_.scheduler.hold(owner, held_[owner]);
        break;
      }
      case 7: {
        const Epoch epoch = any_epoch();
        if (!alive(epoch) || below(3) > 0) break;
        const Epoch fresh = ++next_epoch_;
        Model m = models_[epoch];
        m.owner = below(3);
        m.granted = std::max(m.granted, m.delivered + below(4));
        ASSERT_TRUE(world_.scheduler.rebind(epoch, fresh, m.owner, m.granted).ok());
        models_[epoch].ended = true;  // under this name
        models_[fresh] = m;
        if (m.fails) world_.device.failing.insert(fresh);
        break;
      }
      default: {
        const Epoch epoch = any_epoch();
        if (!alive(epoch)) break;
        Model& m = models_[epoch];
        m.granted += below(6);
        EXPECT_TRUE(world_.scheduler.grant(epoch, m.granted));
        break;
      }
    }
  }

  void submit() {
    const Epoch epoch = ++next_epoch_;
    const uint32_t text = below(3);  // few texts, so that prefixes are shared
    Ids prompt = counting(text * 100, 1 + below(30));
    if (below(4) == 0) prompt.back() = below(kVocab);
    NewSequence fresh = World::request(epoch, prompt, below(20));
    const uint32_t most = std::min<uint32_t>(
        fresh.max_tokens == 0 ? 1000 : fresh.max_tokens,
        std::min(55u, world_.kv.num_blocks() * world_.kv.block_tokens() + 1) - fresh.prompt_count);
    Model m;
    m.expected = expected_outputs(prompt, most);
    const uint32_t stop = below(30);
    if (stop < most) {
      fresh.stop_ids = {m.expected[stop]};
      const auto first = std::ranges::find(m.expected, m.expected[stop]);
      m.expected.erase(first + 1, m.expected.end());
      m.stops = true;
    }
    m.granted = fresh.granted = below(10);
    m.owner = fresh.owner = below(3);
    if (below(10) == 0) m.deadline = fresh.deadline = world_.now + below(60) * kMillisecond;
    if (below(25) == 0) {
      m.fails = true;
      world_.device.failing.insert(epoch);
      fresh.cache_salt = {epoch, 1};
    }
    if (below(6) == 0) {  // resumed
      const uint32_t given = below(static_cast<uint32_t>(m.expected.size()));
      fresh.ids.insert(fresh.ids.end(), m.expected.begin(), m.expected.begin() + given);
      m.delivered = given;
    }
    fresh.priority = static_cast<int32_t>(below(4));
    const Status status = world_.scheduler.submit(fresh, world_.now);
    if (!status.ok()) {
      EXPECT_EQ(status.error().code, Code::kOverloaded) << status.error().message;
      m.ended = true;
    }
    models_[epoch] = m;
  }

  bool alive(Epoch epoch) { return models_.contains(epoch) && !models_[epoch].ended; }

  void take_events() {
    for (const TokenEvent& event : world_.events.tokens) {
      Model& m = models_.at(event.epoch);
      ASSERT_FALSE(m.ended) << "a token after the end of " << event.epoch;
      ASSERT_FALSE(m.fails);
      ASSERT_EQ(event.token_number, m.delivered) << "epoch " << event.epoch;
      ASSERT_LT(m.delivered, m.expected.size());
      ASSERT_EQ(event.id, m.expected[m.delivered]) << "epoch " << event.epoch;
      ASSERT_EQ(event.owner, m.owner);
      ++m.delivered;
      ASSERT_LE(m.delivered, m.granted) << "epoch " << event.epoch;
    }
    for (const EndEvent& event : world_.events.endings) {
      Model& m = models_.at(event.epoch);
      ASSERT_FALSE(m.ended) << "a second end of " << event.epoch;
      m.ended = true;
      ++reasons_[event.reason];
      ASSERT_EQ(event.reason, expected_reason(m, event.reason))
          << "epoch " << event.epoch << " " << event.message;
      ASSERT_EQ(event.output_tokens, std::min(m.delivered, m.stop_at));
    }
    world_.events.clear();
  }

  EndReason expected_reason(const Model& m, EndReason given) const {
    if (m.cancelled) return EndReason::kCancelled;
    if (m.delivered >= m.stop_at) return EndReason::kStop;
    if (!m.fails && m.delivered == m.expected.size()) return m.stops ? EndReason::kStop : EndReason::kLength;
    if (m.fails && given == EndReason::kError) return given;  // may come just before the deadline is noticed
    return m.deadline <= world_.now ? EndReason::kDeadline : EndReason::kError;
  }

  // Everything is let loose: each request must end by itself, and nothing may be left.
  void settle_all() {
    if (::testing::Test::HasFatalFailure()) return;
    for (uint32_t owner = 0; owner < 3; ++owner) world_.scheduler.hold(owner, false);
    for (auto& [epoch, m] : models_) {
      if (m.ended) continue;
      m.granted = 1000;
      world_.scheduler.grant(epoch, 1000);
    }
    for (int i = 0; i < 3000 && !world_.scheduler.idle(); ++i) {
      world_.now += kMillisecond;
      world_.scheduler.expire(world_.now, world_.events);
      while (world_.device.in_flight() < 2 && !world_.plan().empty()) {
      }
      if (world_.device.in_flight() > 0) world_.retire();
      take_events();
      if (::testing::Test::HasFatalFailure()) return;
    }
    world_.expect_baseline();
    for (const auto& [epoch, m] : models_) EXPECT_TRUE(m.ended) << "epoch " << epoch;
  }

  std::mt19937 random_;
  World world_;
  std::map<Epoch, Model> models_;
  std::map<EndReason, uint32_t> reasons_;
  bool held_[3] = {};
  Epoch next_epoch_ = 0;
};

TEST(Random, EveryRequestGetsItsTokensAndOneEnd) {
  SchedulerStats sum;
  uint64_t hits = 0, merged = 0;
  std::map<EndReason, uint32_t> reasons;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun run(seed);
    run.run(600);
    if (HasFailure()) return;
    sum.preemptions += run.stats().preemptions;
    sum.recomputed_tokens += run.stats().recomputed_tokens;
    sum.discarded_rows += run.stats().discarded_rows;
    sum.starved_rows += run.stats().starved_rows;
    sum.skips += run.stats().skips;
    hits += run.kv_stats().hit_tokens;
    merged += run.kv_stats().merged_blocks;
    for (EndReason reason : {EndReason::kStop, EndReason::kLength, EndReason::kCancelled,
                             EndReason::kDeadline, EndReason::kError}) {
      reasons[reason] += run.endings(reason);
    }
  }
  // The runs are worth nothing if they do not get into these corners.
  EXPECT_GT(sum.preemptions, 200u);
  EXPECT_GT(sum.recomputed_tokens, 1000u);
  EXPECT_GT(sum.discarded_rows, 200u);
  EXPECT_GT(sum.starved_rows, 20u);
  EXPECT_GT(sum.skips, 20u);
  EXPECT_GT(hits, 1000u);
  EXPECT_GT(merged, 20u);
  for (const auto& [reason, count] : reasons) EXPECT_GT(count, 50u) << static_cast<int>(reason);
}

}  // namespace
}  // namespace ringmaster::gpu_worker
