// Scheduler::plan(): decode rows, then chunks of prompts already started, then new sequences, within the
// token budget.
#include <algorithm>
#include <cassert>

#include "gpu-worker/schedule/scheduler.h"

namespace ringmaster::gpu_worker {

namespace {

// How far behind a request that does not fit admission looks for one that does. Each look walks a prefix in
// the index (some 100 us for a long prompt), and a step should be planned in far less than it runs.
constexpr size_t kLookBehind = 8;

}  // namespace

std::optional<StepPlan> Scheduler::plan(Nanos now) {
  if (flights_count_ == config_.max_in_flight || (running_.empty() && waiting_.empty())) return std::nullopt;
  if (window_open(now)) return std::nullopt;
  Flight& flight = flights_[(flights_first_ + flights_count_) % config_.max_in_flight];
  flight.step = next_step_;
  flight.rows.clear();
  StepPlan plan;
  plan.step = next_step_;
  plan.rows.reserve(running_.size() + 1);
  plan.ids.reserve(config_.step_tokens);

  uint32_t budget = config_.step_tokens;
  plan_decodes(plan, budget, now);
  const bool others_decode = !plan.rows.empty();
  plan_prefills(plan, budget, others_decode, now);
  admit(plan, budget, others_decode, now);
  if (plan.rows.empty()) return std::nullopt;

  ++next_step_;
  ++flights_count_;
  ++stats_.steps;
  return plan;
}

// Company may come only while nothing runs. It is enough company when the step is full or there is no lane
// for more.
bool Scheduler::window_open(Nanos now) {
  if (window_ends_ == kNever) return false;
  if (running_.empty() && flights_count_ == 0 && now < window_ends_ &&
      waiting_.size() < config_.max_running) {
    uint64_t tokens = 0;
    for (const Sequence* s : waiting_) tokens += s->tokens.size();
    if (tokens < config_.step_tokens) return true;
  }
  window_ends_ = kNever;
  return false;
}

void Scheduler::plan_decodes(StepPlan& plan, uint32_t& budget, Nanos now) {
  scratch_ = running_;  // pausing and preempting change running_
  for (Sequence* s : scratch_) {
    if (s->state != SequenceState::kRunning || fully_planned(*s)) continue;
    if (blocked(*s)) {
      leave_lists(*s);
      s->state = SequenceState::kPaused;
      ++num_paused_;
      continue;
    }
    if (s->length_planned() - s->planned != 1) continue;
    assert(budget > 0);
    if (grow(*s, s->planned + 1)) {
      add_row(plan, *s, 1, now);
      --budget;
    } else if (s->state == SequenceState::kRunning) {
      ++stats_.starved_rows;
    }
  }
}

void Scheduler::plan_prefills(StepPlan& plan, uint32_t& budget, bool others_decode, Nanos now) {
  scratch_.clear();
  for (Sequence* s : running_) {
    if (!fully_planned(*s) && s->length_planned() - s->planned > 1) scratch_.push_back(s);
  }
  std::ranges::sort(scratch_, Before{});
  for (Sequence* s : scratch_) {
    const uint32_t count = chunk_of(*s, budget, others_decode);
    if (count == 0) return;
    add_row(plan, *s, count, now);
    budget -= count;
  }
}

uint32_t Scheduler::chunk_of(const Sequence& s, uint32_t budget, bool others_decode) const {
  const uint32_t rest = s.length_planned() - s.planned;
  return std::min({rest, budget, others_decode ? config_.prefill_chunk : budget});
}

// In order of the line. A request that does not fit may be passed by smaller ones behind it, max_skips times;
// after that everybody behind it waits, so it starts at the latest when what runs then has ended.
void Scheduler::admit(StepPlan& plan, uint32_t& budget, bool others_decode, Nanos now) {
  passed_.clear();
  for (auto next = waiting_.begin(); next != waiting_.end() && budget > 0;) {
    Sequence& s = **next++;
    if (s.rows_in_flight > 0) continue;  // preempted a moment ago
    if (free_lanes_.empty() && pick_lane_holder() == nullptr) return;
    if (!make_resident(s)) {
      passed_.push_back(&s);
      if (s.skipped >= config_.max_skips || passed_.size() == kLookBehind) return;
      continue;
    }
    if (free_lanes_.empty()) free_lane(*pick_lane_holder());
    for (Sequence* passed : passed_) ++passed->skipped;
    stats_.skips += !passed_.empty();
    waiting_.erase(&s);
    s.state = SequenceState::kRunning;
    s.skipped = 0;
    running_.push_back(&s);
    open_lane(plan, s);
    const uint32_t count = chunk_of(s, budget, others_decode);
    add_row(plan, s, count, now);
    budget -= count;
    const bool exhausted = std::ranges::any_of(
        passed_, [&](const Sequence* passed) { return passed->skipped >= config_.max_skips; });
    if (exhausted) return;
  }
}

// Blocks for all known ids at once, so that a prompt once started never stops half-way for want of blocks.
// One block more for each running sequence stays free: each of them may need its next one soon, and admitting
// into the last block would only preempt somebody a few steps later. A sequence that kept its blocks while
// paused may lack one, like a running one.
bool Scheduler::make_resident(Sequence& s) {
  const auto positions = static_cast<uint32_t>(s.tokens.size());
  const uint32_t total = kv_.blocks_for(positions);
  const auto lacking = [&](uint32_t soon) {
    const uint32_t room = kv_.available() + soon;
    if (s.resident()) return total > room + s.kv.blocks.size();
    const KvCache::Match match = kv_.probe(s.kv, s.tokens);
    return total - match.blocks + match.idle + running_.size() > room;
  };
  if (lacking(0)) {
    uint32_t parked = kv_.releasing();
    for (const auto& [epoch, other] : sequences_) {
      if (other.get() == &s || other->state == SequenceState::kRunning) continue;
      parked += static_cast<uint32_t>(other->kv.blocks.size());
    }
    if (lacking(parked)) return false;
    // Of those that do not run, nobody is worth more than one that could: they keep blocks only while there
    // is room.
    while (lacking(kv_.releasing())) {
      Sequence* victim = pick_victim(/*running_too=*/false, &s);
      if (victim == nullptr) return false;
      preempt(*victim);
    }
    if (lacking(0)) return false;  // until the releases have retired
  }
  if (!s.resident()) {
    const uint32_t hit = kv_.adopt(s.kv, s.tokens, s.preemptions > 0);
    if (s.high_water == 0) s.cached_tokens = std::min(hit, s.prompt_count);
    s.computed = s.planned = hit;
  }
  const bool covered = kv_.extend(s.kv, positions);
  assert(covered);
  return covered;
}

void Scheduler::open_lane(StepPlan& plan, Sequence& s) {
  s.lane = free_lanes_.back();
  free_lanes_.pop_back();
  LaneOpen& open = plan.opens.emplace_back();
  open.lane = *s.lane;
  open.epoch = s.epoch;
  open.sampling = s.sampling;
  open.suppressed = s.stop_ids;
  open.min_tokens = s.min_tokens;
  open.logprobs = s.logprobs;
  open.context = s.tokens;
  open.prompt_count = s.prompt_count;
}

void Scheduler::add_row(StepPlan& plan, Sequence& s, uint32_t count, Nanos now) {
  const uint32_t end = s.planned + count;
  StepRow& row = plan.rows.emplace_back();
  row.lane = *s.lane;
  row.first_id = static_cast<uint32_t>(plan.ids.size());
  row.num_tokens = count;
  row.first_position = s.planned;
  row.first_block = static_cast<uint32_t>(plan.blocks.size());
  row.num_blocks = kv_.blocks_for(end);
  row.samples = end == s.length_planned();
  row.token_number = s.outputs_planned();
  for (uint32_t p = s.planned; p < end; ++p)
    plan.ids.push_back(p < s.tokens.size() ? s.tokens[p] : kFromLane);
  plan.blocks.insert(plan.blocks.end(), s.kv.blocks.begin(), s.kv.blocks.begin() + row.num_blocks);
  Flight& flight = flights_[(flights_first_ + flights_count_) % config_.max_in_flight];
  flight.rows.push_back({&s, row.lane, end, s.preemptions, row.samples});

  ++stats_.rows;
  stats_.computed_tokens += count;
  if (s.planned < s.high_water) stats_.recomputed_tokens += std::min(end, s.high_water) - s.planned;
  s.high_water = std::max(s.high_water, end);
  s.planned = end;
  s.samples_in_flight += row.samples;
  ++s.rows_in_flight;
  s.last_step = plan.step;
  if (s.first_step_at == 0) s.first_step_at = now;
}

}  // namespace ringmaster::gpu_worker
