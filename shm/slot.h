// A ring slot as each side sees it, and how it changes hands. The gpu-worker makes all slots at start (SlotTable)
// and hands one to each tokenizer-worker that connects to its Unix socket (SlotServer::poll / attach_slot). A
// slot is given again only after the pidfd of its former holder has reported that process's death: a stopped process
// that wakes up must never be a second producer.
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

// Connects to a gpu-worker's ring socket, sends our name and doorbell, receives a slot. Blocks up to `deadline`.
Result<TokenizerEnd> attach_slot(const std::string& socket_path, const std::string& own_name,
                                 const Doorbell& own_bell, Nanos deadline);

// The gpu-worker's table of slots and the listening socket. One thread.
class SlotServer {
 public:
  // Makes `count` slots and listens on `socket_path` (mode 0600; the path must be free and shorter than 108 bytes).
  static Result<std::unique_ptr<SlotServer>> create(const std::string& socket_path, uint32_t count, SlotSizes sizes,
                                                    uint64_t gpu_instance, const Doorbell& own_bell);
  virtual ~SlotServer() = default;

  // Descriptors to watch (listening socket, handshakes in progress, holders' pidfds): poll() when one is readable.
  virtual std::vector<int> watch_fds() const = 0;
  // Accepts connections, finishes handshakes, notices deaths. Never blocks. `attached` gets each new end (valid until
  // `lost` is called with its slot); `lost` is called once the holder is dead, before the slot is given again.
  virtual void poll(const std::function<void(GpuEnd&)>& attached, const std::function<void(uint32_t slot)>& lost) = 0;
  virtual uint32_t held() const = 0;
  // The mapped memory of all slots, to be pinned once at start.
  virtual std::vector<std::span<std::byte>> memory() const = 0;
};

}  // namespace ringmaster::shm
