// One request as the scheduler sees it: its ids, its limits, how far it is computed, what it holds. Plain
// data, owned and changed by Scheduler alone; others read it through Scheduler::find() to replay tokens.
//
// Positions and tokens of one sequence, left to right (two steps in flight in this drawing):
//
//   0            computed           tokens.size()   + samples_in_flight
//   |---- KV there ----|-- KV being written --|...|
//                                       planned
//
// A position below `computed` was written by a retired step, one below `planned` by a retired or submitted
// one. The ids at [tokens.size(), tokens.size() + samples_in_flight) are known to the device only
// (kFromLane).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/sampling.h"
#include "gpu-worker/kv/kv_cache.h"
#include "gpu-worker/schedule/step_plan.h"

namespace ringmaster::gpu_worker {

// A request as it comes through the door. Every field is checked by Scheduler::submit().
struct NewSequence {
  Epoch epoch = 0;
  uint32_t owner = 0;  // who gets its tokens (the slot of its tokenizer-worker); repeated in every event
  std::vector<TokenId> ids;   // prompt, then output ids that the client already has (a resumed stream)
  uint32_t prompt_count = 0;  // of `ids`
  Sampling sampling;
  std::array<uint64_t, 2> cache_salt{};  // blocks are shared only under equal salt
  std::vector<TokenId> stop_ids;
  uint32_t min_tokens = 0;  // a stop id counts from output token number min_tokens on
  uint32_t max_tokens = 0;  // output tokens in all, those in `ids` included; 0: as many as fit
  uint32_t granted = 0;     // output tokens it may produce before grant() raises the limit
  uint32_t logprobs = 0;    // as in LaneOpen
  int32_t priority = 0;     // higher first
  Nanos deadline = kNever;
};

enum class SequenceState : uint8_t {
  kWaiting,   // in line for a lane (and for blocks, unless it kept them while paused)
  kRunning,   // has lane and blocks; has a row in every step it can have one in
  kPaused,    // out of grant, or its owner is held; keeps lane and blocks until somebody else needs them
  kFinished,  // ended; still here only because a step in flight has a row of it
};

struct Sequence {
  Epoch epoch = 0;
  uint32_t owner = 0;
  SequenceState state = SequenceState::kWaiting;
  std::vector<TokenId> tokens;  // prompt, then every output id known on the host
  uint32_t prompt_count = 0;
  Sampling sampling;
  std::vector<TokenId> stop_ids;  // sorted
  uint32_t min_tokens = 0;
  uint32_t max_tokens = 0;  // resolved: never 0, fits context and pool
  uint32_t granted = 0;
  uint32_t stop_at = UINT32_MAX;  // output tokens after which a stop string ended it
  uint32_t logprobs = 0;
  int32_t priority = 0;
  Nanos arrival = 0;
  Nanos deadline = kNever;
  Nanos order = 0;      // place in line: arrival - priority * ageing_interval; smaller first
  uint64_t serial = 0;  // of submission; breaks ties

  KvSequence kv;  // block table and key chain; empty table = not resident
  std::optional<Lane> lane;
  uint32_t computed = 0;
  uint32_t planned = 0;
  uint32_t samples_in_flight = 0;
  uint32_t rows_in_flight = 0;
  uint64_t last_step = 0;    // the last step that has a row of it
  uint32_t high_water = 0;   // most positions ever planned: below it, work is recomputation
  uint32_t preemptions = 0;  // rows planned before a preemption no longer move `computed`
  uint32_t skipped = 0;      // admissions that passed it while it did not fit

  uint32_t cached_tokens = 0;  // prompt tokens found in the prefix index at the first start
  Nanos first_step_at = 0;     // 0: never
  Nanos first_token_at = 0;
  Nanos last_token_at = 0;

  uint32_t outputs() const { return static_cast<uint32_t>(tokens.size()) - prompt_count; }
  uint32_t outputs_planned() const { return outputs() + samples_in_flight; }
  uint32_t length_planned() const { return static_cast<uint32_t>(tokens.size()) + samples_in_flight; }
  bool resident() const { return !kv.blocks.empty(); }
};

}  // namespace ringmaster::gpu_worker
