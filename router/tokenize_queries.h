// Tokenize queries on their way: each gets exactly one TokenizeReply, from its tokenizer-worker or, when that
// dies or is late, from here. Bounded; all have the same patience, so they run out in order. Thread: the
// router's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "router/counters.h"
#include "router/placement.h"
#include "router/replies.h"
#include "schemas/codec.h"

namespace ringmaster::router {

inline constexpr size_t kMaxTokenizeQueries = 1024;
inline constexpr Nanos kTokenizeLimit = 10 * kSecond;

class TokenizeQueries {
 public:
  TokenizeQueries(Placer& placer, Replies& replies, Counters& counters)
      : placer_(placer), replies_(replies), counters_(counters) {}

  void ask(std::string_view route, const msg::Tokenize& query, Nanos now);
  // An answer that nobody waits for (late, or not of the worker that was asked) is dropped.
  void answer(const Worker& from, const msg::Tokenized& answer);
  void worker_lost(const Worker& worker);
  void run_due(Nanos now);
  Nanos next_due() const { return open_.empty() ? kNever : open_.begin()->second.due; }
  size_t open() const { return open_.size(); }
  std::vector<uint64_t> tags() const;  // as the workers know them

 private:
  struct Query {
    std::string route;
    uint64_t tag = 0;  // the client's; workers see the key of `open_`, which is unique
    WorkerPtr worker;
    Nanos due = 0;
  };
  void fail(const Query& query, Code code, std::string_view message);

  Placer& placer_;
  Replies& replies_;
  Counters& counters_;
  std::map<uint64_t, Query> open_;  // in order of asking, which is the order of `due`
  uint64_t next_tag_ = 1;
};

}  // namespace ringmaster::router
