#include "tests/simulate/cluster.h"

#include <algorithm>

namespace ringmaster::simulate {
namespace {

constexpr const char* kRouter = "router";

bool is_gpu(std::string_view name) {
  return name.starts_with("gpu-worker");
}

bool has_ending(actor::Bytes bytes) {
  const auto message = msg::open<msg::ClientMessage>(bytes);
  const auto* stream = message ? (*message)->body_as_Stream() : nullptr;
  return stream && stream->ends() && stream->ends()->size() > 0;
}

}  // namespace

Cluster::Cluster(World& world, const Expectations& expectations)
    : world_(world), expectations_(expectations) {
  const Plan& plan = world_.plan;
  outboxes_[kRouter] = &world_.net.add_router(kRouter, 2);
  std::vector<std::string> workers;
  for (uint32_t i = 0; i < plan.config.gpu_worker.count; ++i) workers.push_back(worker_name(true, i));
  for (uint32_t i = 0; i < plan.config.tokenizer_worker.count; ++i) workers.push_back(worker_name(false, i));
  for (const std::string& name : workers)
    outboxes_[name] = &world_.net.add_worker(name, kRouter, router::kWorkerChannel);
  plan_network();
  start_process(kRouter);
  for (const std::string& name : workers)
    world_.at(world_.now() + world_.random.between(0, 100) * kMillisecond,
              [this, name] { start_process(name); });
  for (uint32_t i = 0; i < plan.num_clients; ++i) {
    ClientState& client = clients_.emplace_back();
    client.process = std::make_unique<ClientProcess>(world_, i, tokenizer_, expectations_);
  }
  for (uint32_t i = 0; i < plan.num_clients; ++i) connect_client(clients_[i], client_name(i, 0));
  plan_events();
}

Cluster::~Cluster() = default;

// ---- what the seed has decided ----

void Cluster::plan_network() {
  using Action = actor::Rule::Action;
  const Network& n = world_.plan.network;
  world_.net.set_latency(n.latency);
  for (const auto& [name, outbox] : outboxes_) {
    if (name == kRouter || n.worker_jitter == 0) continue;
    world_.net.add_rule({.action = Action::kDelay, .from = name, .to = kRouter, .jitter = n.worker_jitter});
    world_.net.add_rule({.action = Action::kDelay, .from = kRouter, .to = name, .jitter = n.worker_jitter});
  }
}

void Cluster::plan_events() {
  for (const PlannedRequest& p : world_.plan.requests) {
    world_.at(p.at, [this, &p] {
      ClientState& client = clients_[p.client];
      if (client.vanished) return;
      client.process->start(p, world_.now());
      world_.net.wake(client.node);
    });
    if (p.cancel_after == 0) continue;
    world_.at(p.at + p.cancel_after, [this, &p] {
      if (!clients_[p.client].vanished) clients_[p.client].process->cancel(p.uid);
    });
  }
  for (const Fault& fault : world_.plan.faults) world_.at(fault.at, [this, &fault] { strike(fault); });
  world_.at(world_.plan.calm_from, [this] { calm_network(); });
}

void Cluster::calm_network() {
  world_.trace("the network is calm from here on");
  for (const int rule : rules_) world_.net.remove_rule(rule);
}

void Cluster::connect_client(ClientState& client, const std::string& node) {
  using Action = actor::Rule::Action;
  const Network& n = world_.plan.network;
  if (outboxes_.count(node) == 0) {
    outboxes_[node] = &world_.net.add_worker(node, kRouter, router::kClientChannel);
    for (const auto& [from, to] : {std::pair{node, std::string(kRouter)}, {std::string(kRouter), node}}) {
      if (world_.plan.sabotage == Sabotage::kNoEnding)
        world_.net.add_rule({.from = from, .to = to, .matches = has_ending});
      if (n.client_jitter > 0)
        world_.net.add_rule({.action = Action::kDelay, .from = from, .to = to, .jitter = n.client_jitter});
      if (world_.now() >= world_.plan.calm_from) continue;
      if (n.drop_percent > 0)
        rules_.push_back(
            world_.net.add_rule({.from = from, .to = to, .probability = n.drop_percent / 100.0}));
      if (n.duplicate_percent > 0)
        rules_.push_back(world_.net.add_rule({.action = Action::kDuplicate,
                                              .from = from,
                                              .to = to,
                                              .probability = n.duplicate_percent / 100.0,
                                              .jitter = 10 * kMillisecond}));
    }
  }
  client.node = node;
  client.process->connect(outboxes_[node], node);
  world_.net.attach(node, *client.process);
}

// ---- processes ----

void Cluster::start_process(const std::string& name) {
  if (find(name) != nullptr) return;
  const uint64_t life = ++lives_;
  std::unique_ptr<MortalOutbox>& mortal = mortals_[name];
  mortal = std::make_unique<MortalOutbox>(*outboxes_.at(name), name);
  world_.trace("{} starts (instance {})", name, life);
  try {
    processes_[name] = make_process(name, life);
  } catch (const std::bad_alloc&) {
    world_.trace("{} dies at its start", name);
    processes_.erase(name);
    return restart_later(name, 10 * kMillisecond);
  }
  if (!world_.failed()) world_.net.attach(name, *processes_[name]);
}

std::unique_ptr<Process> Cluster::make_process(const std::string& name, uint64_t life) {
  MortalOutbox& outbox = *mortals_.at(name);
  const Runs inside(true);
  if (name == kRouter) return std::make_unique<RouterProcess>(world_, life, ++incarnation_, outbox);
  if (is_gpu(name)) return std::make_unique<GpuProcess>(world_, name, life, outbox);
  return std::make_unique<TokenizerProcess>(world_, name, life, outbox, tokenizer_,
                                            [this](const std::string& socket) { return find_gpu(socket); });
}

// What the kernel does when a process ends: its connections close, and those who hold its pidfd hear of it.
void Cluster::end_process(const std::string& name, bool last_words) {
  const auto found = processes_.find(name);
  if (found == processes_.end()) return;
  ++deaths_;
  const uint64_t life = found->second->life();
  world_.trace("{} ends (instance {})", name, life);
  paused_.erase(name);
  world_.net.kill(name, last_words);
  processes_.erase(found);
  if (is_gpu(name)) {
    for (TokenizerProcess* tokenizer : tokenizers())
      world_.at(world_.soon(), [this, who = tokenizer->name(), of = tokenizer->life()] {
        auto* process = dynamic_cast<TokenizerProcess*>(find(who));
        if (process == nullptr || process->life() != of) return;
        process->peer_died();
        world_.net.wake(who);
      });
  } else if (name != kRouter && world_.plan.sabotage != Sabotage::kUnnoticedDeath) {
    for (uint32_t i = 0; i < world_.plan.config.gpu_worker.count; ++i)
      world_.at(world_.soon(), [this, gpu = worker_name(true, i), life] {
        GpuProcess* process = find_gpu(gpu);
        if (process == nullptr) return;
        process->slots().holder_died(life);
        world_.net.wake(gpu);
      });
  }
}

void Cluster::restart_later(const std::string& name, Nanos after) {
  world_.at(world_.now() + after, [this, name] { start_process(name); });
}

Process* Cluster::find(const std::string& name) const {
  const auto found = processes_.find(name);
  return found == processes_.end() ? nullptr : found->second.get();
}

GpuProcess* Cluster::find_gpu(const std::string& name) const {
  return dynamic_cast<GpuProcess*>(find(name));
}

std::vector<TokenizerProcess*> Cluster::tokenizers() const {
  std::vector<TokenizerProcess*> all;
  for (const auto& [name, process] : processes_)
    if (auto* tokenizer = dynamic_cast<TokenizerProcess*>(process.get())) all.push_back(tokenizer);
  return all;
}

// ---- faults ----

void Cluster::strike(const Fault& fault) {
  if (fault.kind == Fault::Kind::kBreak || fault.kind == Fault::Kind::kMove ||
      fault.kind == Fault::Kind::kVanish || find(fault.target) == nullptr) {
    if (outboxes_.count(fault.target) == 0) strike_client(fault);
    return;
  }
  world_.trace("fault: {} {}", name(fault.kind), fault.target);
  switch (fault.kind) {
    case Fault::Kind::kKill:
      if (fault.in_turn > 0)
        return mortals_[fault.target]->die_after(fault.in_turn, fault.length, fault.last_words);
      end_process(fault.target, fault.last_words);
      return restart_later(fault.target, fault.length);
    case Fault::Kind::kPause:
      return pause(fault.target, fault.length);
    default:
      if (paused_.count(fault.target) != 0) return;  // SIGTERM waits for SIGCONT; let it be
      find(fault.target)->drain(world_.now());
      world_.net.wake(fault.target);
  }
}

void Cluster::strike_client(const Fault& fault) {
  ClientState& client = clients_[std::stoul(fault.target)];
  if (client.vanished) return;
  world_.trace("fault: {} client.{}", name(fault.kind), fault.target);
  if (fault.kind == Fault::Kind::kPause) return pause(client.node, fault.length);
  if (!world_.net.alive(client.node)) return;  // no connection just now
  world_.net.kill(client.node, fault.last_words);
  paused_.erase(client.node);
  client.process->disconnect();
  if (fault.kind == Fault::Kind::kVanish) {
    client.vanished = true;
    return client.process->vanish();
  }
  std::string node = client.node;
  if (fault.kind == Fault::Kind::kMove)
    node = client_name(static_cast<uint32_t>(&client - clients_.data()), ++client.connection);
  world_.at(world_.now() + fault.length, [this, &client, node] { connect_client(client, node); });
}

void Cluster::pause(const std::string& node, Nanos length) {
  if (!world_.net.alive(node) || !paused_.insert(node).second) return;
  world_.net.pause(node);
  const Process* process = find(node);
  const uint64_t life = process == nullptr ? 0 : process->life();
  world_.at(world_.now() + length, [this, node, life] {
    const Process* stopped = find(node);
    if (life != (stopped == nullptr ? 0 : stopped->life()) || paused_.erase(node) == 0) return;
    world_.trace("{} goes on", node);
    if (Process* again = find(node)) again->interrupted = world_.random.percent(50);
    world_.net.resume(node);
  });
}

// ---- running ----

bool Cluster::step(Nanos limit) {
  const Nanos agenda = world_.next_on_agenda();
  try {
    if (!world_.net.step(std::min(limit, agenda))) {
      if (agenda > limit) {
        world_.net.run_until(limit);
        return false;
      }
      world_.net.run_until(agenda);
      world_.take_from_agenda()();
    }
  } catch (const Died& died) {
    died_in_turn(died.name);
  }
  notice_exits();
  answer_bells();
  return true;
}

void Cluster::died_in_turn(const std::string& name) {
  world_.trace("{} dies in the middle of a turn", name);
  const auto client = std::find_if(clients_.begin(), clients_.end(),
                                   [&](const ClientState& c) { return c.process->name() == name; });
  if (client != clients_.end()) {
    const auto index = client - clients_.begin();
    return strike_client({.kind = Fault::Kind::kVanish, .target = std::to_string(index)});
  }
  const MortalOutbox& mortal = *mortals_.at(name);
  end_process(name, mortal.last_words());
  restart_later(name, mortal.away());
}

void Cluster::notice_exits() {
  for (auto next = processes_.begin(); next != processes_.end();) {
    const auto current = next++;
    const auto code = current->second->exit_code();
    if (!code) continue;
    const std::string name = current->first;
    world_.trace("{} exits with {}", name, *code);
    end_process(name, /*last_words=*/true);  // close() waits for them
    restart_later(name, world_.random.between(10, 300) * kMillisecond);
  }
}

void Cluster::answer_bells() {
  for (const auto& [name, process] : processes_) {
    if (!process->rung() || process->wake_planned || paused_.count(name) != 0) continue;
    process->wake_planned = true;
    world_.at(world_.soon(), [this, name = name, life = process->life()] {
      Process* found = find(name);
      if (found == nullptr || found->life() != life) return;
      found->wake_planned = false;
      world_.net.wake(name);
    });
  }
}

bool Cluster::all_ended() const {
  return std::all_of(clients_.begin(), clients_.end(), [](const auto& c) { return c.process->all_ended(); });
}

std::string Cluster::missing() const {
  std::string out;
  for (const ClientState& client : clients_) out += client.process->missing();
  return out;
}

Status Cluster::check_baseline() const {
  for (const auto& [name, process] : processes_)
    if (auto ok = process->check_baseline(); !ok)
      return Error{ok.error().code, name + ": " + ok.error().message};
  for (const ClientState& client : clients_)
    if (auto ok = client.process->check_baseline(); !ok) return ok;
  return expect(processes_.size() ==
                    1 + world_.plan.config.gpu_worker.count + world_.plan.config.tokenizer_worker.count,
                "not all processes run");
}

std::map<std::string, uint32_t> Cluster::endings() const {
  std::map<std::string, uint32_t> all;
  for (const ClientState& client : clients_)
    for (const auto& [what, count] : client.process->endings()) all[what] += count;
  return all;
}

}  // namespace ringmaster::simulate
