// One comparison of `ringmaster audit`: the snapshot, what is looked up in it, and the findings so far. The
// rules are functions over it, one file for each kind of process. Private to the audit (launcher/audit.h);
// one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/audit.h"

namespace ringmaster::launcher {

class Comparison {
 public:
  explicit Comparison(const AuditSnapshot& snapshot) : s_(snapshot) {}

  void add(std::string_view rule, std::string process, std::string thing, std::string expected,
           std::string found);
  void equal(std::string_view rule, const std::string& process, std::string thing, uint64_t expected,
             uint64_t found);
  std::vector<Finding> take() { return std::move(findings_); }

  const AuditSnapshot& snapshot() const { return s_; }
  const ProcessFacts* facts(std::string_view name) const;  // null: none of that name
  // What follows REQUIRES: snapshot().books.
  const client::ClusterBooks& books() const { return *s_.books; }
  const client::WorkerBooks* worker(std::string_view name) const;  // a dead one is none
  // A worker that the router does not know yet, but will: it, or the router, has only just started.
  bool registering(const ProcessFacts& process) const;
  bool registering(std::string_view name) const;
  // No request is live. A worker that has not met a new router yet still holds what belonged to the former.
  bool idle() const;

 private:
  const AuditSnapshot& s_;
  std::vector<Finding> findings_;
};

bool is_worker(const ProcessFacts& process);
// A worker that runs, and that the router does not know (or only its predecessor). REQUIRES: snapshot.books.
bool unregistered(const AuditSnapshot& snapshot, const ProcessFacts& process);

std::string text(uint64_t number);
std::string show(Epoch epoch);  // as people read it in logs: incarnation:counter
const client::StreamBooks* find_stream(const client::TokenizerWorkerBooks& books, Epoch epoch);
const client::SlotBooks* find_slot(const std::vector<client::SlotBooks>& slots, uint32_t number);

// ---- the rules ----

void compare_process(Comparison& c, const ProcessFacts& process);  // what the kernel says
// Slots and doorbells that a worker holds: `slots` of them, for `peers` at the other ends.
void compare_memory(Comparison& c, const ProcessFacts& process, uint64_t slots, uint64_t peers);
// These REQUIRE: c.snapshot().books.
void compare_router(Comparison& c);
void compare_tokenizer_worker(Comparison& c, const client::WorkerBooks& w,
                              const client::TokenizerWorkerBooks& books);
void compare_gpu_worker(Comparison& c, const client::WorkerBooks& w, const client::GpuWorkerBooks& books);

}  // namespace ringmaster::launcher
