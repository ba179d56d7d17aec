// Decides which sequences take part in which step: continuous batching with a token budget, chunked prefill
// mixed with decode, priorities with ageing, preemption by recompute. It turns commands and step results into
// StepPlans and events and sees neither a device nor a ring nor a clock (`now` is handed in).
//
// Thread: the worker's loop thread only. Owner of all Sequences, of the lanes, and of the blocks they hold in
// KvCache.
//
// Invariants (check() verifies them):
//  - a decoding sequence with grant has a row in every step it can have a block for: prompts of others never
//  displace it;
//  - a lane or block leaves its sequence only when the last step with a row of that sequence has retired;
//  - every submitted sequence gets exactly one EndEvent; its token numbers have no gap and no repeat,
//  whatever happens.
//
// One loop turn of the caller:
//   commands -> submit/grant/cancel/stop_at;  expire(now);  device.retire -> retire;  plan(now) ->
//   device.submit; then sleep until a doorbell or min(next_wake(), device.next_event()).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "gpu-worker/kv/kv_cache.h"
#include "gpu-worker/schedule/events.h"
#include "gpu-worker/schedule/holdings.h"
#include "gpu-worker/schedule/sequence.h"
#include "gpu-worker/schedule/step_plan.h"

namespace ringmaster::gpu_worker {

// Whose work is thrown away when blocks run out. Paused sequences always go first, then the lowest priority.
enum class VictimPolicy : uint8_t {
  kLeastProgress,  // fewest computed tokens, then latest arrival: least is recomputed
  kLatestArrival,  // strictly first come, first served
};

struct SchedulerConfig {
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;
  uint32_t max_running = 64;    // lanes; at most Device::info().num_lanes
  uint32_t max_waiting = 1024;  // accepted but not running; more are refused
  uint32_t max_owners = 16;
  uint32_t step_tokens = 512;            // budget of a step; >= max_running, so that every decode row fits
  uint32_t prefill_chunk = 256;          // most prompt tokens of one sequence in a step while others decode
  uint32_t max_in_flight = 2;            // Device::kMaxInFlight
  Nanos batching_window = 0;             // from idle, wait up to this long for company
  Nanos ageing_interval = 10 * kSecond;  // waiting this long is worth one level of priority
  uint32_t max_skips = 16;  // admissions that may pass a request which does not fit; then all behind it wait
  VictimPolicy victims = VictimPolicy::kLeastProgress;
};

struct SchedulerStats {
  uint64_t steps = 0;  // planned
  uint64_t rows = 0;
  uint64_t computed_tokens = 0;    // positions planned, recomputed ones included
  uint64_t recomputed_tokens = 0;  // of these: computed before, lost to preemption
  uint64_t preemptions = 0;
  uint64_t sampled_tokens = 0;  // delivered
  uint64_t discarded_rows = 0;  // results of sequences that had ended in the meantime
  uint64_t starved_rows = 0;    // decode rows that sat out a step because their block was not free yet
  uint64_t skips = 0;           // admissions that passed a request which did not fit
};

class Scheduler {
 public:
  // Error: kInvalidArgument, naming the two settings that contradict each other and the remedy.
  static Status validate(const SchedulerConfig& config);

  // REQUIRES: validate(config).ok(); `kv` outlives the scheduler and is used by nobody else.
  Scheduler(const SchedulerConfig& config, KvCache& kv);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Takes a request, or says with numbers why not; a refused one leaves no trace and gets no EndEvent.
  Status submit(NewSequence fresh, Nanos now);
  // The commands below return false for an unknown epoch (it has ended: commands and endings cross each
  // other). Raises the limit of output tokens; a lower one than before is ignored.
  bool grant(Epoch epoch, uint32_t granted);
  bool cancel(Epoch epoch, Events& out);
  // As cancel, with another reason: a drain, a lost owner, a request that breaks a later rule.
  bool end(Epoch epoch, EndReason reason, Code code, std::string_view message, Events& out);
  // A stop string was found: the stream has `token_count` output tokens and no more.
  bool stop_at(Epoch epoch, uint32_t token_count, Events& out);
  // The request moved to another owner under a new epoch: same work, same token numbers. The caller replays
  // from find(). Error: kNotFound, kAlreadyExists (new epoch in use), kInvalidArgument (owner).
  Status rebind(Epoch old_epoch, Epoch new_epoch, uint32_t owner, uint32_t granted);
  // While held, no sequence of this owner gets a row (its token ring is full). REQUIRES: owner < max_owners.
  void hold(uint32_t owner, bool held);

