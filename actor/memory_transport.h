// A deterministic in-memory network for tests: any number of actors, a fake clock, and messages that move
// only when told. It behaves like ZeroMQ as ZmqTransport sets it up, where that matters to an actor:
//   - router actors see peers by name and get kUnreachable for a peer that is dead or not connected (yet)
//   - worker actors have one channel (0), send to peer "" and see peer ""; what they send while the router is
//     dead is kept and reaches its successor
//   - order is kept between two actors unless a rule breaks it
// Not thread-safe; not for production.
//
//   MemoryTransport net;
//   Router router(net.add_router("router", 2), ...);         net.attach("router", router);
//   Worker worker(net.add_worker("w0", "router", 1), ...);   net.attach("w0", worker);
//   net.run_until(net.now() + kSecond);
//   net.kill("w0");
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "actor/actor.h"

namespace ringmaster::actor {

// One message on its way, or delivered.
struct Delivery {
  uint64_t number = 0;  // in order of sending
  std::string from, to;
  Channel channel = 0;  // of the receiver
  Nanos sent_at = 0, at = 0;
  std::vector<std::byte> message;
};

// What happens to matching messages at the moment they are sent. Rules are tried in order of add_rule(); the
// first drop ends it, delays add up, each duplicate is one more copy.
struct Rule {
  enum class Action { kDrop, kDelay, kDuplicate };
  Action action = Action::kDrop;
  std::string from, to;                                   // empty: anyone
  std::function<bool(Bytes)> matches;                     // empty: every message
  double probability = 1;                                 // drawn from the network's seed
  uint64_t limit = std::numeric_limits<uint64_t>::max();  // most times it applies
  Nanos delay = 0;                                        // kDelay and, for the copy, kDuplicate
  Nanos jitter = 0;                                       // plus up to this much, drawn
  bool reorder = false;  // the delayed message may be overtaken by later ones
};

class MemoryTransport {
 public:
  explicit MemoryTransport(uint64_t seed = 1, Nanos start = kSecond);
  ~MemoryTransport();
  MemoryTransport(const MemoryTransport&) = delete;
  MemoryTransport& operator=(const MemoryTransport&) = delete;

  // REQUIRES: `name` is new; `router` exists and has the channel. The Outbox lives as long as this.
  Outbox& add_router(const std::string& name, int channels);
  Outbox& add_worker(const std::string& name, const std::string& router, Channel router_channel);
  // Gives the name its actor and lets it run (its timers first). Messages for it wait until then. `actor`
  // outlives this or is killed before.
  void attach(const std::string& name, Actor& actor);

  Nanos now() const { return now_; }
  // Every message takes this long. 0 by default: delivered in the same instant, in order of sending.
  void set_latency(Nanos latency) { latency_ = latency; }
  // How long a worker needs to find a restarted router (or a restarted worker its router).
  void set_reconnect(Nanos interval) { reconnect_ = interval; }
  void set_high_water_mark(size_t messages) { high_water_mark_ = messages; }  // a pair; then kFull
  int add_rule(Rule rule);
  void remove_rule(int rule);

  // Delivers messages and runs timers in order of time up to `t`, then it is `t`.
  void run_until(Nanos t);
  // The same until nothing is on its way and no timer is due, at the latest `limit` from now. True when idle.
  bool run_until_idle(Nanos limit = 10 * kSecond);
  // Exactly one event of those up to `limit`: a message handed over, or one actor's timers run. False when
  // there is none; the clock then stays.
  bool step(Nanos limit);
  // Delivers exactly the next message (the clock moves to its time); false when there is none. Timers due by
  // then run.
  bool deliver_next();
  // Delivers the next message between these two, before all others; false when there is none.
  bool deliver(const std::string& from, const std::string& to);
  // Runs the actor's timers now: after a test changed the actor directly.
  void wake(const std::string& name);

  // kill -9: the actor object is not called any more and may be destroyed. Messages to it vanish; those it
  // sent and that are still on their way vanish too unless `sent_arrives`.
  void kill(const std::string& name, bool sent_arrives = false);
  // A new actor under a killed name.
  void restart(const std::string& name, Actor& actor);
  // SIGSTOP and SIGCONT: messages wait, timers do not run, others still reach it.
  void pause(const std::string& name);
  void resume(const std::string& name);
  bool alive(const std::string& name) const;
  // A message for this actor could be delivered now.
  bool message_waits(const std::string& name) const;

  // Messages on their way, in order of delivery.
  std::vector<const Delivery*> queued() const;
  // Everything delivered so far, in order; nothing new while keep_trace(false) holds (long runs).
  const std::vector<Delivery>& trace() const { return trace_; }
  void keep_trace(bool keep) { keep_trace_ = keep; }
  uint64_t dropped() const { return dropped_; }

 private:
  class Node;
  using Order = std::pair<Nanos, uint64_t>;  // time, then order of scheduling

  Node& node(const std::string& name) const;
  Sent send(Node& from, Channel channel, std::string_view peer, Bytes message);
  void schedule(Delivery delivery, Nanos delay, bool reorder);
  std::map<Order, Delivery>::iterator next_message();
  Node* next_timer();
  void hand_over(std::map<Order, Delivery>::iterator message);
  void run_timers(Node& node);
  void postpone_messages_to(const std::string& name, Nanos earliest);
  uint64_t draw(uint64_t bound);

  std::mt19937_64 random_;
  Nanos now_;
  Nanos latency_ = 0;
  Nanos reconnect_ = 20 * kMillisecond;
  size_t high_water_mark_ = 65'536;
  std::map<std::string, std::unique_ptr<Node>> nodes_;
  std::map<Order, Delivery> queue_;
  std::map<std::pair<std::string, std::string>, Nanos> last_;  // a pair's latest delivery time: keeps order
  std::map<std::pair<std::string, std::string>, size_t> waiting_;  // a pair's messages on their way
  std::map<int, Rule> rules_;
  int next_rule_ = 1;
  uint64_t next_number_ = 1;
  uint64_t next_order_ = 1;
  uint64_t dropped_ = 0;
  std::vector<Delivery> trace_;
  bool keep_trace_ = true;
};

}  // namespace ringmaster::actor
