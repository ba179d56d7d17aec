// Where a request runs: the least loaded gpu-worker that some tokenizer-worker is linked to, then the least
// loaded of those tokenizer-workers. Load is what the router itself has placed and not yet seen end (always
// current), then the share of blocks in use as last reported, then whose turn it is, so that equals share the
// work (pain.md RTE-03). Pure over the registry but for `last_placed`. Thread: the router's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "router/worker_registry.h"

namespace ringmaster::router {

struct Placement {
  WorkerPtr tokenizer;
  WorkerPtr gpu;
};

class Placer {
 public:
  explicit Placer(const WorkerRegistry& registry) : registry_(registry) {}

  // Nothing: no ready pair, or every pair is full (any_ready() tells which).
  std::optional<Placement> place();
  // Whether some pair is ready, full or not: this is the cluster's readiness.
  bool any_ready() const;
  // For work without a gpu-worker (Tokenize): the tokenizer-worker with the fewest requests. Null: none is
  // usable.
  WorkerPtr least_busy_tokenizer();

 private:
  WorkerPtr best_tokenizer(const Worker& gpu) const;

  const WorkerRegistry& registry_;
  uint64_t turn_ = 0;
};

}  // namespace ringmaster::router
