// gpu-worker --config STATE/cluster.yaml --name gpu-worker.N [--ready-fd N]
// gpu-worker plan ...   (device/plan.h)
// Puts the GpuWorker actor on ZeroMQ, its rings and its device. SIGTERM or SIGINT once: drain; twice: end
// now.
#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>

#include "actor/loop.h"
#include "actor/zmq_transport.h"
#include "base/config.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/process.h"
#include "base/ready.h"
#include "base/unhandled.h"
#include "gpu-worker/device/device.h"
#include "gpu-worker/device/plan.h"
#include "gpu-worker/gpu_worker.h"
#include "shm/slot.h"

namespace ringmaster::gpu_worker {
namespace {

// What a process is made of, in the order of construction: each part outlives those after it.
struct Process {
  std::unique_ptr<shm::Doorbell> bell;
  std::unique_ptr<Device> device;
  std::unique_ptr<actor::ZmqTransport> transport;
  std::unique_ptr<GpuWorker> worker;
  std::unique_ptr<actor::Loop> loop;
};

void log_device(const DeviceInfo& info) {
  log::info(
      "device {} ({}), model '{}': vocabulary {}, context {}, {} blocks of {} tokens, {} lanes, {} MiB of "
      "weights, {} MiB of keys and values",
      info.kind, info.variant, info.model, info.vocab_size, info.context_length, info.num_blocks,
      info.block_tokens, info.num_lanes, info.weights_bytes >> 20, info.kv_bytes >> 20);
}

Status start(const ClusterConfig& config, const std::string& name, Process& p) {
  auto bell = shm::Doorbell::create();
  if (!bell) return std::move(bell).error();
  p.bell = std::make_unique<shm::Doorbell>(std::move(bell).value());

  auto model_path = resolve_model(config.model);
  if (!model_path) return std::move(model_path).error();
  auto device = make_device(config.gpu_worker, *model_path, *p.bell);
  if (!device) return std::move(device).error();
  p.device = std::move(device).value();
  log_device(p.device->info());

  const WorkerIdentity identity{name, getpid(), random_number(), config.ring_socket(name), config.model};
  auto slots = shm::SlotServer::create(identity.ring_socket, config.gpu_worker.slots, shm::SlotSizes{},
                                       identity.instance, *p.bell);
  if (!slots) return std::move(slots).error();
  auto transport = actor::ZmqTransport::worker(config.worker_endpoint(), name);
  if (!transport) return std::move(transport).error();
  p.transport = std::move(transport).value();

  auto worker = GpuWorker::create(
      config.gpu_worker, identity, *p.device, std::move(slots).value(), *p.transport,
      {.check_every_step = config.log.level == "debug", .heartbeat = config.router.worker_timeout / 4});
  if (!worker) return std::move(worker).error();
  p.worker = std::move(worker).value();

  auto loop = actor::Loop::create(*p.worker, *p.transport, *p.bell);
  if (!loop) return std::move(loop).error();
  p.loop = std::move(loop).value();
  return ok_status();
}

Status wire(Process& p) {
  GpuWorker& worker = *p.worker;
  actor::Loop& loop = *p.loop;
  // SIGTERM and SIGINT: once to drain, twice to end now.
  auto status =
      loop.on_signal([&worker](int, Nanos now) { worker.draining() ? worker.stop(now) : worker.drain(now); });
  if (!status) return status;
  for (const int fd : worker.watch_fds())
    if (status = loop.watch(fd, [&worker](Nanos now) { worker.slots_readable(now); }); !status) return status;
  loop.add_source([&worker](Nanos now) { return worker.poll(now); });
  loop.add_flush([&worker, &loop] {
    if (worker.finished()) loop.stop();
  });
  return ok_status();
}

int run(int argc, char** argv) {
  if (auto status = actor::Loop::block_signals(); !status) {
    log::error("{}", status.error().message);
    return 1;
  }
  auto arguments = parse_process_arguments(argc, argv);
  if (!arguments) {
    log::error("{}", arguments.error().message);
    return 2;
  }
  auto config = load_cluster_yaml(arguments->config_path);
  if (!config) {
    log::error("{}", config.error().message);
    return 2;
  }
  if (auto status = log::open(arguments->name, config->log_file(arguments->name), config->log); !status) {
    log::error("{}", status.error().message);
    return 1;
  }

  Process process;
  auto status = start(*config, arguments->name, process);
  if (status.ok()) status = wire(process);
  if (!status) {
    log::error("cannot start: {}", status.error().message);
    return 1;
  }
  process.worker->run_timers(monotonic_now());  // registers
  ReadyLine ready(arguments->ready_fd);
  process.loop->add_flush([&ready] { ready.alive(monotonic_now()); });
  ready.announce();
  process.loop->run();
  const int exit_code = process.worker->finished().value_or(1);
  if (exit_code == 0 || exit_code == 1) {
    process.transport->close(kSecond);
    return exit_code;
  }
  // The device is lost, and taking it down could wait for it for ever. Every request has its ending in the
  // rings; the supervisor and the tokenizer-workers see the process end.
  _exit(exit_code);
}

}  // namespace
}  // namespace ringmaster::gpu_worker

int main(int argc, char** argv) {
  ringmaster::end_process_on_unhandled_exceptions();
  if (argc > 1 && std::string_view(argv[1]) == "plan") return ringmaster::gpu_worker::run_plan(argc, argv);
  return ringmaster::gpu_worker::run(argc, argv);
}
