#include "gpu-worker/schedule/scheduler.h"

#include <algorithm>
#include <cassert>

namespace ringmaster::gpu_worker {

namespace {

// Priorities come from clients. Beyond this many levels the order in line would say nothing more, and
// kMaxPriority * kMaxAgeing stays far from the range of Nanos.
constexpr int32_t kMaxPriority = 1000;
constexpr Nanos kMinAgeing = kMillisecond;
constexpr Nanos kMaxAgeing = 3600 * kSecond;

std::string text(int64_t n) {
  return std::to_string(n);
}

Error invalid(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}

Status check_ids(std::string_view what, const std::vector<TokenId>& ids, uint32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab_size) {
      return invalid(std::string(what) + "[" + text(static_cast<int64_t>(i)) + "] is " + text(ids[i]) +
                     "; the model's ids are 0 to " + text(int64_t{vocab_size} - 1));
    }
  }
  return ok_status();
}

}  // namespace

Status Scheduler::validate(const SchedulerConfig& c) {
  const auto positive = [](std::string_view name, int64_t value) -> Status {
    if (value > 0) return ok_status();
    return invalid(std::string(name) + " is " + text(value) + "; it must be at least 1");
  };
  const std::pair<std::string_view, int64_t> counts[] = {
      {"vocab_size", c.vocab_size},       {"context_length", c.context_length},
      {"max_running", c.max_running},     {"max_waiting", c.max_waiting},
      {"max_owners", c.max_owners},       {"step_tokens", c.step_tokens},
      {"prefill_chunk", c.prefill_chunk}, {"max_in_flight", c.max_in_flight}};
  for (const auto& [name, value] : counts) {
    if (Status status = positive(name, value); !status.ok()) return status;
  }
  if (c.vocab_size >= kFromLane) {
    return invalid("vocab_size is " + text(c.vocab_size) + "; at most " + text(kFromLane - 1));
  }
  if (c.step_tokens < c.max_running) {
    return invalid("step_tokens (" + text(c.step_tokens) + ") is below max_running (" + text(c.max_running) +
                   "): a step could not hold one token of each running sequence; raise step_tokens or lower "
                   "max_running");
  }
  if (c.batching_window < 0) {
    return invalid("batching_window is " + text(c.batching_window) + " ns; at least 0");
  }
  if (c.ageing_interval < kMinAgeing || c.ageing_interval > kMaxAgeing) {
    return invalid("ageing_interval is " + text(c.ageing_interval) + " ns; allowed: " + text(kMinAgeing) +
                   " to " + text(kMaxAgeing));
  }
  return ok_status();
}

Scheduler::Scheduler(const SchedulerConfig& config, KvCache& kv) : config_(config), kv_(kv) {
  assert(validate(config).ok());
  held_.assign(config_.max_owners, 0);
  flights_.resize(config_.max_in_flight);
  free_lanes_.reserve(config_.max_running);
  for (Lane lane = config_.max_running; lane-- > 0;) free_lanes_.push_back(lane);
}

Scheduler::~Scheduler() = default;

Status Scheduler::check_new(const NewSequence& fresh) const {
  if (fresh.epoch == 0) return invalid("epoch is 0; epochs start at 1");
  if (sequences_.contains(fresh.epoch)) {
    return Error{Code::kAlreadyExists, "epoch " + std::to_string(fresh.epoch) + " is already here"};
  }
  if (fresh.owner >= config_.max_owners) {
    return invalid("owner is " + text(fresh.owner) + "; allowed: 0 to " + text(config_.max_owners - 1));
  }
  if (fresh.prompt_count == 0) return invalid("the prompt is empty; at least one token is needed");
  if (fresh.prompt_count > fresh.ids.size()) {
    return invalid("prompt_count is " + text(fresh.prompt_count) + ", but only " +
                   text(static_cast<int64_t>(fresh.ids.size())) + " ids came");
  }
  if (fresh.stop_ids.size() > kMaxStopIds) {
    return invalid(text(static_cast<int64_t>(fresh.stop_ids.size())) + " stop ids; at most " +
                   text(kMaxStopIds));
  }
  if (fresh.logprobs > kMaxTopLogprobs + 1) {
    return invalid("logprobs asks for " + text(int64_t{fresh.logprobs} - 1) + " alternatives; at most " +
                   text(kMaxTopLogprobs));
  }
  if (Status status = ringmaster::check(fresh.sampling); !status.ok()) return status;
  for (const LogitBias& bias : fresh.sampling.logit_bias) {
    if (bias.id < config_.vocab_size) continue;
    return invalid("logit_bias names id " + text(bias.id) + "; the model's ids are 0 to " +
                   text(int64_t{config_.vocab_size} - 1));
  }
  if (Status status = check_ids("stop_ids", fresh.stop_ids, config_.vocab_size); !status.ok()) return status;
  return check_ids("ids", fresh.ids, config_.vocab_size);
}

