#include "actor/memory_transport.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringmaster::actor {
namespace {

// An actor that wants its timers run at a moment that has passed, again and again, would stop the clock.
constexpr int kMostTimerRunsInAnInstant = 10'000;

[[noreturn]] void misuse(const std::string& what) {
  throw std::logic_error("MemoryTransport: " + what);
}

}  // namespace

class MemoryTransport::Node final : public Outbox {
 public:
  Node(MemoryTransport& network, std::string node_name) : net(network), name(std::move(node_name)) {}

  Sent send(Channel channel, std::string_view peer, Bytes message) override {
    return net.send(*this, channel, peer, message);
  }
  bool is_router() const { return router.empty(); }
  bool running() const { return actor != nullptr && !paused; }

  MemoryTransport& net;
  const std::string name;
  int channels = 1;
  std::string router;          // of a worker
  Channel router_channel = 0;  // of a worker, at its router
  Actor* actor = nullptr;      // none: dead, or not attached yet
  bool was_attached = false;
  bool paused = false;
  Nanos connected_at = kNever;  // of a worker: from then on its router knows it
  Nanos timer = kNever;
  int timer_runs = 0;  // in this instant
  Nanos timer_ran_at = -1;
};

MemoryTransport::MemoryTransport(uint64_t seed, Nanos start) : random_(seed), now_(start) {}
MemoryTransport::~MemoryTransport() = default;

Outbox& MemoryTransport::add_router(const std::string& name, int channels) {
  if (nodes_.count(name) != 0) misuse("'" + name + "' is there already");
  auto& added = nodes_[name] = std::make_unique<Node>(*this, name);
  added->channels = channels;
  return *added;
}

Outbox& MemoryTransport::add_worker(const std::string& name, const std::string& router,
                                    Channel router_channel) {
  if (nodes_.count(name) != 0) misuse("'" + name + "' is there already");
  const Node& to = node(router);
  if (!to.is_router() || router_channel < 0 || router_channel >= to.channels) {
    misuse("'" + router + "' has no channel " + std::to_string(router_channel));
  }
  auto& added = nodes_[name] = std::make_unique<Node>(*this, name);
  added->router = router;
  added->router_channel = router_channel;
  return *added;
}

MemoryTransport::Node& MemoryTransport::node(const std::string& name) const {
  const auto found = nodes_.find(name);
  if (found == nodes_.end()) misuse("there is no '" + name + "'");
  return *found->second;
}

void MemoryTransport::attach(const std::string& name, Actor& actor) {
  Node& it = node(name);
  if (it.actor != nullptr) misuse("'" + name + "' has its actor already");
  // The first time everything is connected at once; after a death the survivors have to find each other
  // again.
  const Nanos connected = now_ + (it.was_attached ? reconnect_ : 0);
  it.actor = &actor;
  it.was_attached = true;
  it.paused = false;
  for (auto& [other_name, other] : nodes_) {
    if (other.get() == &it ? !it.is_router() : other->router == name) other->connected_at = connected;
  }
  if (it.is_router()) postpone_messages_to(name, connected);
  run_timers(it);
}

// What workers kept for a router that was away arrives when they have found it, in its order.
void MemoryTransport::postpone_messages_to(const std::string& name, Nanos earliest) {
  std::map<Order, Delivery> later;
  for (auto message = queue_.begin(); message != queue_.end() && message->first.first < earliest;) {
    const auto next = std::next(message);
    if (message->second.to == name) {
      auto entry = queue_.extract(message);
      entry.key().first = entry.mapped().at = earliest;
      later.insert(std::move(entry));
    }
    message = next;
  }
  queue_.merge(later);
}

void MemoryTransport::restart(const std::string& name, Actor& actor) {
  if (!node(name).was_attached) misuse("'" + name + "' was never attached");
  attach(name, actor);
}

void MemoryTransport::kill(const std::string& name, bool sent_arrives) {
  Node& it = node(name);
  it.actor = nullptr;
  it.paused = false;
  it.timer = kNever;
  for (auto& [other_name, other] : nodes_) {
    if (other.get() == &it || other->router == name) other->connected_at = kNever;
  }
  for (auto message = queue_.begin(); message != queue_.end();) {
    const Delivery& d = message->second;
    const bool vanishes = d.to == name || (d.from == name && !sent_arrives);
    if (vanishes) {
      --waiting_[{d.from, d.to}];
      ++dropped_;
    }
    message = vanishes ? queue_.erase(message) : std::next(message);
  }
  // A new connection knows nothing of what its forerunner still had to deliver.
  for (auto& [pair, at] : last_) {
    if (pair.first == name || pair.second == name) at = 0;
  }
}

