#include "router/router.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "router/status_reply.h"

namespace ringmaster::router {
namespace {

// A router that runs its timers later than this was itself stopped or starved: what its peers sent meanwhile
// still lies unread, so their silence is not theirs. Above the longest turn of the loop (an 8 MB prompt is
// checked and copied in some 20 ms), well below worker_timeout.
constexpr Nanos kLate = 250 * kMillisecond;
// Lateness shows only against a moment that was promised, so one is promised at least this often while there
// is somebody who could be thought dead. A stop shorter than both together does no harm: it is far from
// worker_timeout.
constexpr Nanos kWatch = 250 * kMillisecond;
constexpr int kLinesPerSecond = 5;

bool of_clients(msg::RouterBody type) {
  switch (type) {
    case msg::RouterBody::Generate:
    case msg::RouterBody::Acks:
    case msg::RouterBody::Cancel:
    case msg::RouterBody::Ping:
    case msg::RouterBody::StatusQuery:
    case msg::RouterBody::Tokenize:
    case msg::RouterBody::AuditQuery:
      return true;
    default:
      return false;
  }
}

Error not_here(msg::RouterBody type, const char* door) {
  if (type == msg::RouterBody::NONE) return {Code::kMalformed, "message without a body"};
  if (type > msg::RouterBody::MAX)
    return {Code::kUnsupported,
            "message of kind " + std::to_string(static_cast<int>(type)) + ", which this build does not know"};
  return {Code::kPermissionDenied, std::string(msg::EnumNameRouterBody(type)) + " is not taken from " + door};
}

// Of at most one line; what a peer calls itself may hold anything.
std::string printable(std::string_view peer) {
  std::string out;
  for (const char c : peer.substr(0, 64)) out += c >= 0x20 && c < 0x7F ? c : '?';
  return out;
}

}  // namespace

RouterOptions RouterOptions::from(const ClusterConfig& config, uint32_t incarnation, uint64_t random_seed) {
  RouterOptions out;
  out.incarnation = incarnation;
  out.random_seed = random_seed;
  out.client_lease = config.router.client_lease;
  out.worker_timeout = config.router.worker_timeout;
  out.limits.max_live = config.router.max_live_requests;
  out.limits.max_ended = 4 * static_cast<size_t>(config.router.max_live_requests);
  out.limits.linger = config.tokenizer_worker.linger;
  return out;
}

bool LogLimiter::allow(Nanos now, uint64_t& suppressed) {
  if (now - window_start_ >= kSecond) {
    window_start_ = now;
    written_ = 0;
  }
  if (written_ >= kLinesPerSecond) {
    ++suppressed_;
    return false;
  }
  ++written_;
  suppressed = std::exchange(suppressed_, 0);
  return true;
}

Router::Router(actor::Outbox& outbox, const RouterOptions& options)
    : options_(options),
      replies_(outbox, counters_, options.incarnation),
      placer_(registry_),
      life_(table_, registry_, placer_, replies_, counters_, options.limits, options.incarnation,
            options.random_seed),
      forwarder_(table_, life_, replies_, counters_),
      queries_(placer_, replies_, counters_),
      audits_(registry_, table_, life_, queries_, replies_, counters_, options.incarnation) {}

void Router::receive(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) {
  if (channel == kClientChannel)
    from_client(peer, message, now);
  else
    from_worker(peer, message, now);
  settle(now);
}

// ---- clients ----

void Router::from_client(std::string_view peer, actor::Bytes bytes, Nanos now) {
  const auto message = msg::open<msg::RouterMessage>(bytes);
  if (!message) return reject(peer, message.error(), now);
  if (!of_clients((*message)->body_type()))
    return reject(peer, not_here((*message)->body_type(), "clients"), now);
  life_.client_heard(peer, now);
  dispatch_client(peer, **message, bytes, now);
}

void Router::dispatch_client(std::string_view peer, const msg::RouterMessage& message, actor::Bytes bytes,
                             Nanos now) {
  switch (message.body_type()) {
    case msg::RouterBody::Generate:
      return life_.generate(peer, *message.body_as_Generate(), bytes, now);
    case msg::RouterBody::Acks:
      if (const auto taken = life_.acks(peer, *message.body_as_Acks(), now); !taken)
        reject(peer, taken.error(), now);
      return;
    case msg::RouterBody::Cancel:
      return life_.cancel(peer, *message.body_as_Cancel(), now);
    case msg::RouterBody::Ping:
      return replies_.pong(peer);
    case msg::RouterBody::StatusQuery:
      return status_reply(peer, now);
    case msg::RouterBody::Tokenize:
      return queries_.ask(peer, *message.body_as_Tokenize(), now);
    case msg::RouterBody::AuditQuery:
      return audits_.ask(peer, *message.body_as_AuditQuery(), now);
    default:
      return;  // of_clients() lets nothing else pass
  }
}

void Router::reject(std::string_view peer, const Error& error, Nanos now) {
  counters_.add(Counter::kMessagesRejected);
  replies_.rejected(peer, error);
  uint64_t suppressed = 0;
  if (bad_messages_.allow(now, suppressed))
    log::warning("message from client {} rejected: {}: {} ({} more not shown)", printable(peer),
                 name(error.code), error.message, suppressed);
}

void Router::status_reply(std::string_view peer, Nanos now) {
  StatusFacts facts{options_.incarnation, ready() && !draining_, now};
  replies_.to_client(peer, build_status(replies_.fresh(), facts, registry_, table_, counters_));
}

// ---- workers ----

void Router::from_worker(std::string_view peer, actor::Bytes bytes, Nanos now) {
  const auto opened = msg::open<msg::RouterMessage>(bytes);
  if (!opened) return reject_worker(peer, opened.error(), now);
  const msg::RouterMessage& message = **opened;
  const msg::RouterBody type = message.body_type();
  if (type == msg::RouterBody::NONE || type > msg::RouterBody::MAX || of_clients(type))
    return reject_worker(peer, not_here(type, "workers"), now);
  if (type == msg::RouterBody::Register) return on_register(peer, *message.body_as_Register(), now);
  if (type == msg::RouterBody::Heartbeat) return on_heartbeat(peer, *message.body_as_Heartbeat(), now);

  const WorkerPtr worker = registry_.find(peer);
  if (type == msg::RouterBody::Audited) {  // of one that is not known: its heartbeat will say so
    if (worker) audits_.answer(*worker, *message.body_as_Audited());
    return;
  }
  // Only tokenizer-workers send the rest.
  if (!worker) return replies_.register_again(peer, msg::WorkerKind::tokenizer_worker);
  if (worker->is_gpu()) return reject_worker(peer, not_here(type, "gpu-workers"), now);
  worker->last_seen = now;
  if (type == msg::RouterBody::Linked) return on_linked(worker, *message.body_as_Linked(), now);
  if (type == msg::RouterBody::Tokenized) return queries_.answer(*worker, *message.body_as_Tokenized());
  if (const auto done = forwarder_.forward(*worker, *message.body_as_Streams(), now); !done)
    reject_worker(peer, done.error(), now);
}

void Router::reject_worker(std::string_view peer, const Error& error, Nanos now) {
  counters_.add(Counter::kWorkerMessagesRejected);
  uint64_t suppressed = 0;
  if (bad_messages_.allow(now, suppressed))
    log::error("message from worker {} rejected: {}: {} ({} more not shown)", printable(peer),
               name(error.code), error.message, suppressed);
}

void Router::on_register(std::string_view peer, const msg::Register& message, Nanos now) {
  const auto added = registry_.add(message, peer, now);
  if (!added) {
    counters_.add(Counter::kWorkersRefused);
    return reject_worker(peer, added.error(), now);
  }
  if (added->replaced) lose_worker(added->replaced, "it registered anew", now);
  const Worker& worker = *added->worker;
  greet(worker);
  if (added->renewed) return;
  if (worker.usable()) {
    log::info("{} registered (pid {}, model {}{}{})", worker.name, worker.pid, worker.model_name,
              worker.is_gpu() ? ", device " : "", worker.device);
  } else {
    counters_.add(Counter::kWorkersRefused);
    uint64_t suppressed = 0;
    if (bad_messages_.allow(now, suppressed))
      log::error("{} is refused: {} ({} more not shown)", worker.name, worker.refusal, suppressed);
  }
  if (worker.is_gpu() && (worker.usable() || added->replaced)) announce_gpu_workers();
}

void Router::greet(const Worker& worker) {
  if (worker.is_gpu())
    replies_.registered(worker);
  else
    replies_.gpu_workers(worker, registry_.all());
}

void Router::announce_gpu_workers() {
  for (const WorkerPtr& worker : registry_.all())
    if (!worker->is_gpu() && worker->usable()) replies_.gpu_workers(*worker, registry_.all());
}

void Router::on_heartbeat(std::string_view peer, const msg::Heartbeat& message, Nanos now) {
  const WorkerPtr worker = registry_.find(peer);
  if (!worker || worker->instance != message.instance())
    return replies_.register_again(peer, worker ? worker->kind : message.kind());
  worker->last_seen = now;
  if (const auto* load = message.load())
    worker->load = {load->running(), load->waiting(), load->blocks_free(), load->blocks_total(),
                    load->steps()};
  if (registry_.reconsider(*worker)) {
    log::info("{} is no longer refused", worker->name);
    greet(*worker);
    if (worker->is_gpu()) announce_gpu_workers();
  }
}

void Router::on_linked(const WorkerPtr& worker, const msg::Linked& message, Nanos now) {
  const std::string_view gpu = message.gpu_worker()->string_view();
  auto& links = worker->links;
  const auto same = [&](const Link& link) { return link.gpu_worker == gpu; };
  const auto found = std::find_if(links.begin(), links.end(), same);
  if (message.up()) {
    if (found != links.end())
      found->gpu_instance = message.gpu_instance();
    else if (links.size() < kMaxWorkers)
      links.push_back({std::string(gpu), message.gpu_instance()});
    else
      reject_worker(worker->peer, {Code::kResourceExhausted, "more links than there can be workers"}, now);
    return;
  }
  // Down for a former instance: its requests have ended with it.
  if (found == links.end() || found->gpu_instance != message.gpu_instance()) return;
  links.erase(found);
  log::warning("{} lost its rings to {}", worker->name, printable(gpu));
  life_.pair_lost(*worker, gpu, now);
}

void Router::lose_worker(const WorkerPtr& worker, std::string_view why, Nanos now) {
  const bool was_usable = worker->usable();
  registry_.bury(*worker);
  counters_.add(Counter::kWorkersLost);
  log::warning("{} (pid {}) is lost: {}; {} requests ran on it", worker->name, worker->pid, why,
               worker->live);
  life_.worker_lost(*worker, now);
  queries_.worker_lost(*worker);
  if (worker->is_gpu() && was_usable) announce_gpu_workers();
}

// ---- time ----

Nanos Router::run_timers(Nanos now) {
  if (promised_ != kNever && now - promised_ > kLate) {
    registry_.forgive(now);
    table_.forgive(now);
  }
  for (const WorkerPtr& worker : registry_.silent(now, options_.worker_timeout))
    lose_worker(worker, "no heartbeat in time", now);
  for (Client* client = table_.longest_silent(); client && now - client->last_seen >= options_.client_lease;
       client = table_.longest_silent())
    life_.client_lost(std::string(client->route), /*unreachable=*/false, now);
  life_.run_due(now);
  queries_.run_due(now);
  audits_.run_due(now);
  if (draining_ && now >= drain_until_) {
    drain_until_ = kNever;
    life_.end_all({msg::FinishReason::cancelled, Code::kUnavailable, "the cluster is shutting down"}, now);
  }
  settle(now);

  Nanos silence = registry_.next_silent(options_.worker_timeout);
  if (const Client* client = table_.longest_silent())
    silence = std::min(silence, client->last_seen + options_.client_lease);
  if (silence != kNever) silence = std::min(silence, now + kWatch);
  promised_ = std::min({silence, table_.next_due(), queries_.next_due(), audits_.next_due(), drain_until_});
  return promised_;
}

void Router::drain(Nanos until) {
  if (!draining_) log::info("draining: no new requests, {} are live", table_.live());
  draining_ = true;
  drain_until_ = std::min(drain_until_, until);
  life_.refuse_new(true);
}

// Handles the peers that sending found to be gone, until there are no more, and places whatever waits.
void Router::settle(Nanos now) {
  while (true) {
    const auto workers = replies_.take_lost_workers();
    const auto clients = replies_.take_lost_clients();
    if (workers.empty() && clients.empty() && life_.waiting() == 0) return;
    for (const std::string& route : workers)
      if (const WorkerPtr worker = registry_.find(route))
        lose_worker(worker, "unreachable, or does not take its messages", now);
    for (const std::string& route : clients) life_.client_lost(route, /*unreachable=*/true, now);
    life_.place_waiting(now);
    if (workers.empty() && clients.empty()) return;
  }
}

}  // namespace ringmaster::router