// The last sampled token needs no place in the KV cache, so `total` tokens need total - 1 positions.
Result<uint32_t> Scheduler::resolve_max_tokens(const NewSequence& fresh) const {
  const uint64_t prompt = fresh.prompt_count;
  const uint64_t given = fresh.ids.size();
  const uint64_t context = config_.context_length;
  const uint64_t pool = uint64_t{kv_.num_blocks()} * kv_.block_tokens();
  const uint64_t total = fresh.max_tokens == 0 ? given + 1 : prompt + fresh.max_tokens;
  if (total > context || given > context) {
    const std::string wanted =
        fresh.max_tokens == 0 ? "at least one more token" : "max_tokens " + text(fresh.max_tokens);
    return Error{Code::kContextLengthExceeded,
                 "prompt of " + std::to_string(prompt) + " tokens with " + wanted + " needs " +
                     std::to_string(std::max(total, given)) + " tokens of context; the context has " +
                     std::to_string(context) + ": shorten the prompt or lower max_tokens"};
  }
  if (std::max(total - 1, given) > pool) {
    return Error{Code::kResourceExhausted,
                 "the request needs " + std::to_string(std::max(total - 1, given)) +
                     " positions of KV cache, the whole cache has " + std::to_string(pool) + " (" +
                     std::to_string(kv_.num_blocks()) + " blocks of " + std::to_string(kv_.block_tokens()) +
                     "): lower max_tokens, shorten the prompt, or raise kv_memory"};
  }
  if (fresh.max_tokens != 0) return fresh.max_tokens;
  return static_cast<uint32_t>(std::min(context, pool + 1) - prompt);
}

Status Scheduler::submit(NewSequence fresh, Nanos now) {
  if (Status status = check_new(fresh); !status.ok()) return status;
  const Result<uint32_t> max_tokens = resolve_max_tokens(fresh);
  if (!max_tokens.ok()) return max_tokens.error();
  if (sequences_.size() - running_.size() >= config_.max_waiting) {
    return Error{Code::kOverloaded, text(static_cast<int64_t>(sequences_.size() - running_.size())) +
                                        " requests are waiting, the limit (max_waiting) is " +
                                        text(config_.max_waiting) + "; retry later"};
  }
  const bool was_idle = running_.empty() && waiting_.empty() && flights_count_ == 0;
  auto owned = std::make_unique<Sequence>();
  Sequence& s = *owned;
  s.epoch = fresh.epoch;
  s.owner = fresh.owner;
  s.tokens = std::move(fresh.ids);
  s.prompt_count = fresh.prompt_count;
  s.sampling = std::move(fresh.sampling);
  s.stop_ids = std::move(fresh.stop_ids);
  std::ranges::sort(s.stop_ids);
  s.min_tokens = fresh.min_tokens;
  s.max_tokens = *max_tokens;
  s.granted = fresh.granted;
  s.logprobs = fresh.logprobs;
  s.priority = std::clamp(fresh.priority, -kMaxPriority, kMaxPriority);
  s.arrival = now;
  s.deadline = fresh.deadline;
  s.order = now - s.priority * config_.ageing_interval;
  s.serial = next_serial_++;
  s.kv.salt = fresh.cache_salt;
  s.state = SequenceState::kPaused;
  ++num_paused_;
  next_deadline_ = std::min(next_deadline_, s.deadline);
  sequences_.emplace(s.epoch, std::move(owned));

  const bool stopped = s.outputs() > s.min_tokens && std::ranges::binary_search(s.stop_ids, s.tokens.back());
  if (stopped || s.outputs() >= s.max_tokens) {
    s.stop_at = s.outputs();
    complete_at_start_.push_back(s.epoch);
    return ok_status();
  }
  settle(s);
  if (was_idle && config_.batching_window > 0 && !waiting_.empty())
    window_ends_ = now + config_.batching_window;
  return ok_status();
}

