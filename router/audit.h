// Audits on their way: the router writes down what it holds, asks every worker that speaks to it what that
// holds, and gives the client all answers in one AuditReply, at the latest after kAuditLimit; a worker that
// is dead or stopped is then without books. Compares nothing (rules: docs/audit.md). One at a time, and
// spaced, so that nobody can keep the workers counting instead of working. Thread: the router's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/counters.h"
#include "router/replies.h"
#include "router/request_life.h"
#include "router/request_table.h"
#include "router/tokenize_queries.h"
#include "router/worker_registry.h"
#include "schemas/codec.h"

namespace ringmaster::router {

// A worker answers at its next turn, some 100 us; on a host that is five times overloaded within 50 ms.
inline constexpr Nanos kAuditLimit = 500 * kMillisecond;
// Counting costs each worker about as much as a step of the fake device: at most a few percent of its time.
inline constexpr Nanos kAuditSpacing = 20 * kMillisecond;
// Answers that together leave room for the router's own in a message. 128 workers with full lists fit.
inline constexpr size_t kMaxAuditBytes = 15u << 20;

// An audit that waits for answers of workers.
struct OpenAudit {
  std::string route;
  uint64_t tag = 0;  // of the workers: ours, so that a late answer of a former audit is known
  Nanos due = 0;
  msg::AuditReplyT reply;
  std::vector<WorkerPtr> asked;  // [reply.workers]; null: not asked, or answered
  size_t unanswered = 0;
  size_t bytes = 0;  // of the answers
};

class Audits {
 public:
  Audits(const WorkerRegistry& registry, const RequestTable& table, const RequestLife& life,
         const TokenizeQueries& queries, Replies& replies, const Counters& counters, uint32_t incarnation)
      : registry_(registry),
        table_(table),
        life_(life),
        queries_(queries),
        replies_(replies),
        counters_(counters),
        incarnation_(incarnation) {}

  void ask(std::string_view route, const msg::AuditQuery& query, Nanos now);
  // One that nobody waits for is dropped.
  void answer(const Worker& from, const msg::Audited& answer);
  void run_due(Nanos now);
  Nanos next_due() const { return open_ ? open_->due : kNever; }

 private:
  msg::RouterBooksT own_books() const;
  void refuse(std::string_view route, uint64_t tag, Code code, const char* why);
  void finish();

  const WorkerRegistry& registry_;
  const RequestTable& table_;
  const RequestLife& life_;
  const TokenizeQueries& queries_;
  Replies& replies_;
  const Counters& counters_;
  const uint32_t incarnation_;
  std::optional<OpenAudit> open_;
  uint64_t next_tag_ = 1;
  Nanos next_at_ = 0;
};

}  // namespace ringmaster::router
