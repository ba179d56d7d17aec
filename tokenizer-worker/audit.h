// What this tokenizer-worker holds, as the message that `ringmaster audit` compares with the other processes'
// (rules: docs/audit.md). Counts what is there, judges nothing. Walks all streams, on demand alone: some 100
// us for 4,000. Thread: the stream thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schemas/codec.h"
#include "tokenizer-worker/counters.h"
#include "tokenizer-worker/ring_links.h"
#include "tokenizer-worker/stream_table.h"

namespace ringmaster::tokenizer_worker {

struct Holdings {
  const StreamTable& streams;
  const RingLinks& links;
  const Counters& counters;
  uint32_t live = 0;              // streams that have not ended
  size_t encoding = 0;            // jobs in the pool
  size_t attaching = 0;           // gpu-workers that the attacher is at
  std::vector<uint64_t> queries;  // the router's tags
};

// Finishes `builder` with a WorkerBooks.
void build_books(flatbuffers::FlatBufferBuilder& builder, Holdings holdings);

}  // namespace ringmaster::tokenizer_worker
