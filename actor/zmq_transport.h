// Messages over ZeroMQ (ipc and tcp). Two shapes:
//   worker  one DEALER (channel 0) connected to a router; its routing id is the process's name; peers are ""
//   router  one ROUTER a channel, bound; a peer is the routing id of whoever sent
// A message is one frame. One of several frames reaches the actor as an empty message, so that it is answered
// like any other malformed one. A frame over `max_message_bytes` makes ZeroMQ close that peer's connection
// before the bytes are stored; the limit lies above msg::kMaxMessageBytes, so that what is merely too large
// gets its refusal.
//
// Not here: security of tcp beyond loopback (bind refuses it), liveness (heartbeats are the actors').
// Thread: one, the loop's. ZeroMQ's own I/O thread is inside.
//
// What a worker sends while its router is away is kept (up to the high-water mark) and reaches the next
// router that binds the endpoint. What a router sends to a peer that is away is kUnreachable.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actor/transport.h"
#include "base/status.h"
#include "schemas/codec.h"

namespace ringmaster::actor {

struct ZmqOptions {
  // Messages a peer and direction. Above the sum of all credits: a worker's control messages for 4096 live
  // requests with a few in flight each stay below it.
  int high_water_mark = 65'536;
  Nanos reconnect_interval = 20 * kMillisecond;  // design section 4: at most 20 ms
  size_t max_message_bytes = msg::kMaxMessageBytes + (64u << 10);
};

struct ZmqCounters {
  uint64_t received = 0;
  uint64_t sent = 0;
  uint64_t unreachable = 0;  // sends to peers that are gone
  uint64_t full = 0;         // sends refused at the high-water mark: by design a bug
  uint64_t multipart = 0;    // messages of more than one frame, delivered as empty ones
};

// One door of a router.
struct ZmqDoor {
  std::string endpoint;  // ipc:///path or tcp://127.0.0.1:port (port * or 0: any, see endpoint())
  // A new connection with a known routing id replaces the old one: a worker that restarts.
  bool handover = false;
};

class ZmqTransport : public Transport {
 public:
  // Connects in the background: succeeds although no router listens yet.
  // kInvalidArgument: endpoint or routing id (1 to 255 bytes, not starting with a zero byte).
  static Result<std::unique_ptr<ZmqTransport>> worker(const std::string& endpoint,
                                                      const std::string& routing_id,
                                                      const ZmqOptions& options = {});
  // Channel i is doors[i]. kAlreadyExists: a live process listens there (the socket file of a dead one is
  // replaced); kInvalidArgument: path over 107 bytes, not a socket, tcp on anything but loopback;
  // kPermissionDenied.
  static Result<std::unique_ptr<ZmqTransport>> router(const std::vector<ZmqDoor>& doors,
                                                      const ZmqOptions& options = {});

  // The endpoint that is really bound or connected to (tcp port filled in).
  virtual std::string endpoint(Channel channel) const = 0;
  virtual const ZmqCounters& counters() const = 0;
  // Closes the sockets and gives ZeroMQ up to `linger` to write out what was sent. Without it the destructor
  // drops what is unsent. Nothing else may be called afterwards.
  virtual void close(Nanos linger) = 0;
};

}  // namespace ringmaster::actor
