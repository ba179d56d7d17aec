// A tokenizer-worker and a gpu-worker, reduced to their rings, in full traffic both ways, and one of them (at
// times both) killed again and again at random moments, also while a slot changes hands. The survivor notices
// by itself, a successor takes the place. 100 kills as a test, 1,000 as a long run (scripts/soak ring-kills).
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace ringmaster::shm {

struct KillRun {
  std::string fault;  // empty: everything held
  uint64_t kills = 0;
  uint64_t tokenizers_killed = 0, gpus_killed = 0;
  uint64_t idle_kills = 0;  // of a process that had not yet read anything: mostly in the hand-over
  uint64_t links = 0, records = 0;
  uint64_t lost_unpublished = 0;  // begun, but the writer died before commit: these may be lost
  Nanos slowest_notice = 0;       // from the kill until all that was committed had been read
  double seconds = 0;
};

// What is checked for every link (one direction, from one incarnation to another):
//   - records arrive from the first on, each once, whole, none of another link;
//   - all that was committed before the writer's death is read by the surviving reader, and nothing beyond
//     what was begun;
//   - after each death traffic goes on within 20 s.
KillRun run_kills(uint64_t kills, uint64_t seed);

}  // namespace ringmaster::shm
