// The requests the router knows, each in exactly one state, and the clients they belong to. The one state
// machine that guarantees one ending a request is enter(): every change of state passes through it, and no
// state leads out of kEnded.
//
//   kWaiting --> kRunning --> kEnding --> kEnded --> (erased)
//      |            |                        ^
//      +------------+------------------------+
//
//   kWaiting  admitted, no worker has room yet; the router holds the Generate
//   kRunning  assigned to a pair of workers
//   kEnding   End was sent to the tokenizer-worker; its Done is awaited for a bounded time
//   kEnded    the terminal message exists (`done`); kept so that a client that lost it can have it again
//
// Beside the state runs whether the client is there (`orphan_since`). Timers: each request has one due time,
// what is due then follows from its state (router/request_life.cc). Sends nothing, decides nothing else.
// Thread: the router's. References stay valid until erase().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "actor/timers.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "router/worker_registry.h"
#include "schemas/codec.h"

namespace ringmaster::router {

enum class State : uint8_t { kWaiting, kRunning, kEnding, kEnded };
std::string_view name(State state);
// The state machine's arrows.
constexpr bool allowed(State from, State to) {
  switch (from) {
    case State::kWaiting:
      return to == State::kRunning || to == State::kEnded;
    case State::kRunning:
      return to == State::kEnding || to == State::kEnded;
    case State::kEnding:
      return to == State::kEnded;
    case State::kEnded:
      return false;
  }
  return false;
}

struct Ending {
  msg::FinishReason reason = msg::FinishReason::error;
  Code code = Code::kOk;
  std::string message;
};

struct Request;

// A client that has requests here. Its lease is renewed by every message it sends.
struct Client {
  std::string route;
  Nanos last_seen = 0;
  bool gone = false;  // lease run out or unreachable; back with its next message
  std::vector<Request*> requests;
  std::list<Client*>::iterator lease;  // place in the order of last_seen; REQUIRES: !gone
};

struct Request {
  Uid uid;
  Epoch epoch = 0;
  uint64_t seed = 0;
  std::string tenant;
  int8_t priority = 0;
  Nanos received_at = 0;
  Nanos assigned_at = 0;  // 0: never
  Nanos deadline_at = 0;  // 0: none
  Nanos grace = 0;        // how long it is kept without its client

  WorkerPtr tokenizer;  // from kRunning on
  WorkerPtr gpu;
  std::vector<std::byte> generate;  // kWaiting only: the client's message

  // What has been passed on to the client, and what of it the client has acknowledged.
  uint32_t sent_tokens = 0, acked_tokens = 0;
  uint64_t sent_text = 0, acked_text = 0;

  Nanos orphan_since = 0;    // 0: the client is there
  bool lost_pieces = false;  // pieces were sent to a route that was gone

  Ending ending;     // kEnding: what was asked for; kEnded: what it was
  Nanos end_by = 0;  // kEnding: the router ends it itself then
  Nanos ended_at = 0;
  std::vector<std::byte> done;  // kEnded: the finished terminal message
  bool made_here = false;       // kEnded: the router made the ending, not the tokenizer-worker
  bool kept_by_worker = false;  // kEnded: the tokenizer-worker still has pieces for a resume
  Nanos replay_by = 0;  // kEnded: a resumed client waits for the worker's repetition until then; 0: no

  State state() const { return state_; }
  bool live() const { return state_ != State::kEnded; }
  const std::string& route() const { return client_->route; }
  Client& client() const { return *client_; }
  bool all_acked() const { return acked_tokens >= sent_tokens && acked_text >= sent_text; }

 private:
  friend class RequestTable;
  State state_ = State::kWaiting;
  Client* client_ = nullptr;
  size_t client_index_ = 0;
};

class RequestTable {
 public:
  // REQUIRES: neither uid nor epoch is in the table.
  Request& add(Uid uid, Epoch epoch, std::string_view route, Nanos now);
  Request* find(Epoch epoch) const;
  Request* find(Uid uid) const;
  // Changes the state, or returns false and changes nothing: the machine has no such arrow, the caller has a
  // bug.
  [[nodiscard]] bool enter(Request& request, State to);
  void erase(Request& request);

  size_t live() const { return live_; }
  size_t size() const { return by_epoch_.size(); }
  // Epochs of all requests for which `wanted` holds; to be looked up again one by one, since handling one may
  // erase others.
  template <typename Predicate>
  std::vector<Epoch> select(Predicate wanted) const {
    std::vector<Epoch> out;
    for (const auto& [epoch, request] : by_epoch_)
      if (wanted(*request)) out.push_back(epoch);
    return out;
  }

  void set_due(Request& request, Nanos due) { due_.set(request.epoch, due); }
  Nanos next_due() const { return due_.next(); }
  Request* take_due(Nanos now);  // a request whose time has come, with its due time cleared; null: none

  // Clients.
  void attach(Request& request, std::string_view route, Nanos now);  // moves it to this client
  Client* find_client(std::string_view route) const;
  // Renews the lease. Null: a client without requests. `gone` is left for the caller to clear with revive().
  Client* touch(std::string_view route, Nanos now);
  void set_gone(Client& client);
  void revive(Client& client, Nanos now);
  Client* longest_silent() const {
    return leases_.empty() ? nullptr : leases_.front();
  }                         // gone ones excluded
  void forgive(Nanos now);  // all leases start anew
  size_t clients() const { return clients_.size(); }
  size_t clients_gone() const { return clients_.size() - leases_.size(); }

 private:
  void detach(Request& request);

  std::unordered_map<Epoch, std::unique_ptr<Request>> by_epoch_;
  std::unordered_map<Uid, Request*> by_uid_;
  actor::Timers<Epoch> due_;
  std::unordered_map<std::string, std::unique_ptr<Client>, StringHash, std::equal_to<>> clients_;
  std::list<Client*> leases_;  // oldest first
  size_t live_ = 0;
};

}  // namespace ringmaster::router
