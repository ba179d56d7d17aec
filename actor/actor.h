// What an actor is: one mailbox, one owner of its state. An actor sees only receive, send and now. It never
// blocks, never reads a clock, and holds no socket, so the same object runs on ZeroMQ (actor/zmq_transport.h)
// and on the deterministic in-memory transport of the tests (actor/memory_transport.h).
//
// Thread: everything about one actor is called from one thread, its loop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace ringmaster::actor {

using Bytes = std::span<const std::byte>;

// A peer's routing id as the transport knows it (opaque bytes). For an actor that has a single peer behind a
// channel (a worker towards its router) it is empty.
using Peer = std::string;

// One of the actor's own doors, numbered by the actor: the router has two, a worker has one.
using Channel = int;

enum class Sent {
  kOk,
  kUnreachable,  // no such peer (any more): treat it as gone
  kFull,         // high-water mark reached: by design a bug; count it
};

// Where an actor's messages go. Implemented by the transports.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual Sent send(Channel channel, std::string_view peer, Bytes message) = 0;
};

class Actor {
 public:
  virtual ~Actor() = default;
  // One message from a peer. `message` is valid during the call only and lies at a multiple of 8. Bytes come
  // from outside: verify first.
  virtual void receive(Channel channel, std::string_view peer, Bytes message, Nanos now) = 0;
  // Runs everything that is due at `now`; returns when it wants to be called next (kNever: no timer).
  virtual Nanos run_timers(Nanos now) = 0;
};

}  // namespace ringmaster::actor