Sequence* Scheduler::live_sequence(Epoch epoch) {
  const auto found = sequences_.find(epoch);
  return found == sequences_.end() ? nullptr : found->second.get();
}

const Sequence* Scheduler::find(Epoch epoch) const {
  const auto found = sequences_.find(epoch);
  return found == sequences_.end() ? nullptr : found->second.get();
}

std::vector<Epoch> Scheduler::live() const {
  std::vector<const Sequence*> all;
  for (const auto& [epoch, s] : sequences_) all.push_back(s.get());
  std::ranges::sort(all, {}, [](const Sequence* s) { return s->serial; });
  std::vector<Epoch> epochs;
  epochs.reserve(all.size());
  for (const Sequence* s : all) epochs.push_back(s->epoch);
  return epochs;
}

bool Scheduler::fully_planned(const Sequence& s) {
  return s.outputs_planned() >= std::min(s.max_tokens, s.stop_at);
}

bool Scheduler::blocked(const Sequence& s) const {
  return held_[s.owner] != 0 || (s.outputs_planned() >= s.granted && !fully_planned(s));
}

// Running sequences are paused by plan(), which visits all of them anyway.
void Scheduler::settle(Sequence& s) {
  if (s.state == SequenceState::kWaiting && blocked(s)) {
    waiting_.erase(&s);
    s.state = SequenceState::kPaused;
    ++num_paused_;
  } else if (s.state == SequenceState::kPaused && !blocked(s) && s.stop_at > s.outputs()) {
    --num_paused_;
    if (s.lane && s.resident()) {
      s.state = SequenceState::kRunning;
      running_.push_back(&s);
    } else {
      s.state = SequenceState::kWaiting;
      waiting_.insert(&s);
    }
  }
}

bool Scheduler::grant(Epoch epoch, uint32_t granted) {
  Sequence* s = live_sequence(epoch);
  if (s == nullptr) return false;
  s->granted = std::max(s->granted, granted);
  settle(*s);
  return true;
}

bool Scheduler::cancel(Epoch epoch, Events& out) {
  return end(epoch, EndReason::kCancelled, Code::kCancelled, "cancelled", out);
}

bool Scheduler::end(Epoch epoch, EndReason reason, Code code, std::string_view message, Events& out) {
  Sequence* s = live_sequence(epoch);
  if (s == nullptr) return false;
  finish(*s, reason, code, message, out);
  return true;
}

bool Scheduler::stop_at(Epoch epoch, uint32_t token_count, Events& out) {
  Sequence* s = live_sequence(epoch);
  if (s == nullptr) return false;
  s->stop_at = std::min(s->stop_at, token_count);
  if (s->outputs() >= s->stop_at) {
    finish(*s, EndReason::kStop, Code::kOk, "", out);
  } else {
    settle(*s);
  }
  return true;
}