  // Ends what is past its deadline, waiting, paused or running.
  void expire(Nanos now, Events& out);
  // The next step, to be submitted to the device at once; nothing when there is nothing to do, max_in_flight
  // steps are out, or the batching window is open.
  std::optional<StepPlan> plan(Nanos now);
  // When to call expire() and plan() again although no command and no result came; kNever if not at all.
  Nanos next_wake() const;
  // Takes the result of the oldest step in flight. REQUIRES: !result.error (the device is lost then, and so
  // is the worker). Error: kInternal, a result that does not belong to that step; the scheduler is unusable
  // afterwards.
  Status retire(StepResult result, Nanos now, Events& out);

  // Live sequences only; valid until the next call that changes anything.
  const Sequence* find(Epoch epoch) const;
  std::vector<Epoch> live() const;  // in order of submission
  uint32_t num_running() const { return static_cast<uint32_t>(running_.size()); }
  uint32_t num_waiting() const { return static_cast<uint32_t>(waiting_.size()); }
  uint32_t num_paused() const { return num_paused_; }
  uint32_t num_lanes() const { return config_.max_running; }
  uint32_t in_flight() const { return flights_count_; }
  bool idle() const { return sequences_.empty() && flights_count_ == 0; }
  const SchedulerStats& stats() const { return stats_; }

  // Every book: blocks (through KvCache::check), lanes, lists, counts. Error: kInternal with a dump.
  Status check() const;
  std::string dump() const;
  // What is held now, for an audit. Walks all sequences and blocks.
  Holdings holdings() const;

 private:
  // What retire() must know of a planned row.
  struct FlightRow {
    Sequence* sequence = nullptr;
    Lane lane = 0;
    uint32_t end_position = 0;
    uint32_t preemptions = 0;  // of the sequence when planned
    bool samples = false;
  };
  struct Flight {
    uint64_t step = 0;
    std::vector<FlightRow> rows;
  };
  struct Before {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return a->order != b->order ? a->order < b->order : a->serial < b->serial;
    }
  };

  // scheduler.cc: commands and the ends of sequences
  Status check_new(const NewSequence& fresh) const;
  Result<uint32_t> resolve_max_tokens(const NewSequence& fresh) const;
  Sequence* live_sequence(Epoch epoch);
  bool blocked(const Sequence& s) const;         // no grant, or owner held
  static bool fully_planned(const Sequence& s);  // every output token it will have is computed or in flight
  void settle(Sequence& s);                      // waiting or paused, as blocked() says
  void leave_lists(Sequence& s);
  void free_lane(Sequence& s);
  void finish(Sequence& s, EndReason reason, Code code, std::string_view message, Events& out);

  // planning.cc
  bool window_open(Nanos now);
  void plan_decodes(StepPlan& plan, uint32_t& budget, Nanos now);
  void plan_prefills(StepPlan& plan, uint32_t& budget, bool others_decode, Nanos now);
  void admit(StepPlan& plan, uint32_t& budget, bool others_decode, Nanos now);
  bool make_resident(Sequence& s);
  void open_lane(StepPlan& plan, Sequence& s);
  uint32_t chunk_of(const Sequence& s, uint32_t budget, bool others_decode) const;
  void add_row(StepPlan& plan, Sequence& s, uint32_t count, Nanos now);

  // victims.cc
  bool grow(Sequence& s, uint32_t positions);
  bool worse(const Sequence& a, const Sequence& b) const;
  Sequence* pick_victim(bool running_too, const Sequence* spared) const;
  void preempt(Sequence& s);
  Sequence* pick_lane_holder() const;

  // retire.cc
  Status check_result(const StepResult& result) const;
  void take_sample(Sequence& s, SampledRow& sampled, Nanos now, Events& out);
  void row_left_flight(Sequence& s);

  SchedulerConfig config_;
  KvCache& kv_;
  std::unordered_map<Epoch, std::unique_ptr<Sequence>> sequences_;
  std::vector<std::unique_ptr<Sequence>> finished_;  // ended, with rows in flight
  std::set<Sequence*, Before> waiting_;
  std::vector<Sequence*> running_;  // in order of admission
  std::vector<Lane> free_lanes_;
  std::vector<uint8_t> held_;    // [max_owners]
  std::vector<Flight> flights_;  // [max_in_flight], a circle
  uint32_t flights_first_ = 0;
  uint32_t flights_count_ = 0;
  uint32_t num_paused_ = 0;
  uint64_t next_step_ = 1;
  uint64_t next_serial_ = 1;
  Nanos window_ends_ = kNever;            // of the batching window, while idle with company awaited
  Nanos next_deadline_ = kNever;          // not later than the earliest deadline of a live sequence
  std::vector<Epoch> complete_at_start_;  // resumed with nothing left to sample; expire() ends them
  std::vector<Sequence*> scratch_;        // of one call at a time
  std::vector<Sequence*> passed_;         // of admit()
  SchedulerStats stats_;
};

}  // namespace ringmaster::gpu_worker
