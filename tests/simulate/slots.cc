#include "tests/simulate/slots.h"

#include <fcntl.h>

#include <algorithm>

#include "tests/simulate/process.h"

namespace ringmaster::simulate {

shm::UniqueFd duplicate(int fd) {
  return shm::UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

Slots::Slots(World& world, uint32_t count, shm::SlotSizes sizes, uint64_t gpu_instance,
             const shm::Doorbell& bell, int life_fd)
    : world_(world),
      places_(shm::place_rings(sizes).value()),
      gpu_instance_(gpu_instance),
      bell_(bell),
      life_fd_(life_fd) {
  for (uint32_t i = 0; i < count; ++i) {
    shm::MemoryFile memory = must(shm::MemoryFile::create("simulated-slot", places_.size));
    shm::reset_slot(memory.bytes(), places_, i, gpu_instance);
    slots_.push_back({std::move(memory), std::nullopt, 0, false});
  }
}

void Slots::connect(Hello hello) {
  hellos_.push_back(std::move(hello));
  readable_ = true;
}

void Slots::holder_died(uint64_t life) {
  for (Slot& slot : slots_)
    if (slot.end && slot.holder_life == life) slot.holder_dead = readable_ = true;
}

void Slots::poll(const std::function<void(shm::GpuEnd&)>& attached,
                 const std::function<void(uint32_t)>& lost) {
  readable_ = false;
  // epoll reports both kinds in no order that could be relied upon.
  const bool deaths_first = world_.random.percent(50);
  if (deaths_first) free_dead(lost);
  for (Hello& hello : std::exchange(hellos_, {})) {
    if (*hello.given_up || *hello.holder_gone) continue;
    hello.reply(give(hello, attached));
  }
  if (!deaths_first) free_dead(lost);
}

void Slots::free_dead(const std::function<void(uint32_t)>& lost) {
  for (uint32_t index = 0; index < slots_.size(); ++index) {
    Slot& slot = slots_[index];
    if (!slot.end || !slot.holder_dead) continue;
    lost(index);
    slot.end.reset();
    slot.holder_dead = false;
    shm::reset_slot(slot.memory.bytes(), places_, index, gpu_instance_);
    --held_;
    ++counters_.lost;
  }
}

Result<shm::TokenizerEnd> Slots::give(Hello& hello, const std::function<void(shm::GpuEnd&)>& attached) {
  if (hello.gpu_instance != gpu_instance_) {
    ++counters_.refused;
    return Error{Code::kNotFound, "another instance of the gpu-worker listens there"};
  }
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.end; });
  if (slot == slots_.end()) {
    ++counters_.refused;
    return Error{Code::kResourceExhausted, "the gpu-worker has no free ring slot"};
  }
  const auto index = static_cast<uint32_t>(slot - slots_.begin());
  auto bell = shm::Doorbell::attach(std::move(hello.bell));
  auto memory = shm::MemoryFile::attach(duplicate(slot->memory.fd()), places_.size);
  auto own_bell = shm::Doorbell::attach(duplicate(bell_.fd()));
  if (!bell || !memory || !own_bell) return Error{Code::kInternal, "a descriptor could not be duplicated"};
  if (auto ok = shm::check_slot(memory->bytes(), places_, index, gpu_instance_); !ok) return ok.error();

  const shm::SlotRings theirs = shm::rings_of(memory->bytes(), places_);
  shm::TokenizerEnd end{std::move(memory).value(),
                        shm::Producer(theirs.command),
                        shm::Producer(theirs.prompt),
                        shm::Consumer(theirs.token),
                        std::move(own_bell).value(),
                        index,
                        gpu_instance_,
                        duplicate(life_fd_)};
  const shm::SlotRings ours = shm::rings_of(slot->memory.bytes(), places_);
  slot->holder_life = hello.holder_life;
  slot->end.emplace(shm::GpuEnd{index, hello.holder, static_cast<int>(hello.holder_life),
                                shm::Consumer(ours.command), shm::Consumer(ours.prompt),
                                shm::Producer(ours.token), std::move(bell).value()});
  ++held_;
  ++counters_.attached;
  attached(*slot->end);
  return end;
}

std::vector<std::span<std::byte>> Slots::memory() const {
  std::vector<std::span<std::byte>> all;
  for (const Slot& slot : slots_) all.push_back(slot.memory.bytes());
  return all;
}

}  // namespace ringmaster::simulate
