// The main loop of a process: runs one actor until stop(). It waits on one thing (actor/waiter.h): on the
// process's doorbell, which descriptors ring through FdBell, rings and mailboxes themselves; or, in a process
// that nobody rings, on its descriptors. An idle loop sleeps.
// SPDX-License-Identifier: Apache-2.0
//
//   int main(...) {
//     if (auto ok = Loop::block_signals(); !ok) ...                   // before any thread exists
//     auto bell = shm::Doorbell::create();
//     auto transport = ZmqTransport::worker(config.worker_endpoint(), "tokenizer-worker.0");
//     TokenizerWorker worker(**transport, ...);                       // the actor; sends through it
//     auto loop = Loop::create(worker, **transport, *bell, {.spin = config.tokenizer_worker.spin});
//     (*loop)->on_signal([&](int signal, Nanos now) { worker.drain(now); });
//     (*loop)->watch(fd, [&](Nanos now) { ... });                     // a pidfd, SlotServer::watch_fds()
//     (*loop)->add_source([&](Nanos now) { return worker.read_rings(now); });
//     (*loop)->add_flush([&] { worker.commit_rings(); if (worker.drained()) (*loop)->stop(); });
//     (*loop)->run();
//     (*transport)->close(kSecond);                                   // last words
//   }
//
// Order of a turn: transport, ready descriptors, sources, timers, flushes; then it sleeps if none had work.
// Thread: one, which owns the doorbell. Only stop() may be called from others. Callbacks run inside run().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "actor/transport.h"
#include "actor/waiter.h"
#include "base/status.h"
#include "shm/doorbell.h"

namespace ringmaster::actor {

struct LoopOptions {
  Nanos spin = 0;      // busy waiting before sleeping
  size_t budget = 64;  // messages a turn: bounds how long rings and timers wait behind a flood of messages
  // Every wait has a deadline; also how long a peer's bug (a bell not rung) can delay us.
  Nanos max_sleep = kSecond;
};

struct LoopCounters {
  uint64_t turns = 0;
  uint64_t sleeps = 0;
  uint64_t messages = 0;
};

class Loop {
 public:
  // Blocks SIGTERM and SIGINT in this thread and all it will start, so that they arrive through on_signal().
  // To be called in main() before any thread exists. SIGPIPE is ignored: a dead peer is a return code.
  static Status block_signals();

  // All arguments outlive the loop. Without a bell it waits on the descriptors: then nothing may depend on
  // add_source() being called when memory changes.
  static Result<std::unique_ptr<Loop>> create(Actor& actor, Transport& transport, shm::Doorbell& bell,
                                              const LoopOptions& options = {});
  static Result<std::unique_ptr<Loop>> create(Actor& actor, Transport& transport,
                                              const LoopOptions& options = {});
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Called for each SIGTERM or SIGINT. REQUIRES: block_signals() before.
  Status on_signal(std::function<void(int signal, Nanos now)> callback);
  // `readable` is called once at first and then for every edge of `fd`: it must read until nothing is left.
  // It may call watch() and unwatch(), also for itself.
  Status watch(int fd, std::function<void(Nanos now)> readable);
  // To be called before `fd` is closed.
  void unwatch(int fd);
  // Called every turn; returns whether it found work. Whoever fills it rings the doorbell.
  void add_source(std::function<bool(Nanos now)> poll);
  // Called at the end of every turn, before sleeping: commits and rings what the turn produced.
  void add_flush(std::function<void()> flush);

  // Until stop(). May be called again afterwards.
  void run();
  // One turn without sleeping; whether there was work. For tests and for processes with a loop of their own.
  bool turn(Nanos now);
  // Any thread, async-signal-safe. run() returns at the end of the current turn.
  void stop();

  const LoopCounters& counters() const { return counters_; }

 private:
  struct Watch;
  struct Signals;
  Loop(Actor& actor, Transport& transport, const LoopOptions& options, std::unique_ptr<Waiter> waiter);
  static Result<std::unique_ptr<Loop>> create(Actor& actor, Transport& transport, const LoopOptions& options,
                                              Result<std::unique_ptr<Waiter>> waiter);
  size_t call_ready(Nanos now);

  Actor& actor_;
  Transport& transport_;
  LoopOptions options_;
  std::unique_ptr<Waiter> waiter_;
  std::vector<std::shared_ptr<Watch>> watches_;
  std::vector<std::function<bool(Nanos)>> sources_;
  std::vector<std::function<void()>> flushes_;
  std::unique_ptr<Signals> signals_;
  Nanos next_timer_ = 0;
  std::atomic<bool> stop_{false};
  LoopCounters counters_;
};

}  // namespace ringmaster::actor
