// Ring slots without sockets and pidfds: what shm::SlotServer and shm::attach_slot do between two processes,
// done by the agenda between two objects. The rings, the doorbells and the rules of SlotServer are the real
// ones: a slot is reset and given again only after the death of its holder was noticed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shm/slot.h"
#include "shm/slot_memory.h"
#include "tests/simulate/world.h"

namespace ringmaster::simulate {

// Another descriptor of the same file.
shm::UniqueFd duplicate(int fd);

// A tokenizer-worker that asks for a slot.
struct Hello {
  std::string holder;
  uint64_t holder_life = 0;
  uint64_t gpu_instance = 0;  // that is wanted
  shm::UniqueFd bell;
  std::function<void(Result<shm::TokenizerEnd>)> reply;
  // The asker waits no more, or is dead: the reply cannot be sent and no slot is taken.
  std::shared_ptr<bool> given_up;
  std::shared_ptr<bool> holder_gone;
};

class Slots final : public shm::SlotServer {
 public:
  // `life_fd` stands for the gpu-worker's pidfd: readable when it is dead.
  Slots(World& world, uint32_t count, shm::SlotSizes sizes, uint64_t gpu_instance, const shm::Doorbell& bell,
        int life_fd);

  // From outside, as the kernel would: makes poll() due.
  void connect(Hello hello);
  void holder_died(uint64_t life);
  bool readable() const { return readable_; }

  std::vector<int> watch_fds() const override { return {}; }
  void poll(const std::function<void(shm::GpuEnd&)>& attached,
            const std::function<void(uint32_t)>& lost) override;
  uint32_t held() const override { return held_; }
  const shm::SlotCounters& counters() const override { return counters_; }
  std::vector<std::span<std::byte>> memory() const override;

 private:
  struct Slot {
    shm::MemoryFile memory;
    std::optional<shm::GpuEnd> end;
    uint64_t holder_life = 0;
    bool holder_dead = false;
  };
  void free_dead(const std::function<void(uint32_t)>& lost);
  Result<shm::TokenizerEnd> give(Hello& hello, const std::function<void(shm::GpuEnd&)>& attached);

  World& world_;
  const shm::SlotPlaces places_;
  const uint64_t gpu_instance_;
  const shm::Doorbell& bell_;
  const int life_fd_;
  std::vector<Slot> slots_;
  std::deque<Hello> hellos_;
  bool readable_ = false;
  uint32_t held_ = 0;
  shm::SlotCounters counters_;
};

}  // namespace ringmaster::simulate
