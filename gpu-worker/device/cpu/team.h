// The compute threads of a device: the caller and its helpers run the same program, a sequence of phases;
// each phase is a number of items that members claim in pieces, largest first, until none is left. A member
// that lost its core to another process holds back nobody but the piece it has in hand, and one that comes
// late or not at all is not waited for: what counts is that a phase's items are done. Who computed an item
// must not matter to its result.
//
// Waiting is a short spin, then a futex; helpers without a program sleep. Thread: run() from one thread at a
// time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace ringmaster::gpu_worker {

class Team {
 public:
  class Member;
  using Program = std::function<void(Member&)>;

  // threads >= 1, the caller included.
  explicit Team(unsigned threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  unsigned size() const { return static_cast<unsigned>(helpers_.size()) + 1; }
  // Runs `program` on this thread and on the helpers that come; returns when all phases are done and every
  // helper that came has left. REQUIRES: every member goes through the same phases, at most max_phases.
  void run(const Program& program, size_t max_phases);

 private:
  struct alignas(64) Phase {
    std::atomic<uint32_t> next{0};
    std::atomic<uint32_t> done{0};
    std::atomic<uint32_t> sleepers{0};
  };
  void helper(unsigned index);
  bool enter(uint32_t generation);
  void leave();
  void wait_until_empty();

  std::vector<std::thread> helpers_;
  std::unique_ptr<Phase[]> phases_;
  size_t num_phases_ = 0;
  const Program* program_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};  // odd: a program is open to helpers
  std::atomic<uint32_t> sleeping_helpers_{0};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> inside_{0};  // helpers in the program
  std::atomic<uint32_t> waiting_for_empty_{0};
};

class Team::Member {
 public:
  Member(Team& team, unsigned index) : team_(team), index_(index) {}
  unsigned index() const { return index_; }  // below size(); for buffers of a thread's own

  // The next phase: work(begin, end) over disjoint pieces of [0, items), at least `grain` each (but the
  // last). Returns when all items are done by whomever, and their effects are visible.
  template <typename Work>
  void for_each(size_t items, size_t grain, Work&& work) {
    Phase& phase = team_.phases_[phase_++];
    const auto total = static_cast<uint32_t>(items);
    uint32_t mine = 0, begin = phase.next.load(std::memory_order_relaxed);
    while (begin < total) {
      const auto share = static_cast<uint32_t>((total - begin) / (team_.size() + 1));
      const uint32_t end = std::min(total, begin + std::max(share, static_cast<uint32_t>(grain)));
      if (!phase.next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      work(size_t{begin}, size_t{end});
      mine += end - begin;
      begin = phase.next.load(std::memory_order_relaxed);
    }
    finish(phase, mine, total);
  }

 private:
  static void finish(Phase& phase, uint32_t mine, uint32_t total);

  Team& team_;
  unsigned index_;
  size_t phase_ = 0;
};

}  // namespace ringmaster::gpu_worker
