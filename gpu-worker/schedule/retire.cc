// Scheduler::retire(): results become tokens and endings, and what the step held becomes free.
#include <algorithm>
#include <cassert>

#include "gpu-worker/schedule/scheduler.h"

namespace ringmaster::gpu_worker {

Status Scheduler::check_result(const StepResult& result) const {
  const auto broken = [&](const std::string& what) {
    return Error{Code::kInternal,
                 "result of step " + std::to_string(result.step) + ": " + what + "\n" + dump()};
  };
  if (flights_count_ == 0) return broken("no step is in flight");
  const Flight& flight = flights_[flights_first_];
  if (result.step != flight.step)
    return broken("the oldest step in flight is " + std::to_string(flight.step));
  size_t next = 0;
  for (const FlightRow& row : flight.rows) {
    if (!row.samples) continue;
    if (next == result.rows.size()) return broken("only " + std::to_string(next) + " sampled rows");
    const SampledRow& sampled = result.rows[next++];
    if (sampled.lane != row.lane) {
      return broken("sampled row " + std::to_string(next - 1) + " is of lane " +
                    std::to_string(sampled.lane) + ", planned was lane " + std::to_string(row.lane));
    }
    if (!sampled.failed && sampled.id >= config_.vocab_size) {
      return broken("lane " + std::to_string(sampled.lane) + " sampled id " + std::to_string(sampled.id) +
                    ", the vocabulary has " + std::to_string(config_.vocab_size));
    }
  }
  if (next != result.rows.size()) {
    return broken(std::to_string(result.rows.size()) + " sampled rows, planned were " + std::to_string(next));
  }
  return ok_status();
}

Status Scheduler::retire(StepResult result, Nanos now, Events& out) {
  assert(!result.error);
  if (Status status = check_result(result); !status.ok()) return status;
  Flight& flight = flights_[flights_first_];
  flights_first_ = (flights_first_ + 1) % config_.max_in_flight;
  --flights_count_;
  kv_.retire(flight.step);
  size_t next = 0;
  for (const FlightRow& row : flight.rows) {
    Sequence& s = *row.sequence;
    SampledRow* sampled = row.samples ? &result.rows[next++] : nullptr;
    --s.rows_in_flight;
    if (s.state == SequenceState::kFinished) {
      ++stats_.discarded_rows;
      row_left_flight(s);
      continue;
    }
    const bool failed = sampled != nullptr && sampled->failed;
    if (row.preemptions == s.preemptions) {
      s.computed = row.end_position;
      if (!failed) kv_.publish(s.kv, s.tokens, s.computed, s.last_step);
    }
    row_left_flight(s);
    if (sampled != nullptr) take_sample(s, *sampled, now, out);  // may end and destroy s
  }
  return ok_status();
}

// What the last row in flight kept is free now: the lane of one that was preempted, everything of one that
// ended.
void Scheduler::row_left_flight(Sequence& s) {
  if (s.rows_in_flight > 0) return;
  if (!s.resident()) free_lane(s);
  if (s.state != SequenceState::kFinished) return;
  const auto found = std::ranges::find_if(
      finished_, [&](const std::unique_ptr<Sequence>& other) { return other.get() == &s; });
  assert(found != finished_.end());
  std::swap(*found, finished_.back());
  finished_.pop_back();
}

void Scheduler::take_sample(Sequence& s, SampledRow& sampled, Nanos now, Events& out) {
  --s.samples_in_flight;
  const uint32_t number = s.outputs();
  if (sampled.failed) {
    kv_.forget(s.kv, s.tokens);
    finish(s, EndReason::kError, Code::kInternal,
           "the model's logits for output token " + std::to_string(number) +
               " were not finite; this request alone ends",
           out);
    return;
  }
  s.tokens.push_back(sampled.id);
  if (s.first_token_at == 0) s.first_token_at = now;
  s.last_token_at = now;
  ++stats_.sampled_tokens;
  TokenEvent& event = out.tokens.emplace_back();
  event.epoch = s.epoch;
  event.owner = s.owner;
  event.token_number = number;
  event.id = sampled.id;
  event.logprob = sampled.logprob;
  event.top = std::move(sampled.top);
  const bool stop_id = number >= s.min_tokens && std::ranges::binary_search(s.stop_ids, sampled.id);
  if (stop_id || s.outputs() >= s.stop_at) {
    finish(s, EndReason::kStop, Code::kOk, "", out);
  } else if (s.outputs() >= s.max_tokens) {
    finish(s, EndReason::kLength, Code::kOk, "", out);
  }
}

}  // namespace ringmaster::gpu_worker