void MemoryTransport::pause(const std::string& name) {
  node(name).paused = true;
}

void MemoryTransport::resume(const std::string& name) {
  Node& it = node(name);
  it.paused = false;
  // What has arrived meanwhile comes before timers, as in Loop.
  if (it.actor == nullptr) return;
  if (message_waits(name))
    it.timer = now_;
  else
    run_timers(it);
}

bool MemoryTransport::message_waits(const std::string& name) const {
  for (const auto& [order, delivery] : queue_) {
    if (order.first > now_) return false;
    if (delivery.to == name) return true;
  }
  return false;
}

bool MemoryTransport::alive(const std::string& name) const {
  return node(name).actor != nullptr;
}

int MemoryTransport::add_rule(Rule rule) {
  rules_.emplace(next_rule_, std::move(rule));
  return next_rule_++;
}

void MemoryTransport::remove_rule(int rule) {
  rules_.erase(rule);
}

uint64_t MemoryTransport::draw(uint64_t bound) {
  return bound == 0 ? 0 : random_() % bound;
}

// ---- sending ----

Sent MemoryTransport::send(Node& from, Channel channel, std::string_view peer, Bytes message) {
  if (channel < 0 || channel >= from.channels)
    misuse("'" + from.name + "' has no channel " + std::to_string(channel));
  Delivery delivery;
  delivery.from = from.name;
  if (from.is_router()) {
    const auto found = nodes_.find(std::string(peer));
    if (found == nodes_.end()) return Sent::kUnreachable;
    const Node& to = *found->second;
    const bool connected = to.actor != nullptr && now_ >= to.connected_at;
    if (to.router != from.name || to.router_channel != channel || !connected) return Sent::kUnreachable;
    delivery.to = to.name;
    delivery.channel = 0;
  } else {
    if (!peer.empty())
      misuse("worker '" + from.name + "' sends to its only peer as \"\", not '" + std::string(peer) + "'");
    delivery.to = from.router;
    delivery.channel = from.router_channel;
  }
  if (waiting_[{delivery.from, delivery.to}] >= high_water_mark_) return Sent::kFull;
  delivery.number = next_number_++;
  delivery.sent_at = now_;
  delivery.message.assign(message.begin(), message.end());

  Nanos delay = latency_;
  bool reorder = false;
  for (auto& [id, rule] : rules_) {
    if (rule.limit == 0 || (!rule.from.empty() && rule.from != delivery.from) ||
        (!rule.to.empty() && rule.to != delivery.to) || (rule.matches && !rule.matches(message))) {
      continue;
    }
    if (rule.probability < 1 && static_cast<double>(draw(1u << 30)) >= rule.probability * (1u << 30))
      continue;
    --rule.limit;
    const Nanos more = rule.delay + static_cast<Nanos>(draw(static_cast<uint64_t>(rule.jitter)));
    switch (rule.action) {
      case Rule::Action::kDrop:
        ++dropped_;
        return Sent::kOk;
      case Rule::Action::kDelay:
        delay += more;
        reorder |= rule.reorder;
        break;
      case Rule::Action::kDuplicate:
        schedule(delivery, latency_ + more, rule.reorder);
        break;
    }
  }
  schedule(std::move(delivery), delay, reorder);
  return Sent::kOk;
}

void MemoryTransport::schedule(Delivery delivery, Nanos delay, bool reorder) {
  delivery.at = now_ + delay;
  const Node& from = node(delivery.from);
  // What a worker sends before it is connected waits for that moment; without a router, until one is there.
  if (!from.is_router() && from.connected_at != kNever)
    delivery.at = std::max(delivery.at, from.connected_at);
  if (!reorder) {
    Nanos& last = last_[{delivery.from, delivery.to}];
    delivery.at = last = std::max(delivery.at, last);
  }
  ++waiting_[{delivery.from, delivery.to}];
  const Order order{delivery.at, next_order_++};
  queue_.emplace(order, std::move(delivery));
}

// ---- delivering ----

