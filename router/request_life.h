// What happens to a request from its Generate to its one ending: admission, placement, resuming, cancelling,
// deadlines, vanished clients, lost workers. All decisions about requests are here; the states themselves are
// guarded by RequestTable, the bytes are made by Replies, and pieces of streams are passed on by
// StreamForwarder.
//
// Sending may find out that a peer is gone; that is handled by the Router afterwards, through client_lost()
// and worker_lost(), never inside a change. Placing waiting requests is likewise left to the end of each
// turn. Thread: the router's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "router/counters.h"
#include "router/placement.h"
#include "router/replies.h"
#include "router/request_table.h"
#include "router/worker_registry.h"
#include "schemas/codec.h"

namespace ringmaster::router {

struct RequestLimits {
  uint32_t max_live = 4096;
  size_t max_ended = 16'384;              // endings kept for clients that lost them
  size_t max_waiting_bytes = 256u << 20;  // prompts held while no worker has room
  Nanos place_limit = 10 * kSecond;       // longest wait for a worker with room
  Nanos end_limit = 2 * kSecond;          // a tokenizer-worker answers End or Resend within this
  Nanos linger = 30 * kSecond;  // tokenizer-workers keep an ended stream that long for acknowledgements
};

class RequestLife {
 public:
  RequestLife(RequestTable& table, WorkerRegistry& registry, Placer& placer, Replies& replies,
              Counters& counters, const RequestLimits& limits, uint32_t incarnation, uint64_t random_seed);

  // ---- from clients ----
  // `bytes` is the message that holds `request`.
  void generate(std::string_view route, const msg::Generate& request, actor::Bytes bytes, Nanos now);
  // Error: too many at once; none of them counts.
  Status acks(std::string_view route, const msg::Acks& message, Nanos now);
  void cancel(std::string_view route, const msg::Cancel& message, Nanos now);
  void client_heard(std::string_view route, Nanos now);

  // ---- from the forwarder ----
  // REQUIRES: the request is current (live, or its repetition awaited) and owned by the sender.
  void worker_ended(Request& request, const msg::Done& done, Nanos now);

  // ---- faults and time ----
  void client_lost(std::string_view route, bool unreachable, Nanos now);
  void worker_lost(const Worker& worker, Nanos now);
  void pair_lost(const Worker& tokenizer, std::string_view gpu_worker, Nanos now);
  void run_due(Nanos now);
  void place_waiting(Nanos now);
  void refuse_new(bool refuse) { refusing_ = refuse; }
  void end_all(const Ending& ending, Nanos now);

  size_t waiting() const { return waiting_.size(); }
  size_t waiting_bytes() const { return waiting_bytes_; }

 private:
  using WaitingKey = std::tuple<int, Epoch>;  // urgent first, then in order of arrival
  static WaitingKey waiting_key(const Request& r) { return {-r.priority, r.epoch}; }

  Status admit(const msg::Generate& request) const;
  void resume(Request& r, std::string_view route, const msg::Generate& request, Nanos now);
  void replay_ending(Request& r, uint32_t next_token, uint64_t text_offset, Nanos now);
  bool try_place(Request& r, const Placement& place, actor::Bytes generate, Nanos now);
  void stop_waiting(Request& r);

  void end(Request& r, Ending ending, Nanos now);
  void finish(Request& r, Ending ending, Nanos now);
  void lost(Request& r, std::string why, Nanos now);
  bool enter(Request& r, State to);
  void close(Request& r, Nanos now);
  void forget_ended(Request& r);
  void drop_oldest_endings();

  Ending not_placed() const;
  Nanos expiry(const Request& r) const;
  void set_due(Request& r);
  void on_due(Request& r, Nanos now);

  RequestTable& table_;
  WorkerRegistry& registry_;
  Placer& placer_;
  Replies& replies_;
  Counters& counters_;
  RequestLimits limits_;
  Epoch next_epoch_;
  uint64_t random_;
  bool refusing_ = false;
  std::set<WaitingKey> waiting_;
  size_t waiting_bytes_ = 0;
  std::deque<Epoch> ended_order_;
  std::vector<AckToForward> ack_scratch_, batch_scratch_;
};

}  // namespace ringmaster::router
