// Messages of the client as bytes: what client.cc sends and how it reads replies. Not public.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "client/cpp/books.h"
#include "client/cpp/ringmaster.h"
#include "schemas/codec.h"

namespace ringmaster::client::wire {

// With `received_ids` a resume of the same uid from those tokens on.
msg::Bytes generate(flatbuffers::FlatBufferBuilder& builder, Uid uid, const Request& request,
                    const std::vector<TokenId>& received_ids, uint64_t received_text_offset);
msg::Bytes tokenize(flatbuffers::FlatBufferBuilder& builder, uint64_t tag, const Request& request);
msg::Bytes cancel(flatbuffers::FlatBufferBuilder& builder, Uid uid);
msg::Bytes ping(flatbuffers::FlatBufferBuilder& builder);
msg::Bytes status_query(flatbuffers::FlatBufferBuilder& builder);
msg::Bytes audit_query(flatbuffers::FlatBufferBuilder& builder, uint64_t tag);

struct PendingAck {
  Uid uid;
  uint32_t next_token;
  uint64_t text_offset;
};
msg::Bytes acks(flatbuffers::FlatBufferBuilder& builder, const std::vector<PendingAck>& acks);

Ending ending(const msg::Done& done);
ClusterStatus cluster_status(const msg::StatusReply& reply);
Result<ClusterBooks> cluster_books(const msg::AuditReply& reply);
std::vector<Logprobs> logprobs(const msg::Chunk& chunk, size_t first);

}  // namespace ringmaster::client::wire
