// Puts what streams have to say on the wire: one finished ClientMessage (a Stream with chunks and endings)
// per client, many of them in one RouterMessage (Streams). What the transport does not take stays unsent and
// is tried again. Builders and lists are reused; nothing is allocated per token. Thread: the stream thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "actor/actor.h"
#include "schemas/codec.h"
#include "tokenizer-worker/counters.h"
#include "tokenizer-worker/stream_table.h"

namespace ringmaster::tokenizer_worker {

class StreamWriter {
 public:
  StreamWriter(actor::Outbox& outbox, Counters& counters) : outbox_(outbox), counters_(counters) {}

  // Sends what the streams of `to_send` have and takes them out of the list; those whose message was not
  // taken stay in it. True when the list is empty afterwards.
  bool write(std::vector<Stream*>& to_send);

 private:
  void add(Stream& stream);
  flatbuffers::Offset<msg::Chunk> add_chunk(const Stream& stream);
  flatbuffers::Offset<msg::Done> add_done(const Stream& stream);
  void close_client(const Client& client);
  void close_message();

  actor::Outbox& outbox_;
  Counters& counters_;
  flatbuffers::FlatBufferBuilder inner_{64 << 10};  // the ClientMessage under construction
  flatbuffers::FlatBufferBuilder outer_{64 << 10};  // the RouterMessage under construction
  std::vector<flatbuffers::Offset<msg::Chunk>> chunks_;
  std::vector<flatbuffers::Offset<msg::Done>> ends_;
  std::vector<flatbuffers::Offset<msg::ToClient>> clients_;
  std::vector<flatbuffers::Offset<msg::Logprobs>> logprobs_;
  std::vector<Stream*> in_message_;  // whose pieces are in outer_ or inner_
  std::vector<Stream*> unsent_;
};

}  // namespace ringmaster::tokenizer_worker
