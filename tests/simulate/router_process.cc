#include "tests/simulate/processes.h"

namespace ringmaster::simulate {
namespace {

router::RouterOptions options_of(const Plan& plan, uint32_t incarnation) {
  router::RouterOptions options = router::RouterOptions::from(plan.config, incarnation, plan.seed);
  options.limits.place_limit = plan.place_limit;
  options.limits.end_limit = plan.end_limit;
  return options;
}

}  // namespace

RouterProcess::RouterProcess(World& world, uint64_t life, uint32_t incarnation, actor::Outbox& outbox)
    : Process(world, "router", life), router_(outbox, options_of(world.plan, incarnation)) {}

std::optional<int> RouterProcess::exit_code() const {
  return router_.drained() ? std::optional(0) : std::nullopt;
}

void RouterProcess::drain(Nanos now) {
  as_process([&] { router_.drain(now + world_.plan.config.supervisor.drain_timeout); });
}

void RouterProcess::take(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) {
  router_.receive(channel, peer, message, now);
}

Nanos RouterProcess::turn(Nanos now) {
  return router_.run_timers(now);
}

Status RouterProcess::check() const {
  using router::Counter;
  const router::Counters& count = router_.counters();
  uint64_t ended = 0;
  for (int reason = 0; reason <= static_cast<int>(msg::FinishReason::MAX); ++reason)
    ended += count[static_cast<Counter>(static_cast<int>(Counter::kEndedStop) + reason)];
  const size_t live = router_.table().live();
  if (count[Counter::kRequestsAccepted] != ended + live)
    return expect(false, fmt::format("{} requests accepted, but {} ended and {} live",
                                     count[Counter::kRequestsAccepted], ended, live));
  for (const Counter never : {Counter::kImpossible, Counter::kSendsFull, Counter::kMessagesRejected,
                              Counter::kWorkerMessagesRejected, Counter::kWorkersRefused})
    if (count[never] != 0)
      return expect(false, fmt::format("counter {} is {}", router::kCounterNames[static_cast<size_t>(never)],
                                       count[never]));
  for (const router::WorkerPtr& worker : router_.workers().all()) {
    const size_t placed = router_.table()
                              .select([&](const router::Request& r) {
                                return r.live() && r.tokenizer && (r.tokenizer == worker || r.gpu == worker);
                              })
                              .size();
    if (placed != worker->live)
      return expect(false, fmt::format("{} has {} requests by its count, {} by the table", worker->name,
                                       worker->live, placed));
  }
  return ok_status();
}

Status RouterProcess::check_baseline() const {
  const router::RequestTable& table = router_.table();
  if (auto ok = expect(table.size() == 0, fmt::format("{} requests are still in the table ({} live)",
                                                      table.size(), table.live()));
      !ok)
    return ok;
  if (auto ok = expect(table.clients() == 0, fmt::format("{} clients are still known", table.clients())); !ok)
    return ok;
  if (auto ok = expect(router_.life().waiting() == 0 && router_.life().waiting_bytes() == 0,
                       fmt::format("{} requests with {} bytes still wait", router_.life().waiting(),
                                   router_.life().waiting_bytes()));
      !ok)
    return ok;
  return expect(router_.ready(), "the cluster is not ready although all its processes run");
}

}  // namespace ringmaster::simulate
