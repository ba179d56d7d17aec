// An Outbox that also brings messages in: what Loop drives. Implemented by ZmqTransport; tests of Loop use
// their own. Thread: the loop's thread only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "actor/actor.h"

namespace ringmaster::actor {

class Transport : public Outbox {
 public:
  // Hands at most `budget` waiting messages to `actor.receive`, fairly over the channels. Never blocks.
  // Returns how many.
  virtual size_t poll(Actor& actor, Nanos now, size_t budget) = 0;
  // Whether poll() would find something. To be asked after the last send and before sleeping: sending may
  // swallow the edge on fds() that announced a message.
  virtual bool ready() = 0;
  // Descriptors for FdBell. An edge on one means: ask ready().
  virtual std::vector<int> fds() const = 0;
};

}  // namespace ringmaster::actor