Status Scheduler::rebind(Epoch old_epoch, Epoch new_epoch, uint32_t owner, uint32_t granted) {
  if (owner >= config_.max_owners) {
    return invalid("owner is " + text(owner) + "; allowed: 0 to " + text(config_.max_owners - 1));
  }
  if (!sequences_.contains(old_epoch)) {
    return Error{Code::kNotFound, "epoch " + std::to_string(old_epoch) + " is not here"};
  }
  if (new_epoch == 0 || sequences_.contains(new_epoch)) {
    return Error{Code::kAlreadyExists, "epoch " + std::to_string(new_epoch) + " is taken or 0"};
  }
  auto node = sequences_.extract(old_epoch);
  node.key() = new_epoch;
  Sequence& s = *sequences_.insert(std::move(node)).position->second;
  s.epoch = new_epoch;
  s.owner = owner;
  s.granted = granted;
  std::ranges::replace(complete_at_start_, old_epoch, new_epoch);
  settle(s);
  return ok_status();
}

void Scheduler::hold(uint32_t owner, bool held) {
  assert(owner < config_.max_owners);
  held_[owner] = held;
  scratch_.clear();
  for (const auto& [epoch, s] : sequences_) {
    if (s->owner == owner) scratch_.push_back(s.get());
  }
  std::ranges::sort(scratch_, {}, [](const Sequence* s) { return s->serial; });
  for (Sequence* s : scratch_) settle(*s);
}

void Scheduler::expire(Nanos now, Events& out) {
  for (Epoch epoch : complete_at_start_) {
    Sequence* s = live_sequence(epoch);
    if (s == nullptr) continue;
    const bool length = s->outputs() >= s->max_tokens;
    finish(*s, length ? EndReason::kLength : EndReason::kStop, Code::kOk, "", out);
  }
  complete_at_start_.clear();
  if (now < next_deadline_) return;
  scratch_.clear();
  next_deadline_ = kNever;
  for (const auto& [epoch, s] : sequences_) {
    if (s->deadline <= now) {
      scratch_.push_back(s.get());
    } else {
      next_deadline_ = std::min(next_deadline_, s->deadline);
    }
  }
  std::ranges::sort(scratch_, {}, [](const Sequence* s) { return s->serial; });
  for (Sequence* s : scratch_) {
    finish(*s, EndReason::kDeadline, Code::kDeadlineExceeded,
           "the deadline passed " + text((now - s->deadline) / kMillisecond) + " ms ago, " +
               text((now - s->arrival) / kMillisecond) + " ms after the start, at " + text(s->outputs()) +
               " output tokens",
           out);
  }
}

Nanos Scheduler::next_wake() const {
  if (!complete_at_start_.empty()) return 0;
  return std::min(next_deadline_, waiting_.empty() ? kNever : window_ends_);
}

void Scheduler::leave_lists(Sequence& s) {
  switch (s.state) {
    case SequenceState::kWaiting:
      waiting_.erase(&s);
      break;
    case SequenceState::kRunning:
      running_.erase(std::ranges::find(running_, &s));
      break;
    case SequenceState::kPaused:
      --num_paused_;
      break;
    case SequenceState::kFinished:
      break;
  }
}

void Scheduler::free_lane(Sequence& s) {
  if (!s.lane) return;
  free_lanes_.push_back(*s.lane);
  s.lane.reset();
}

void Scheduler::finish(Sequence& s, EndReason reason, Code code, std::string_view message, Events& out) {
  leave_lists(s);
  s.state = SequenceState::kFinished;
  kv_.release(s.kv, s.last_step);
  EndEvent& event = out.endings.emplace_back();
  event.epoch = s.epoch;
  event.owner = s.owner;
  event.reason = reason;
  event.code = code;
  event.message = message;
  event.prompt_tokens = s.prompt_count;
  event.cached_tokens = s.cached_tokens;
  event.output_tokens = std::min(s.outputs(), s.stop_at);
  event.first_step_at = s.first_step_at;
  event.first_token_at = s.first_token_at;
  event.last_token_at = s.last_token_at;
  auto node = sequences_.extract(s.epoch);
  if (s.rows_in_flight > 0) {
    finished_.push_back(std::move(node.mapped()));
  } else {
    free_lane(s);
  }
}

}  // namespace ringmaster::gpu_worker
