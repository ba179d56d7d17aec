// kill -9, again and again: one process of a real cluster (device fake, hash mode) is killed while streams
// run, and afterwards nothing may be wrong: the cluster serves again, every stream has ended once with right
// ids, and nothing of the dead process is left. A few rounds are a test (kill_rounds_test.cc), a hundred of
// each kind are `scripts/soak kills`. One thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace ringmaster::test {

// What may be killed; the name of the child, "supervisor" for the supervisor.
inline constexpr std::string_view kVictims[] = {"router", "tokenizer-worker.0", "gpu-worker.0", "supervisor"};

struct KillResult {
  int rounds = 0;
  // What was wrong, a line each: streams that ended twice, never or with a wrong id; service that did not
  // come back.
  std::vector<std::string> faults;
  // What was still there 2 s after the kill, or after the last stream had ended if that was later: processes,
  // sockets, memory files, entries of /dev/shm, descriptors, requests, blocks, files that hinder the next
  // start.
  std::vector<std::string> leftovers;
  // From the kill to the first right answer of a request sent afterwards; of the supervisor: from the next
  // `up`.
  std::vector<Nanos> back_after;
  uint64_t streams = 0;
  uint64_t worker_lost = 0;  // streams that the death ended, the rule for workers today
};

// `rounds` kills of `victim`, at moments drawn from `seed`. For the supervisor each round is a new `up` in
// the same state directory. Failures are results, not assertions.
KillResult kill_rounds(std::string_view victim, int rounds, uint32_t seed);

}  // namespace ringmaster::test