std::map<MemoryTransport::Order, Delivery>::iterator MemoryTransport::next_message() {
  return std::find_if(queue_.begin(), queue_.end(), [&](const auto& entry) {
    const Delivery& d = entry.second;
    const Node& to = node(d.to);
    if (!to.running()) return false;
    return !to.is_router() || node(d.from).actor == nullptr || node(d.from).connected_at != kNever;
  });
}

MemoryTransport::Node* MemoryTransport::next_timer() {
  Node* next = nullptr;
  for (auto& [name, it] : nodes_) {
    if (it->running() && it->timer != kNever && (next == nullptr || it->timer < next->timer)) next = it.get();
  }
  return next;
}

void MemoryTransport::hand_over(std::map<Order, Delivery>::iterator message) {
  Delivery delivery = std::move(message->second);
  queue_.erase(message);
  --waiting_[{delivery.from, delivery.to}];
  delivery.at = now_;
  if (keep_trace_) trace_.push_back(delivery);
  Node& to = node(delivery.to);
  to.actor->receive(delivery.channel, to.is_router() ? delivery.from : std::string(), delivery.message, now_);
  if (!to.running()) return;  // a test may kill it from inside
  to.timer_runs = 0;
  run_timers(to);
}

void MemoryTransport::run_timers(Node& it) {
  it.timer_runs = it.timer_ran_at == now_ ? it.timer_runs + 1 : 0;
  it.timer_ran_at = now_;
  Actor* const actor = it.actor;
  const Nanos next = actor->run_timers(now_);
  if (it.actor == actor) it.timer = next;
}

// A message is handed over before a timer of the same moment, as Loop does.
bool MemoryTransport::step(Nanos limit) {
  const auto message = next_message();
  Node* const timer = next_timer();
  const Nanos message_at = message == queue_.end() ? kNever : std::max(message->first.first, now_);
  const Nanos timer_at = timer == nullptr ? kNever : std::max(timer->timer, now_);
  if (std::min(message_at, timer_at) > limit || (message == queue_.end() && timer == nullptr)) return false;
  if (message_at <= timer_at) {
    now_ = message_at;
    hand_over(message);
    return true;
  }
  now_ = timer_at;
  if (timer->timer_ran_at == now_ && timer->timer_runs > kMostTimerRunsInAnInstant) {
    misuse("'" + timer->name + "' asks for its timers at " + std::to_string(timer->timer) +
           " over and over, but it is " + std::to_string(now_));
  }
  run_timers(*timer);
  return true;
}

void MemoryTransport::run_until(Nanos t) {
  while (step(t)) {
  }
  now_ = std::max(now_, t);
}

bool MemoryTransport::run_until_idle(Nanos limit) {
  const Nanos end = now_ + limit;
  for (;;) {
    const auto message = next_message();
    const Node* const timer = next_timer();
    if (message == queue_.end() && (timer == nullptr || timer->timer > now_)) return true;
    // With nothing on its way, timers of later are left alone; with something, they run in their turn.
    if (!step(end)) return false;
  }
}

bool MemoryTransport::deliver_next() {
  for (;;) {
    const auto message = next_message();
    if (message == queue_.end()) return false;
    const Nanos at = std::max(message->first.first, now_);
    Node* const timer = next_timer();
    if (timer != nullptr && timer->timer < at) {
      now_ = std::max(timer->timer, now_);
      run_timers(*timer);  // may send something that comes before
      if (timer->timer <= now_ && timer->timer_runs > kMostTimerRunsInAnInstant)
        misuse("'" + timer->name + "' spins");
      continue;
    }
    now_ = at;
    hand_over(message);
    return true;
  }
}

bool MemoryTransport::deliver(const std::string& from, const std::string& to) {
  const auto message = std::find_if(queue_.begin(), queue_.end(), [&](const auto& entry) {
    return entry.second.from == from && entry.second.to == to;
  });
  if (message == queue_.end() || !node(to).running()) return false;
  hand_over(message);
  return true;
}

void MemoryTransport::wake(const std::string& name) {
  Node& it = node(name);
  if (it.running()) run_timers(it);
}

std::vector<const Delivery*> MemoryTransport::queued() const {
  std::vector<const Delivery*> all;
  all.reserve(queue_.size());
  for (const auto& [order, delivery] : queue_) all.push_back(&delivery);
  return all;
}

}  // namespace ringmaster::actor
