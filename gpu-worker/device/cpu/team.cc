#include "gpu-worker/device/cpu/team.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace ringmaster::gpu_worker {
namespace {

// Inside a program: pieces take a few microseconds, so a member that has waited this long has lost its
// partner's core; burning its own would only take it from whoever else is there.
constexpr Nanos kPhaseSpin = 30 * kMicrosecond;
// Between programs: about the time from the end of one step to the start of the next when the pipeline is
// full.
constexpr Nanos kProgramSpin = 50 * kMicrosecond;
// Longest sleep without looking again; every wake is also signalled.
constexpr Nanos kLook = 100 * kMillisecond;

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  const timespec timeout{.tv_sec = 0, .tv_nsec = kLook};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Waits until satisfied(word): spins, then sleeps, announced in `sleepers` so that nobody makes a system call
// for a waiter that is awake. Pairs with: changes of `word` followed by a look at `sleepers`, both
// sequentially consistent.
template <typename Satisfied>
void wait_for(std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers, Nanos spin, Satisfied satisfied) {
  if (satisfied(word.load(std::memory_order_acquire))) return;
  const Nanos until = monotonic_now() + spin;
  while (monotonic_now() < until)
    if (satisfied(word.load(std::memory_order_acquire))) return;
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  for (uint32_t seen; !satisfied(seen = word.load(std::memory_order_seq_cst));) futex_wait(word, seen);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

Team::Team(unsigned threads) {
  for (unsigned i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { helper(i); });
}

Team::~Team() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(2, std::memory_order_seq_cst);
  futex_wake_all(generation_);
  for (std::thread& thread : helpers_) thread.join();
}

void Team::run(const Program& program, size_t max_phases) {
  if (num_phases_ < max_phases) {
    phases_ = std::make_unique<Phase[]>(max_phases);
    num_phases_ = max_phases;
  }
  for (size_t i = 0; i < max_phases; ++i) {
    phases_[i].next.store(0, std::memory_order_relaxed);
    phases_[i].done.store(0, std::memory_order_relaxed);
  }
  program_ = &program;
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_helpers_.load(std::memory_order_seq_cst) > 0) futex_wake_all(generation_);
  Member self(*this, 0);
  program(self);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  wait_until_empty();
}

void Team::wait_until_empty() {
  wait_for(inside_, waiting_for_empty_, kPhaseSpin, [](uint32_t inside) { return inside == 0; });
}

// Counts this helper in, unless the program was closed meanwhile: either we see the closed generation, or
// run() sees us.
bool Team::enter(uint32_t generation) {
  inside_.fetch_add(1, std::memory_order_seq_cst);
  if (generation_.load(std::memory_order_seq_cst) == generation) return true;
  leave();
  return false;
}

void Team::leave() {
  if (inside_.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
      waiting_for_empty_.load(std::memory_order_seq_cst) > 0)
    futex_wake_all(inside_);
}

void Team::helper(unsigned index) {
  uint32_t last = 0;
  for (;;) {
    wait_for(generation_, sleeping_helpers_, kProgramSpin, [&](uint32_t generation) {
      return (generation % 2 == 1 && generation != last) || stop_.load(std::memory_order_relaxed);
    });
    if (stop_.load(std::memory_order_relaxed)) return;
    const uint32_t generation = generation_.load(std::memory_order_seq_cst);
    if (generation % 2 == 0 || !enter(generation)) continue;
    last = generation;
    Member self(*this, index);
    (*program_)(self);
    leave();
  }
}

void Team::Member::finish(Phase& phase, uint32_t mine, uint32_t total) {
  if (mine > 0 && phase.done.fetch_add(mine, std::memory_order_seq_cst) + mine == total &&
      phase.sleepers.load(std::memory_order_seq_cst) > 0)
    futex_wake_all(phase.done);
  wait_for(phase.done, phase.sleepers, kPhaseSpin, [total](uint32_t done) { return done == total; });
}

}  // namespace ringmaster::gpu_worker
