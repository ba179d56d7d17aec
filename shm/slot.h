// A ring slot as each side sees it, and how it changes hands. The gpu-worker makes all slots at start
// and hands one to each tokenizer-worker that connects to its Unix socket (SlotServer::poll /
// attach_slot). A slot is given again only after the pidfd of its former holder has reported that process's
// death: a stopped process that wakes up must never be a second producer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "shm/doorbell.h"
#include "shm/memory_file.h"
#include "shm/ring.h"

namespace ringmaster::shm {

struct SlotSizes {
  uint64_t command_bytes = 256 << 10;
  uint64_t prompt_bytes = 8 << 20;
  uint64_t token_bytes = 1 << 20;
};

// The tokenizer-worker's end.
struct TokenizerEnd {
  MemoryFile memory;
  Producer commands;
  Producer prompts;
  Consumer tokens;
  Doorbell gpu_bell;  // rung after commands are committed
  uint32_t slot = 0;
  uint64_t gpu_instance = 0;
  UniqueFd gpu_pidfd;  // readable when the gpu-worker has died
};

// The gpu-worker's end of a slot that is held by a tokenizer-worker.
struct GpuEnd {
  uint32_t slot = 0;
  std::string holder;  // the tokenizer-worker's name
  int holder_pid = 0;
  Consumer commands;
  Consumer prompts;
  Producer tokens;
  Doorbell tokenizer_bell;  // rung after tokens are committed
};

// A request for a slot that has been sent to a gpu-worker. The slot may be ours from then on, and it is given
// back only by ending this process. So what this process cannot take now (no answer in time, no memory, no
// descriptors) stays open and is taken by a later take(): no slot is lost. One thread.
class SlotRequest {
 public:
  // Connects to a gpu-worker's ring socket and sends our name and doorbell; for a slot of that instance of
  // the gpu-worker and of no other. Blocks up to `deadline` while the backlog is full. `own_name`: 1 to
  // kMaxHolderName characters of [A-Za-z0-9._-]. kNotFound, kUnavailable: nobody listens there. An error
  // has asked for nothing.
  static Result<SlotRequest> send(const std::string& socket_path, uint64_t gpu_instance,
                                  const std::string& own_name, const Doorbell& own_bell, Nanos deadline);

  // Waits for the answer up to `deadline` and maps the slot. kNotFound: that instance does not listen there
  // (yet, or any more: perhaps its successor does). kUnavailable: the gpu-worker has closed the connection.
  // kResourceExhausted: no slot is free, or, while open(), no memory or descriptors here.
  // kUnsupportedVersion: the other side was built from another layout. kDeadlineExceeded: no answer yet.
  // REQUIRES: open().
  Result<TokenizerEnd> take(Nanos deadline);
  // Whether take() may still get the slot. Not after a slot, a refusal or a malformed answer.
  bool open() const { return static_cast<bool>(connection_); }

 private:
  SlotRequest(std::string path, uint64_t gpu_instance, UniqueFd connection, UniqueFd gpu_pidfd);

  std::string path_;
  uint64_t gpu_instance_;
  UniqueFd connection_;  // holds the answer until it was used or is of no use
  UniqueFd gpu_pidfd_;
};

// A SlotRequest that is sent and taken up to `deadline`, with the errors of both. For a caller that ends if
// this fails: a slot that was given but could not be taken stays taken until this process ends.
Result<TokenizerEnd> attach_slot(const std::string& socket_path, uint64_t gpu_instance,
                                 const std::string& own_name, const Doorbell& own_bell, Nanos deadline);

struct SlotCounters {
  uint64_t attached = 0;
  uint64_t lost = 0;
  uint64_t refused = 0;  // answered with a code: no slot free, another version or instance, a bad name
  // Closed without an answer: garbage, silence beyond the deadline, dead before the end.
  uint64_t discarded = 0;
};

// The gpu-worker's table of slots and the listening socket. One thread.
class SlotServer {
 public:
  // Makes `count` slots and listens on `socket_path` (mode 0600, shorter than 108 bytes). kAlreadyExists: a
  // live process listens there, or it is not a socket; the socket of a dead process is replaced. The path is
  // removed at the end. `own_bell` outlives the server. Sizes: powers of two in [kMinRingBytes,
  // kMaxRingBytes].
  static Result<std::unique_ptr<SlotServer>> create(const std::string& socket_path, uint32_t count,
                                                    SlotSizes sizes, uint64_t gpu_instance,
                                                    const Doorbell& own_bell);
  virtual ~SlotServer() = default;

  // What to watch (a single descriptor that stands for listening socket, handshakes, their deadlines and
  // holders' pidfds; the same one for life): poll() when it is readable. Edge-triggered watching is enough.
  virtual std::vector<int> watch_fds() const = 0;
  // Accepts connections, finishes handshakes, notices deaths. Never blocks, bounded work. `attached` gets
  // each new end; it stays valid until the call of `lost` with its slot returns. `lost` is called once the
  // holder is dead, before the slot is given again; what the holder had committed can still be read there.
  virtual void poll(const std::function<void(GpuEnd&)>& attached,
                    const std::function<void(uint32_t slot)>& lost) = 0;
  virtual uint32_t held() const = 0;
  virtual const SlotCounters& counters() const = 0;
  // The mapped memory of all slots, to be pinned once at start.
  virtual std::vector<std::span<std::byte>> memory() const = 0;
};

}  // namespace ringmaster::shm
