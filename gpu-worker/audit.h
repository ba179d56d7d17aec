// What this gpu-worker holds, as the message that `ringmaster audit` compares with the other processes'
// (rules: docs/audit.md). Counts what is there, judges nothing. Walks all sequences and blocks, so it is made
// on demand alone: some 100 us for 1,000 sequences and 10,000 blocks. Thread: the worker's loop thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kv/kv_cache.h"
#include "gpu-worker/ring_server.h"
#include "gpu-worker/schedule/scheduler.h"
#include "schemas/codec.h"

namespace ringmaster::gpu_worker {

// Finishes `builder` with a WorkerBooks. `lanes`: all there are.
void build_books(flatbuffers::FlatBufferBuilder& builder, const Scheduler& scheduler, const KvCache& kv,
                 const RingServer& rings, uint32_t lanes);

}  // namespace ringmaster::gpu_worker
