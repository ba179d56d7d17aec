#include <fcntl.h>
#include <unistd.h>

#include <stdexcept>

#include "gpu-worker/device/fake/fake_device.h"
#include "tests/simulate/processes.h"

namespace ringmaster::simulate {

GpuProcess::GpuProcess(World& world, std::string name, uint64_t life, MortalOutbox& outbox)
    : Process(world, std::move(name), life) {
  make_bell();
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe: too many open files?");
  life_read_ = shm::UniqueFd(ends[0]);
  life_write_ = shm::UniqueFd(ends[1]);

  const GpuWorkerConfig& config = world.plan.config.gpu_worker;
  device_ = std::make_unique<WatchedDevice>(
      world, must(gpu_worker::make_fake_device(config, "", [&world] { return world.now(); })),
      [&outbox] { outbox.act(); });
  auto slots =
      std::make_unique<Slots>(world, config.slots, world.plan.slot_sizes, life, *bell_, life_read_.get());
  slots_ = slots.get();
  gpu_worker::WorkerIdentity identity;
  identity.name = name_;
  identity.pid = static_cast<int>(life);
  identity.instance = life;
  identity.ring_socket = name_;  // of the name, not of the life: a restarted worker listens at the same place
  worker_ = must(gpu_worker::GpuWorker::create(config, identity, *device_, std::move(slots), outbox,
                                               {.token_ring_bytes = world.plan.slot_sizes.token_bytes}));
}

void GpuProcess::take(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) {
  worker_->receive(channel, peer, message, now);
}

Nanos GpuProcess::turn(Nanos now) {
  if (slots_->readable()) worker_->slots_readable(now);
  const bool work = worker_->poll(now);
  const Nanos next = worker_->run_timers(now);
  return work ? std::min(next, world_.soon()) : next;
}

Status GpuProcess::check() const {
  if (worker_->finished()) return ok_status();
  if (auto books = worker_->scheduler().check(); !books) return books;
  for (const Epoch epoch : worker_->scheduler().live()) {
    const gpu_worker::Sequence& s = *worker_->scheduler().find(epoch);
    if (s.outputs_planned() > s.granted && s.outputs_planned() > 0)
      return expect(false, fmt::format("epoch {:x} has {} output tokens planned, granted are {}", epoch,
                                       s.outputs_planned(), s.granted));
  }
  return expect(device_->blocks_in_flight() <= worker_->kv().num_used(),
                fmt::format("steps in flight touch {} blocks, only {} count as used",
                            device_->blocks_in_flight(), worker_->kv().num_used()));
}

Status GpuProcess::check_baseline() const {
  const gpu_worker::Scheduler& scheduler = worker_->scheduler();
  if (auto ok = expect(scheduler.idle(), scheduler.dump()); !ok) return ok;
  if (auto ok =
          expect(worker_->kv().num_used() == 0 && worker_->kv().available() == worker_->kv().num_blocks(),
                 worker_->kv().dump());
      !ok)
    return ok;
  if (auto ok = expect(!worker_->rings().any_pending(), "records wait for room in a token ring"); !ok)
    return ok;
  return expect(worker_->rings().held() <= world_.plan.config.tokenizer_worker.count,
                fmt::format("{} slots are held by {} tokenizer-workers", worker_->rings().held(),
                            world_.plan.config.tokenizer_worker.count));
}

}  // namespace ringmaster::simulate
