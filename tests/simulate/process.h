// A process of the simulated cluster: one life of the real actor with all that its main() gives it, driven a
// turn at a time as actor/loop.h does. After each turn it is asked whether its books balance.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "actor/actor.h"
#include "base/status.h"
#include "shm/doorbell.h"
#include "tests/simulate/allocations.h"
#include "tests/simulate/world.h"

namespace ringmaster::simulate {

// Thrown out of a turn in the middle of which its process dies; nothing of that turn happens any more.
struct Died {
  std::string name;
};

// The outbox of one life of a process, and the place where it may die: after so many acts (messages sent,
// calls of the device).
class MortalOutbox final : public actor::Outbox {
 public:
  MortalOutbox(actor::Outbox& inner, std::string name) : inner_(inner), name_(std::move(name)) {}
  actor::Sent send(actor::Channel channel, std::string_view peer, actor::Bytes message) override {
    const Runs outside(false);
    const actor::Sent sent = inner_.send(channel, peer, message);
    act();
    return sent;
  }
  void act() {
    if (left_ > 0 && --left_ == 0) throw Died{name_};
  }
  void die_after(uint32_t acts, Nanos away, bool words) {
    left_ = acts;
    away_ = away;
    last_words_ = words;
  }
  Nanos away() const { return away_; }
  bool last_words() const { return last_words_; }

 private:
  actor::Outbox& inner_;
  const std::string name_;
  uint32_t left_ = 0;
  Nanos away_ = 0;
  bool last_words_ = false;
};

class Process : public actor::Actor {
 public:
  Process(World& world, std::string name, uint64_t life)
      : world_(world), name_(std::move(name)), life_(life) {}

  const std::string& name() const { return name_; }
  uint64_t life() const { return life_; }  // its pid and instance: never used again

  void receive(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) final;
  Nanos run_timers(Nanos now) final;

  // Its doorbell has rung since the last turn began.
  bool rung() const { return bell_ && bell_->sequence() != seen_; }
  bool wake_planned = false;  // on the agenda already
  // It was stopped within a turn, with messages unread: its timers run before it reads on.
  bool interrupted = false;

  virtual const std::string& node() const { return name_; }  // in the network
  virtual std::optional<int> exit_code() const { return std::nullopt; }
  // SIGTERM.
  virtual void drain(Nanos) {}
  // Invariants that hold between any two events.
  virtual Status check() const = 0;
  // Nothing left of any request, once all have ended and every linger has passed.
  virtual Status check_baseline() const = 0;

 protected:
  virtual void take(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) = 0;
  // Rings, timers, flush; returns when the next turn is due.
  virtual Nanos turn(Nanos now) = 0;

  void make_bell();
  // Code of the cluster, called outside of a turn. Out of memory it ends the process, as base/unhandled.h
  // does.
  template <typename Body>
  decltype(auto) as_process(Body body) const {
    const Runs inside(true);
    try {
      return body();
    } catch (const std::bad_alloc&) {
      throw Died{name_};
    }
  }

  World& world_;
  const std::string name_;
  const uint64_t life_;
  std::optional<shm::Doorbell> bell_;

 private:
  uint32_t seen_ = 0;
  size_t received_ = 0;  // messages of the turn that has not begun
};

// Error: kInternal, "NAME: what", unless `holds`.
Status expect(bool holds, const std::string& what);

// What cannot fail but for lack of descriptors or memory; then the run is not a run.
template <typename T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}

// For the trace: "Streams(client.0.0: chunk 12+3 ...)".
std::string describe_message(std::string_view to, actor::Bytes message);

}  // namespace ringmaster::simulate
