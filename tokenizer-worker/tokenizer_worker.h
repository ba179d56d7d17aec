// The tokenizer-worker as an actor towards the router: registers, reports, attaches to the gpu-workers it is
// told of, answers tokenize queries, drains. Everything about a request is Requests.
//
// Of a turn of the loop: receive() for each message, poll() for results of the threads and for tokens,
// run_timers(), flush(). Thread: the stream thread. Everything referred to outlives this.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actor/actor.h"
#include "schemas/codec.h"
#include "tokenizer-worker/counters.h"
#include "tokenizer-worker/link_attacher.h"
#include "tokenizer-worker/requests.h"

namespace ringmaster::tokenizer_worker {

struct WorkerIdentity {
  std::string name;  // "tokenizer-worker.0"
  int pid = 0;
  uint64_t instance = 0;  // random: tells a restarted worker from its former self
  std::string model;
  uint64_t weights_hash = 0;
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;
  uint32_t max_live = 0;
};

struct WorkerTimes {
  Nanos heartbeat = 500 * kMillisecond;  // a quarter of router.worker_timeout
  Nanos drain = 30 * kSecond;            // supervisor.drain_timeout
  Nanos register_again = kSecond;        // while the router has not answered
  Nanos attach_again = 500 * kMillisecond;
};

class TokenizerWorker : public actor::Actor {
 public:
  TokenizerWorker(WorkerIdentity identity, const WorkerTimes& times, Requests& requests, EncodePool& pool,
                  RingLinks& links, Attacher& attacher, actor::Outbox& outbox, Counters& counters);

  void receive(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) override;
  Nanos run_timers(Nanos now) override;

  // Results of the threads, tokens of the gpu-workers; true when there was work or may be more.
  bool poll(Nanos now);
  // A gpu-worker may have died.
  void check_peers(Nanos now);
  // Everything that became available in this turn goes out together.
  void flush(Nanos now);

  // First call: no new requests, finish what runs within the drain limit. Second: end what runs now.
  void drain(Nanos now);
  // After drain(): nothing runs and everything is sent, or the limit has passed. To be asked after flush().
  bool drained() const;
  bool registered() const { return incarnation_ != 0; }

 private:
  // A gpu-worker that the router told us of.
  struct Wanted {
    enum class State { kToAttach, kAttaching, kLinked, kBarred };
    std::string name;
    uint64_t instance = 0;
    std::string ring_socket;
    State state = State::kToAttach;
    Nanos try_at = 0;
  };

  void on_gpu_workers(const msg::GpuWorkers& message, Nanos now);
  void want(const msg::GpuWorker& listed, Nanos now);
  Wanted* wanted(std::string_view name, uint64_t instance);
  void attach_wanted(Nanos now);
  void on_attached(Attached attached, Nanos now);
  void handle_lost(Nanos now);

  void on_query(const msg::TokenizeQuery& query, actor::Bytes message);
  void answer(uint64_t tag, const Result<std::vector<TokenId>>& ids);
  void forget_queries();
  void audit(uint64_t tag);

  void send_register();
  void send_heartbeat();
  void send_linked(std::string_view gpu_worker, uint64_t gpu_instance, bool up);
  template <typename Body>
  void send(msg::RouterBody type, flatbuffers::Offset<Body> body);

  const WorkerIdentity identity_;
  const WorkerTimes times_;
  Requests& requests_;
  EncodePool& pool_;
  RingLinks& links_;
  Attacher& attacher_;
  actor::Outbox& outbox_;
  Counters& counters_;
  flatbuffers::FlatBufferBuilder builder_;

  uint32_t incarnation_ = 0;  // of the router that knows us; 0: none
  uint32_t last_incarnation_ = 0;
  bool announce_links_ = false;  // registered anew: the router does not know our links
  Nanos register_at_ = 0;
  Nanos heartbeat_at_ = 0;
  std::vector<Wanted> wanted_;
  // Jobs that the attacher has. They outlast the list of the router: a second one for the same gpu-worker
  // would take a second slot, which only our end gives back.
  std::vector<std::pair<std::string, uint64_t>> attaching_;
  // Our number -> the router's tag, which a successor uses again.
  std::unordered_map<uint64_t, uint64_t> queries_;
  uint64_t next_query_ = 1;
  bool draining_ = false;
  Nanos drain_until_ = kNever;
  bool drain_over_ = false;  // the limit has passed: nothing is waited for any more
};

}  // namespace ringmaster::tokenizer_worker
