// Who gives up blocks or a lane when there are too few.
#include <algorithm>

#include "gpu-worker/schedule/scheduler.h"

namespace ringmaster::gpu_worker {

// Makes room for the next token of a running sequence. The victim can be `s` itself. The order of worse() has
// a best element, which is never a victim and fits the pool (checked at submit), so somebody always finishes.
bool Scheduler::grow(Sequence& s, uint32_t positions) {
  if (kv_.extend(s.kv, positions)) return true;
  const uint32_t need = kv_.blocks_for(positions) - static_cast<uint32_t>(s.kv.blocks.size());
  // Blocks of sequences that end with a step in flight come back by themselves; nobody is preempted for them.
  uint32_t ending = 0;
  for (const Sequence* other : running_) {
    if (fully_planned(*other)) ending += static_cast<uint32_t>(other->kv.blocks.size());
  }
  while (kv_.available() + kv_.releasing() + ending < need) {
    Sequence* victim = pick_victim(/*running_too=*/true, nullptr);
    if (victim == nullptr) return false;
    preempt(*victim);
    if (victim == &s) return false;
  }
  return kv_.extend(s.kv, positions);  // fails while the steps that touch the victims' blocks are out
}

bool Scheduler::worse(const Sequence& a, const Sequence& b) const {
  const bool a_runs = a.state == SequenceState::kRunning;
  const bool b_runs = b.state == SequenceState::kRunning;
  if (a_runs != b_runs) return b_runs;
  if (a.priority != b.priority) return a.priority < b.priority;
  if (config_.victims == VictimPolicy::kLeastProgress && a.planned != b.planned) return a.planned < b.planned;
  return Before{}(&b, &a);
}

Sequence* Scheduler::pick_victim(bool running_too, const Sequence* spared) const {
  Sequence* worst = nullptr;
  for (const auto& [epoch, owned] : sequences_) {
    Sequence* s = owned.get();
    if (s == spared || !s->resident() || fully_planned(*s)) continue;
    if (!running_too && s->state == SequenceState::kRunning) continue;
    if (worst == nullptr || worse(*s, *worst)) worst = s;
  }
  return worst;
}

// Its tokens stay; what is in flight still arrives and counts. It goes back to its old place in the line.
void Scheduler::preempt(Sequence& s) {
  ++stats_.preemptions;
  ++s.preemptions;
  kv_.release(s.kv, s.last_step);
  s.computed = s.planned = 0;
  if (s.rows_in_flight == 0) free_lane(s);
  if (s.state != SequenceState::kRunning) return;
  leave_lists(s);
  s.state = SequenceState::kWaiting;
  waiting_.insert(&s);
  settle(s);
}

// A paused sequence keeps its blocks when it loses its lane: taking another one costs a copy of its ids, no
// compute.
Sequence* Scheduler::pick_lane_holder() const {
  Sequence* worst = nullptr;
  for (const auto& [epoch, s] : sequences_) {
    if (s->state != SequenceState::kPaused || !s->lane || s->rows_in_flight > 0) continue;
    if (worst == nullptr || worse(*s, *worst)) worst = s.get();
  }
  return worst;
}

}  // namespace ringmaster::gpu_worker
