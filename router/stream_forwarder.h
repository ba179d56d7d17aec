// Passes what tokenizer-workers have for clients on to them: the hot path, once for each token. A payload
// whose pieces all belong to requests that the sender owns and that are routed to this client goes out as the
// bytes it came in; otherwise it is rebuilt without the stale ones. Stale: an unknown epoch, another owner,
// another route (the client has resumed and will get it again by Resend), or past the ending. Books what was
// sent, and tells RequestLife of endings. Thread: the router's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "router/counters.h"
#include "router/replies.h"
#include "router/request_life.h"
#include "router/request_table.h"
#include "schemas/codec.h"

namespace ringmaster::router {

class StreamForwarder {
 public:
  StreamForwarder(RequestTable& table, RequestLife& life, Replies& replies, Counters& counters)
      : table_(table), life_(life), replies_(replies), counters_(counters) {}

  // Error: a payload that is not a Stream, or an ending without a known reason; it was dropped, the rest was
  // passed on.
  Status forward(const Worker& from, const msg::Streams& streams, Nanos now);

 private:
  Status forward_one(const Worker& from, const msg::ToClient& to, Nanos now);
  Request* current(const Worker& from, std::string_view route, Epoch epoch, const msg::Uid& uid);
  actor::Sent send(std::string_view route, const msg::ToClient& to);  // what pick() left
  void pick(const Worker& from, std::string_view route, const msg::Stream& stream);

  RequestTable& table_;
  RequestLife& life_;
  Replies& replies_;
  Counters& counters_;

  // Of the payload at hand; members so that no piece allocates.
  std::vector<std::pair<Request*, const msg::Chunk*>> chunks_;
  std::vector<std::pair<Epoch, const msg::Done*>> ends_;
  std::vector<Epoch> to_forget_;
  size_t stale_ = 0;
};

}  // namespace ringmaster::router
