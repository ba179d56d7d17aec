// router --config STATE/cluster.yaml --name router [--ready-fd N]
// Puts the Router actor on ZeroMQ. SIGTERM or SIGINT once: drain; twice: end what is live now.
#include "actor/loop.h"
#include "actor/turn_away.h"
#include "actor/zmq_transport.h"
#include "base/config.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/process.h"
#include "base/ready.h"
#include "base/unhandled.h"
#include "router/incarnation.h"
#include "router/router.h"

namespace ringmaster::router {
namespace {

// Last words (endings of a drain, refusals) to clients and workers that still read.
constexpr Nanos kCloseLimit = kSecond;

// Each client holds one descriptor; what the process itself needs is far below this.
constexpr uint64_t kOwnDescriptors = 128;
constexpr Nanos kReportTurnedAway = 10 * kSecond;

void check_descriptor_limit(const ClusterConfig& config) {
  const uint64_t limit = raise_descriptor_limit();
  if (limit >= config.router.max_live_requests + kOwnDescriptors) return;
  log::warning(
      "at most {} open descriptors are allowed here (ulimit -Hn), so fewer clients can connect than "
      "router.max_live_requests, which is {}: further connections are turned away",
      limit, config.router.max_live_requests);
}

// Turned away on ZeroMQ's thread, said on the loop's.
class TurnedAwayReport {
 public:
  void look(Nanos now) {
    const uint64_t count = actor::connections_turned_away();
    if (count == reported_ || now < next_) return;
    log::error(
        "out of descriptors: {} connections were turned away; raise the limit (ulimit -n) or close clients",
        count - reported_);
    reported_ = count;
    next_ = now + kReportTurnedAway;
  }

 private:
  uint64_t reported_ = 0;
  Nanos next_ = 0;
};

Status serve(const ProcessArguments& arguments, const ClusterConfig& config) {
  check_descriptor_limit(config);
  // The endpoints first: a second router of this cluster must fail before it takes an incarnation.
  // Both doors hand over: whoever reconnects under its name replaces the connection that may not have been
  // noticed dead yet. Clients draw their names at random.
  auto transport =
      actor::ZmqTransport::router({{config.client_endpoint(), true}, {config.worker_endpoint(), true}});
  if (!transport) return std::move(transport).error();
  auto incarnation = next_incarnation(config.state_dir);
  if (!incarnation) return std::move(incarnation).error();

  Router router(**transport, RouterOptions::from(config, *incarnation, random_number()));
  auto loop = actor::Loop::create(router, **transport);
  if (!loop) return std::move(loop).error();
  bool asked = false;
  auto signals = (*loop)->on_signal([&](int, Nanos now) {
    router.drain(asked ? now : now + config.supervisor.drain_timeout);
    asked = true;
  });
  if (!signals) return signals;
  TurnedAwayReport turned_away;
  (*loop)->add_flush([&] {
    turned_away.look(monotonic_now());
    if (router.drained()) (*loop)->stop();
  });

  log::info("incarnation {}, clients at {}, workers at {}", *incarnation,
            (*transport)->endpoint(kClientChannel), (*transport)->endpoint(kWorkerChannel));
  ReadyLine ready(arguments.ready_fd);
  (*loop)->add_flush([&ready] { ready.alive(monotonic_now()); });
  ready.announce();
  (*loop)->run();
  (*transport)->close(kCloseLimit);
  log::info("drained, bye");
  return ok_status();
}

Status run(int argc, char** argv) {
  if (auto blocked = actor::Loop::block_signals(); !blocked) return blocked;
  auto arguments = parse_process_arguments(argc, argv);
  if (!arguments) return std::move(arguments).error();
  auto config = load_cluster_yaml(arguments->config_path);
  if (!config) return std::move(config).error();
  if (auto opened = log::open(arguments->name, config->log_file(arguments->name), config->log); !opened)
    return opened;
  return serve(*arguments, *config);
}

}  // namespace
}  // namespace ringmaster::router

int main(int argc, char** argv) {
  ringmaster::end_process_on_unhandled_exceptions();
  const auto done = ringmaster::router::run(argc, argv);
  if (done) return 0;
  ringmaster::log::error("{} ({})", done.error().message, ringmaster::name(done.error().code));
  return 1;
}
