// The client's side of docs/protocol.md without socket, clock and waiting: streams, acknowledgements, pings,
// resumes, and the events that the caller takes. Client (client.cc) puts it on ZeroMQ; the cluster simulation
// (tests/simulate) on the in-memory transport. Not public.
//
// Invariants
//   - the events of a stream are Accepted (unless it is refused), pieces without gaps or repeats, one Ending
//   - only what take_event() has handed out is acknowledged
//   - no message is relied upon: a stream that says nothing for Options::ask_again_after is asked for again,
//     which is a resume, so a lost Generate, acknowledgement, piece or ending costs time and nothing else
//
//   - between a Generate and its Accepted no piece and no ending is taken: it may be of a former life of the
//     request, which the cluster has forgotten, and its new life continues from what the Generate said
//
// Thread: the client's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/cpp/ringmaster.h"
#include "client/cpp/stream_state.h"
#include "client/cpp/wire.h"

namespace ringmaster::client {

class Session {
 public:
  // Never blocks. An error costs the message and nothing else.
  using Send = std::function<Status(msg::Bytes)>;

  Session(const Options& options, Send send) : options_(options), send_(std::move(send)) {}

  Status start(Uid uid, Request request, Nanos now);
  Status cancel(Uid uid);
  // A query outside of streams; its answer lies in tokenized, status or rejected.
  Status tokenize(uint64_t tag, const Request& request);
  Status query_status();
  Status query_books(uint64_t tag);

  void receive(msg::Bytes message, Nanos now);
  // Acknowledges, pings and asks again as far as it is due; returns when it wants to be called next.
  Nanos keep_alive(Nanos now);

  // The next event of any stream. Taking a piece is what acknowledges it.
  std::optional<Event> take_event();
  bool has_events() const { return !events_.empty(); }
  size_t open_streams() const { return streams_.size() + queued_endings_; }  // whose Ending is not taken yet
  void end_all(Code code, const std::string& message);

  std::optional<Error> rejected;  // answer to a message that was not allowed or could not be read
  std::optional<ClusterStatus> status;
  std::unordered_map<uint64_t, Result<std::vector<TokenId>>> tokenized;  // by tag
  std::optional<std::pair<uint64_t, Result<ClusterBooks>>> books;        // of the last query that was answered

 private:
  void on_incarnation(uint32_t seen, Nanos now);
  void on_accepted(const msg::Accepted& accepted, Nanos now);
  void on_chunk(const msg::Chunk& chunk, Nanos now);
  void on_done(const msg::Done& done, Nanos now);
  void unknown(Uid uid);
  void on_tokenize_reply(const msg::TokenizeReply& reply);

  void resume(Uid uid, StreamState& stream, Nanos now);
  Nanos next_ask(const StreamState& stream) const;
  void acknowledge(Nanos now);
  void handed_out(Uid uid, const Piece& piece);
  void end(Uid uid, Ending ending);

  const Options options_;
  const Send send_;
  flatbuffers::FlatBufferBuilder builder_;
  std::map<Uid, StreamState> streams_;  // in an order that repeats from run to run
  std::deque<Event> events_;
  size_t queued_endings_ = 0;  // in `events_`
  uint32_t incarnation_ = 0;
  Nanos heard_at_ = 0;
  Nanos pinged_at_ = 0;
  Nanos acked_at_ = 0;
};

}  // namespace ringmaster::client
