// Scheduler::check(), dump() and holdings(): every count that must balance, and what to print when one does
// not.
#include <algorithm>
#include <unordered_map>

#include "gpu-worker/schedule/scheduler.h"

namespace ringmaster::gpu_worker {

namespace {

std::string_view name(SequenceState state) {
  switch (state) {
    case SequenceState::kWaiting:
      return "waiting";
    case SequenceState::kRunning:
      return "running";
    case SequenceState::kPaused:
      return "paused";
    case SequenceState::kFinished:
      return "finished";
  }
  return "?";
}

std::string describe(const Sequence& s) {
  const auto text = [](uint64_t n) { return std::to_string(n); };
  return "epoch " + text(s.epoch) + " " + std::string(name(s.state)) + ": " + text(s.prompt_count) +
         " prompt + " + text(s.outputs()) + " output tokens of " + text(s.max_tokens) + ", granted " +
         text(s.granted) + ", computed " + text(s.computed) + ", planned " + text(s.planned) + ", blocks " +
         text(s.kv.blocks.size()) + ", lane " + (s.lane ? text(*s.lane) : "-") + ", in flight " +
         text(s.rows_in_flight) + " rows " + text(s.samples_in_flight) + " samples, last step " +
         text(s.last_step);
}

// What is wrong with one sequence, or nothing.
std::string_view fault(const Sequence& s, const KvCache& kv) {
  if (s.computed > s.planned) return "more positions computed than planned";
  if (s.planned > s.length_planned()) return "more positions planned than tokens";
  const bool ended = s.state == SequenceState::kFinished;  // blocks are back, samples of it no longer counted
  if (!ended && s.kv.blocks.size() < kv.blocks_for(s.planned)) return "the block table is too short";
  if (!ended && s.samples_in_flight > s.rows_in_flight) return "more samples in flight than rows";
  switch (s.state) {
    case SequenceState::kRunning:
      if (!s.lane || !s.resident()) return "runs without lane or blocks";
      break;
    case SequenceState::kWaiting:
    case SequenceState::kPaused:
      if (s.lane && !s.resident() && s.rows_in_flight == 0) return "keeps a lane it cannot use";
      break;
    case SequenceState::kFinished:
      if (s.rows_in_flight == 0) return "has ended and nothing of it is in flight, but it is still here";
      if (!s.lane || s.resident())
        return "has ended but keeps blocks, or lost its lane before its rows retired";
      break;
  }
  return {};
}

}  // namespace

Status Scheduler::check() const {
  const auto broken = [&](const std::string& what) {
    return Error{Code::kInternal, "scheduler: " + what + "\n" + dump()};
  };
  std::vector<const Sequence*> all;
  for (const auto& [epoch, s] : sequences_) {
    if (s->epoch != epoch || s->state == SequenceState::kFinished)
      return broken("wrong entry: " + describe(*s));
    all.push_back(s.get());
  }
  for (const auto& s : finished_) {
    if (s->state != SequenceState::kFinished) return broken("not finished: " + describe(*s));
    all.push_back(s.get());
  }

  size_t counts[4] = {};
  std::vector<uint32_t> lane_holders(config_.max_running, 0);
  for (Lane lane : free_lanes_) ++lane_holders[lane];
  std::vector<const KvSequence*> tables;
  for (const Sequence* s : all) {
    if (const std::string_view what = fault(*s, kv_); !what.empty()) {
      return broken(std::string(what) + ": " + describe(*s));
    }
    ++counts[static_cast<size_t>(s->state)];
    if (s->lane) ++lane_holders[*s->lane];
    tables.push_back(&s->kv);
  }
  for (Lane lane = 0; lane < config_.max_running; ++lane) {
    if (lane_holders[lane] != 1) {
      return broken("lane " + std::to_string(lane) + " has " + std::to_string(lane_holders[lane]) +
                    " holders");
    }
  }
  for (const Sequence* s : waiting_) {
    if (s->state != SequenceState::kWaiting) return broken("in the waiting list: " + describe(*s));
  }
  for (const Sequence* s : running_) {
    if (s->state != SequenceState::kRunning) return broken("in the running list: " + describe(*s));
  }
  if (counts[0] != waiting_.size() || counts[1] != running_.size() || counts[2] != num_paused_) {
    return broken("lists and states disagree");
  }

  std::unordered_map<const Sequence*, std::pair<uint32_t, uint32_t>> in_flight;
  for (uint32_t i = 0; i < flights_count_; ++i) {
    for (const FlightRow& row : flights_[(flights_first_ + i) % config_.max_in_flight].rows) {
      ++in_flight[row.sequence].first;
      in_flight[row.sequence].second += row.samples;
    }
  }
  size_t with_rows = 0;
  for (const Sequence* s : all) {
    with_rows += s->rows_in_flight > 0;
    const auto found = in_flight.find(s);
    const auto [rows, samples] = found == in_flight.end() ? std::pair<uint32_t, uint32_t>{} : found->second;
    const bool samples_right = samples == s->samples_in_flight || s->state == SequenceState::kFinished;
    if (rows != s->rows_in_flight || !samples_right) return broken("flights disagree: " + describe(*s));
  }
  if (with_rows != in_flight.size()) return broken("a step in flight has a row of a sequence that is gone");
  return kv_.check(tables);
}

Holdings Scheduler::holdings() const {
  Holdings out;
  std::vector<const KvSequence*> tables;
  const auto add = [&](const Sequence& s) {
    out.sequences.push_back(
        {s.epoch, s.owner, s.state, static_cast<uint32_t>(s.kv.blocks.size()), s.lane.has_value()});
    tables.push_back(&s.kv);
  };
  for (const auto& [epoch, s] : sequences_) add(*s);
  for (const auto& s : finished_) add(*s);
  std::ranges::sort(out.sequences, {}, &SequenceHolding::epoch);
  out.lanes_taken = config_.max_running - static_cast<uint32_t>(free_lanes_.size());
  out.kv = kv_.holdings(tables);
  return out;
}

std::string Scheduler::dump() const {
  std::string out = "scheduler: " + std::to_string(running_.size()) + " running, " +
                    std::to_string(waiting_.size()) + " waiting, " + std::to_string(num_paused_) +
                    " paused, " + std::to_string(finished_.size()) + " ended in flight, " +
                    std::to_string(free_lanes_.size()) + " free lanes, " + std::to_string(flights_count_) +
                    " steps in flight, next step " + std::to_string(next_step_) + "; " + kv_.dump();
  for (const auto& [epoch, s] : sequences_) out += "\n  " + describe(*s);
  for (const auto& s : finished_) out += "\n  " + describe(*s);
  return out;
}

}  // namespace ringmaster::gpu_worker
