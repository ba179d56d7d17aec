// The router as an actor: opens every message at one of its two doors, rejects what is malformed, too new or
// at the wrong door, keeps workers registered, and hands everything about requests to RequestLife. Transport,
// clock and log file are the caller's (main.cc; tests run it on actor/memory_transport.h).
//
// Thread: one, the loop's. The Outbox outlives the router.
// Invariants: every accepted request gets exactly one Done; every queue here is bounded; a message that
// cannot be read changes nothing but a counter.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "actor/actor.h"
#include "base/config.h"
#include "router/audit.h"
#include "router/counters.h"
#include "router/placement.h"
#include "router/replies.h"
#include "router/request_life.h"
#include "router/request_table.h"
#include "router/stream_forwarder.h"
#include "router/tokenize_queries.h"
#include "router/worker_registry.h"

namespace ringmaster::router {

struct RouterOptions {
  uint32_t incarnation = 1;
  uint64_t random_seed = 0;  // of the seeds drawn for requests that bring none
  Nanos client_lease = 30 * kSecond;
  Nanos worker_timeout = 2 * kSecond;
  RequestLimits limits;

  static RouterOptions from(const ClusterConfig& config, uint32_t incarnation, uint64_t random_seed);
};

// At most a few lines a second about bad messages, however many arrive.
class LogLimiter {
 public:
  // Whether to write now; `suppressed` then tells how many were not written since the last.
  bool allow(Nanos now, uint64_t& suppressed);

 private:
  Nanos window_start_ = 0;
  int written_ = 0;
  uint64_t suppressed_ = 0;
};

class Router : public actor::Actor {
 public:
  Router(actor::Outbox& outbox, const RouterOptions& options);

  void receive(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) override;
  Nanos run_timers(Nanos now) override;

  // No new requests from now on; those still live at `until` are ended. Idempotent: the earlier time counts.
  void drain(Nanos until);
  bool drained() const { return draining_ && table_.live() == 0; }

  const RequestTable& table() const { return table_; }
  const WorkerRegistry& workers() const { return registry_; }
  const Counters& counters() const { return counters_; }
  const RequestLife& life() const { return life_; }
  const TokenizeQueries& tokenize_queries() const { return queries_; }
  bool ready() const { return placer_.any_ready(); }

 private:
  void from_client(std::string_view peer, actor::Bytes bytes, Nanos now);
  void dispatch_client(std::string_view peer, const msg::RouterMessage& message, actor::Bytes bytes,
                       Nanos now);
  void from_worker(std::string_view peer, actor::Bytes bytes, Nanos now);
  void reject(std::string_view peer, const Error& error, Nanos now);
  void reject_worker(std::string_view peer, const Error& error, Nanos now);

  void on_register(std::string_view peer, const msg::Register& message, Nanos now);
  void on_heartbeat(std::string_view peer, const msg::Heartbeat& message, Nanos now);
  void on_linked(const WorkerPtr& worker, const msg::Linked& message, Nanos now);
  void greet(const Worker& worker);
  void announce_gpu_workers();
  void lose_worker(const WorkerPtr& worker, std::string_view why, Nanos now);
  void status_reply(std::string_view peer, Nanos now);
  void settle(Nanos now);

  RouterOptions options_;
  Counters counters_;
  Replies replies_;
  WorkerRegistry registry_;
  RequestTable table_;
  Placer placer_;
  RequestLife life_;
  StreamForwarder forwarder_;
  TokenizeQueries queries_;
  Audits audits_;
  LogLimiter bad_messages_;
  Nanos promised_ = kNever;  // when run_timers() said it wanted to be called
  bool draining_ = false;
  Nanos drain_until_ = kNever;
};

}  // namespace ringmaster::router
