// One run of the whole cluster from one seed, and what was found in it.
//
// A run: the cluster starts, clients ask, faults strike; then the network is calm and every process runs
// again, and every request must come to its one ending within a bound; then all lingers pass and nothing may
// be left. Invariants are checked after every event. What a run cannot show: a death inside a ring operation
// (single-stepped kills of the rings are in tests/shm), and threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tests/simulate/client_process.h"
#include "tests/simulate/world.h"

namespace ringmaster::simulate {

struct Outcome {
  std::string violation;  // empty: none
  Nanos at = 0;           // since the start of the run
  uint64_t events = 0;
  uint64_t digest = 0;
  uint64_t busiest_second = 0;  // events
  uint64_t deaths = 0;
  std::map<std::string, uint32_t> endings;  // "stop ok": 12

  bool ok() const { return violation.empty(); }
};

Outcome run(const Plan& plan, const Expectations& expectations, TraceSink trace = nullptr);

}  // namespace ringmaster::simulate
