// The gpu-worker as an actor: between the rings of its tokenizer-workers, the scheduler and the device. It
// moves commands in, steps through, tokens out; it computes nothing and decides nothing about batches itself.
//
// A turn of the loop (README.md has the table):  read rings -> expire -> retire steps -> write tokens -> plan
// and submit -> commit and ring.  It waits only in the loop, on the process's doorbell.
//
// Thread: the worker's loop thread. Owner of KvCache, Scheduler and RingServer; user of Device and Outbox.
// Invariants: every start command that could be read gets exactly one Ended, whatever happens, as long as its
// tokenizer-worker lives; the books of scheduler and cache balance whenever the worker is idle.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actor/actor.h"
#include "base/config.h"
#include "gpu-worker/device/device.h"
#include "gpu-worker/kv/kv_cache.h"
#include "gpu-worker/ring_server.h"
#include "gpu-worker/schedule/scheduler.h"

namespace ringmaster::gpu_worker {

struct WorkerIdentity {
  std::string name;  // "gpu-worker.0"
  int pid = 0;
  uint64_t instance = 0;    // random; also in the slots' headers
  std::string ring_socket;  // that hands out slots
  std::string model;        // as cluster.yaml names it, like the tokenizer-workers
};

struct WorkerOptions {
  uint64_t token_ring_bytes = shm::SlotSizes{}.token_bytes;  // of the slots, for the report of a full one
  bool check_every_step = false;                             // the books, not only when idle
  Nanos heartbeat = 500 * kMillisecond;                      // a quarter of router.worker_timeout
};

struct WorkerCounters {
  uint64_t starts = 0;
  uint64_t refused = 0;             // starts that ended before they were a request
  uint64_t foreign_commands = 0;    // about a request of another tokenizer-worker: ignored
  uint64_t malformed_messages = 0;  // from the router: ignored
  uint64_t registrations = 0;
  uint64_t sends_refused = 0;  // by the transport: by design a bug; the next heartbeat makes up for it
  uint64_t steps = 0;          // retired
};

class GpuWorker final : public actor::Actor, private RingServer::Handler {
 public:
  // `device` and `outbox` outlive the worker. Error: kInvalidArgument, settings that contradict each other.
  static Result<std::unique_ptr<GpuWorker>> create(const GpuWorkerConfig& config, WorkerIdentity identity,
                                                   Device& device, std::unique_ptr<shm::SlotServer> slots,
                                                   actor::Outbox& outbox, const WorkerOptions& options = {});

  void receive(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) override;
  Nanos run_timers(Nanos now) override;

  // One turn; true when there was work. To be called whenever the doorbell rang or run_timers() was due.
  bool poll(Nanos now);
  std::vector<int> watch_fds() const { return rings_.watch_fds(); }
  void slots_readable(Nanos now);

  // Takes no new starts, finishes what runs, then is finished(). SIGTERM and DrainGpuWorker.
  void drain(Nanos now);
  // Ends everything now: the second SIGTERM.
  void stop(Nanos now);

  // The process's exit code, once there is nothing left to do; 0 after drain() and stop(), kExitDevice...
  // when the device is lost, which then must not be destroyed. Nothing may be called then.
  std::optional<int> finished() const { return exit_code_; }
  bool draining() const { return draining_; }

  const Scheduler& scheduler() const { return scheduler_; }
  const KvCache& kv() const { return kv_; }
  const RingServer& rings() const { return rings_; }
  const WorkerCounters& counters() const { return counters_; }

 private:
  GpuWorker(const GpuWorkerConfig& config, const SchedulerConfig& scheduler, const KvConfig& kv,
            WorkerIdentity identity, Device& device, std::unique_ptr<shm::SlotServer> slots,
            actor::Outbox& outbox, const WorkerOptions& options);

  // RingServer::Handler
  void on_command(uint32_t slot, Command command) override;
  void on_broken(uint32_t slot, const Error& why) override;
  void on_lost(uint32_t slot) override;

  void start(uint32_t slot, NewSequence sequence);
  void refuse(uint32_t slot, Epoch epoch, const Error& why);
  bool owned(uint32_t slot, Epoch epoch);
  void end_requests(std::optional<uint32_t> slot, EndReason reason, Code code, std::string_view message);

  bool retire_steps(Nanos now);
  bool submit_steps(Nanos now);
  void write_events(uint64_t step, Nanos now);
  void hold_full_slots();
  void check_books(Nanos now);
  void check_hang(Nanos now);
  Nanos hung_at() const;
  void fail(const Error& why, Nanos now, int exit_code);
  void finish(int exit_code, Nanos now);

  void send_register();
  void send_heartbeat();
  void audit(uint64_t tag);
  void send(actor::Bytes message);
  void registered(uint32_t incarnation);

  const GpuWorkerConfig config_;
  const WorkerIdentity identity_;
  const WorkerOptions options_;
  Device& device_;
  actor::Outbox& outbox_;
  KvCache kv_;
  Scheduler scheduler_;
  RingServer rings_;

  Events events_;             // of the turn in progress
  std::vector<bool> held_;    // [slots], as the scheduler knows it
  Nanos now_ = 0;             // of the turn in progress
  bool idle_checked_ = true;  // nothing has happened since the books were checked
  bool draining_ = false;
  std::optional<int> exit_code_;
  uint32_t in_flight_ = 0;  // steps submitted and not retired
  Nanos step_began_ = 0;    // the oldest of them: when it was submitted, or the one before it retired

  Nanos next_heartbeat_ = 0;
  uint32_t incarnation_ = 0;  // of the router that answered; 0: none yet
  bool asked_ = false;        // a Register is unanswered
  WorkerCounters counters_;
};

}  // namespace ringmaster::gpu_worker
