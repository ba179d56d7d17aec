// What `ringmaster status` shows, as a message. Reads, changes nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "actor/actor.h"
#include "router/counters.h"
#include "router/request_table.h"
#include "router/worker_registry.h"
#include "schemas/codec.h"

namespace ringmaster::router {

struct StatusFacts {
  uint32_t incarnation = 0;
  bool ready = false;
  Nanos now = 0;
};

// "ready", "starting", "refused: ...", "dead".
std::string state_of(const Worker& worker, const WorkerRegistry& registry);

// Valid until `builder` is used again.
actor::Bytes build_status(flatbuffers::FlatBufferBuilder& builder, const StatusFacts& facts,
                          const WorkerRegistry& registry, const RequestTable& table,
                          const Counters& counters);

}  // namespace ringmaster::router
