// Every message the router sends, built and handed to the transport here. Knows how messages look, not when
// they are due. A peer that turns out to be unreachable is remembered, not handled: sending happens in the
// middle of changes to the tables, so the router takes the lost ones afterwards (take_lost_*) and handles
// each once. A peer whose queue is full (by design a bug, counted) has as little of the message as one that
// is gone, so it counts as lost too: a client is sent what it missed once it speaks again, a worker registers
// anew. Only assign(), tokenize_query() and audit() leave a full worker alone, for their caller tries again or
// says so. Thread: the router's. One builder is reused; what is large gets its own so that the kept one stays
// small.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actor/actor.h"
#include "router/counters.h"
#include "router/request_table.h"
#include "router/worker_registry.h"
#include "schemas/codec.h"

namespace ringmaster::router {

// The router's two doors, as channel numbers of its transport.
inline constexpr actor::Channel kClientChannel = 0;
inline constexpr actor::Channel kWorkerChannel = 1;

struct AckToForward {
  Worker* worker = nullptr;
  Epoch epoch = 0;
  uint32_t next_token = 0;
  uint64_t text_offset = 0;
};

class Replies {
 public:
  Replies(actor::Outbox& outbox, Counters& counters, uint32_t incarnation)
      : outbox_(outbox), counters_(counters), incarnation_(incarnation) {}

  // ---- to clients ----
  actor::Sent to_client(std::string_view route, actor::Bytes message);
  void accepted(const Request& request, bool resumed, uint32_t next_token);
  void refused(std::string_view route, Uid uid,
               const Error& error);  // Done of a Generate that was never accepted
  void rejected(std::string_view route, const Error& error);
  void pong(std::string_view route);
  void tokenize_reply(std::string_view route, uint64_t tag, const flatbuffers::Vector<uint32_t>* ids,
                      Code code, std::string_view message);
  // The terminal message as the client gets it: from an ending of the router's own, or a copy of the
  // worker's.
  std::vector<std::byte> make_done(const Request& request, const Ending& ending, Nanos now);
  std::vector<std::byte> copy_done(const msg::Done& done);
  // A Stream with these pieces and endings only.
  actor::Sent rebuilt(std::string_view route, const std::vector<const msg::Chunk*>& chunks,
                      const std::vector<const msg::Done*>& ends);

  // ---- to workers ----
  actor::Sent assign(const Request& request, actor::Bytes generate, uint32_t context_length);
  void acked(const std::vector<AckToForward>& acks);  // REQUIRES: all of one worker, not empty
  void resend(const Request& request, uint32_t next_token, uint64_t text_offset);
  void end(const Request& request, const Ending& ending);
  void forget(const Worker& worker, Epoch epoch);
  actor::Sent tokenize_query(const Worker& worker, uint64_t tag, const msg::Tokenize& query);
  actor::Sent audit(const Worker& worker, uint64_t tag);
  void gpu_workers(const Worker& tokenizer, const std::vector<WorkerPtr>& all);
  void registered(const Worker& gpu);
  void register_again(std::string_view peer, msg::WorkerKind kind);

  // Since the last call. A name may come more than once.
  std::vector<std::string> take_lost_clients() { return std::exchange(lost_clients_, {}); }
  std::vector<std::string> take_lost_workers() { return std::exchange(lost_workers_, {}); }  // routes

  flatbuffers::FlatBufferBuilder& fresh();  // for status.cc, which builds on its own

 private:
  actor::Sent offer_worker(std::string_view peer, actor::Bytes message);  // full is the caller's affair
  void to_worker(std::string_view peer, actor::Bytes message);

  actor::Outbox& outbox_;
  Counters& counters_;
  uint32_t incarnation_;
  flatbuffers::FlatBufferBuilder builder_{4096};
  std::vector<std::string> lost_clients_, lost_workers_;
};

}  // namespace ringmaster::router
