#include "gpu-worker/gpu_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/process.h"
#include "gpu-worker/audit.h"
#include "gpu-worker/kv/siphash.h"
#include "schemas/codec.h"

namespace ringmaster::gpu_worker {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

constexpr actor::Channel kRouter = 0;

static_assert(static_cast<int>(EndReason::kStop) == static_cast<int>(msg::FinishReason::stop) &&
              static_cast<int>(EndReason::kCancelled) == static_cast<int>(msg::FinishReason::cancelled) &&
              static_cast<int>(EndReason::kError) == static_cast<int>(msg::FinishReason::error));

SchedulerConfig scheduler_config(const GpuWorkerConfig& config, const DeviceInfo& device) {
  SchedulerConfig s;
  s.vocab_size = device.vocab_size;
  s.context_length = device.context_length;
  s.max_running = std::min(config.max_running, device.num_lanes);
  s.max_waiting = config.max_waiting;
  s.max_owners = config.slots;
  s.step_tokens = config.step_tokens;
  s.prefill_chunk = config.prefill_chunk;
  s.max_in_flight = Device::kMaxInFlight;
  s.batching_window = config.batching_window;
  return s;
}

KvConfig kv_config(const GpuWorkerConfig& config, const DeviceInfo& device) {
  KvConfig kv;
  kv.num_blocks = device.num_blocks;
  kv.block_tokens = device.block_tokens;
  kv.prefix_cache = config.prefix_cache;
  kv.key = random_siphash_key();
  return kv;
}

// An impossible plan is no fault of the device.
int exit_code_of(const Error& step) {
  switch (step.code) {
    case Code::kWorkerLost:
      return kExitDeviceFailed;
    case Code::kResourceExhausted:
      return kExitDeviceMemory;
    default:
      return 1;
  }
}

}  // namespace

Result<std::unique_ptr<GpuWorker>> GpuWorker::create(const GpuWorkerConfig& config, WorkerIdentity identity,
                                                     Device& device, std::unique_ptr<shm::SlotServer> slots,
                                                     actor::Outbox& outbox, const WorkerOptions& options) {
  const SchedulerConfig scheduler = scheduler_config(config, device.info());
  if (auto status = Scheduler::validate(scheduler); !status) return std::move(status).error();
  return std::unique_ptr<GpuWorker>(new GpuWorker(config, scheduler, kv_config(config, device.info()),
                                                  std::move(identity), device, std::move(slots), outbox,
                                                  options));
}

GpuWorker::GpuWorker(const GpuWorkerConfig& config, const SchedulerConfig& scheduler, const KvConfig& kv,
                     WorkerIdentity identity, Device& device, std::unique_ptr<shm::SlotServer> slots,
                     actor::Outbox& outbox, const WorkerOptions& options)
    : config_(config),
      identity_(std::move(identity)),
      options_(options),
      device_(device),
      outbox_(outbox),
      kv_(kv),
      scheduler_(scheduler, kv_),
      // As many endings may wait for a reader as there can be live requests; then its commands wait too.
      rings_(std::move(slots), config.slots, options.token_ring_bytes,
             size_t{scheduler.max_running} + scheduler.max_waiting, *this),
      held_(config.slots) {}

// ---- one turn ----

bool GpuWorker::poll(Nanos now) {
  if (exit_code_) return false;
  now_ = now;
  bool work = rings_.flush(now);
  work |= rings_.read();
  scheduler_.expire(now, events_);
  work |= !events_.empty();
  write_events(0, now);
  work |= retire_steps(now);
  check_hang(now);
  hold_full_slots();
  if (!exit_code_) work |= submit_steps(now);
  rings_.commit();
  if (work) idle_checked_ = false;
  if (!exit_code_ && scheduler_.idle()) {
    check_books(now);
    if (!exit_code_ && draining_ && !rings_.any_pending()) finish(0, now);
  }
  return work;
}

bool GpuWorker::retire_steps(Nanos now) {
  bool any = false;
  while (!exit_code_) {
    auto result = device_.retire(now);
    if (!result) break;
    any = true;
    ++counters_.steps;
    --in_flight_;
    step_began_ = now;
    if (result->error) {
      fail(*result->error, now, exit_code_of(*result->error));
      break;
    }
    const uint64_t step = result->step;
    if (auto status = scheduler_.retire(std::move(*result), now, events_); !status) {
      fail(status.error(), now, 1);
      break;
    }
    write_events(step, now);
    if (options_.check_every_step) check_books(now);
  }
  return any;
}

bool GpuWorker::submit_steps(Nanos now) {
  bool any = false;
  while (auto plan = scheduler_.plan(now)) {
    if (in_flight_++ == 0) step_began_ = now;
    device_.submit(std::move(*plan));
    any = true;
  }
  return any;
}

void GpuWorker::write_events(uint64_t step, Nanos now) {
  if (events_.empty()) return;
  rings_.write(step, events_, now);
  events_.clear();
}

// The rows of a slot whose token ring is full leave the batch until its reader has made room.
void GpuWorker::hold_full_slots() {
  for (uint32_t slot = 0; slot < held_.size(); ++slot) {
    const bool full = rings_.full(slot);
    if (full == held_[slot]) continue;
    held_[slot] = full;
    scheduler_.hold(slot, full);
  }
}

void GpuWorker::check_books(Nanos now) {
  if (idle_checked_ && !options_.check_every_step) return;
  idle_checked_ = true;
  if (auto status = scheduler_.check(); !status) fail(status.error(), now, 1);
}

Nanos GpuWorker::hung_at() const {
  const Nanos limit = device_.info().step_limit;
  return in_flight_ == 0 || limit == kNever ? kNever : step_began_ + limit;
}

// Called after finished steps have retired, so that a turn which comes late blames no step for it.
void GpuWorker::check_hang(Nanos now) {
  if (exit_code_ || now < hung_at()) return;
  fail({Code::kWorkerLost, fmt::format("a step of device {} did not end within {} ms "
                                       "(gpu-worker.step_timeout)",
                                       device_.info().kind, device_.info().step_limit / kMillisecond)},
       now, kExitDeviceHung);
}

// The device or the books are lost: nothing that runs can be continued here. The supervisor starts a
// successor.
void GpuWorker::fail(const Error& why, Nanos now, int exit_code) {
  log::error("ending: {}", why.message);
  end_requests(std::nullopt, EndReason::kError, why.code, why.message);
  finish(exit_code, now);
}

void GpuWorker::finish(int exit_code, Nanos now) {
  write_events(0, now);
  rings_.commit();
  if (rings_.any_pending()) log::warning("records that their readers had no room for are dropped");
  log::info("stopped: {} steps, {} starts, {} refused, {} sends refused", counters_.steps, counters_.starts,
            counters_.refused, counters_.sends_refused);
  exit_code_ = exit_code;
}

void GpuWorker::drain(Nanos now) {
  if (draining_ || exit_code_) return;
  draining_ = true;
  log::info("draining: {} running, {} waiting", scheduler_.num_running(), scheduler_.num_waiting());
  poll(now);
}

void GpuWorker::stop(Nanos now) {
  if (exit_code_) return;
  now_ = now;
  draining_ = true;
  end_requests(std::nullopt, EndReason::kError, Code::kUnavailable, identity_.name + " was stopped");
  finish(0, now);
}

// ---- from the rings ----

void GpuWorker::slots_readable(Nanos now) {
  if (exit_code_) return;
  now_ = now;
  rings_.poll_slots();
  write_events(0, now);
}

void GpuWorker::on_command(uint32_t slot, Command command) {
  std::visit(
      Overloaded{
          [&](StartCommand& c) { start(slot, std::move(c.sequence)); },
          [&](RefusedStart& c) { refuse(slot, c.epoch, c.error); },
          [&](const shm::GrantRecord& c) {
            if (owned(slot, c.epoch)) scheduler_.grant(c.epoch, c.granted);
          },
          [&](const shm::CancelRecord& c) {
            if (owned(slot, c.epoch)) scheduler_.cancel(c.epoch, events_);
          },
          [&](const shm::StopAtRecord& c) {
            if (owned(slot, c.epoch)) scheduler_.stop_at(c.epoch, c.token_count, events_);
          },
          // Here a request of a dead tokenizer-worker will find its new owner: Scheduler::rebind() and a
          // replay from Sequence::tokens. Until on_lost() keeps such requests there is none to find.
          [&](const shm::RebindRecord& c) {
            refuse(slot, c.new_epoch,
                   {Code::kUnsupported, fmt::format("rebind of epoch {}: this gpu-worker does not keep the "
                                                    "requests of a dead tokenizer-worker yet; start again",
                                                    c.old_epoch)});
          },
      },
      command);
}

void GpuWorker::start(uint32_t slot, NewSequence sequence) {
  ++counters_.starts;
  const Epoch epoch = sequence.epoch;
  if (const Sequence* twin = scheduler_.find(epoch); twin != nullptr && twin->owner == slot) {
    // An Ended would end the request that runs under this epoch in its owner's eyes.
    const Error why{Code::kMalformed, fmt::format("epoch {} was started twice", epoch)};
    rings_.break_link(slot, why);
    on_broken(slot, why);
    return;
  }
  if (draining_)
    return refuse(slot, epoch, {Code::kUnavailable, identity_.name + " drains and takes no new requests"});
  sequence.owner = slot;
  if (auto status = scheduler_.submit(std::move(sequence), now_); !status)
    refuse(slot, epoch, status.error());
}

void GpuWorker::refuse(uint32_t slot, Epoch epoch, const Error& why) {
  ++counters_.refused;
  log::with({}, epoch).info("refused: {}", why.message);
  EndEvent ending;
  ending.epoch = epoch;
  ending.owner = slot;
  ending.reason = EndReason::kRefused;
  ending.code = why.code;
  ending.message = why.message;
  events_.endings.push_back(std::move(ending));
}

// Commands and endings cross each other, so an unknown epoch is nothing to speak of; another's epoch is.
bool GpuWorker::owned(uint32_t slot, Epoch epoch) {
  const Sequence* sequence = scheduler_.find(epoch);
  if (sequence == nullptr) return false;
  if (sequence->owner == slot) return true;
  ++counters_.foreign_commands;
  log::with({}, epoch).warning("slot {} sent a command about a request of slot {}; ignored", slot,
                               sequence->owner);
  return false;
}

void GpuWorker::on_broken(uint32_t slot, const Error& why) {
  end_requests(slot, EndReason::kError, why.code, why.message);
  EndEvent link;  // epoch 0 names no request: the link itself has ended
  link.owner = slot;
  link.reason = EndReason::kError;
  link.code = why.code;
  link.message = why.message;
  events_.endings.push_back(std::move(link));
}

// For now the requests of a dead tokenizer-worker end here; to survive it they will wait for a Rebind
// instead.
void GpuWorker::on_lost(uint32_t slot) {
  end_requests(slot, EndReason::kCancelled, Code::kWorkerLost,
               "the tokenizer-worker of this request has died");
  idle_checked_ = false;
}

void GpuWorker::end_requests(std::optional<uint32_t> slot, EndReason reason, Code code,
                             std::string_view message) {
  for (const Epoch epoch : scheduler_.live())
    if (!slot || scheduler_.find(epoch)->owner == *slot)
      scheduler_.end(epoch, reason, code, message, events_);
}

// ---- to and from the router ----

void GpuWorker::receive(actor::Channel, std::string_view, actor::Bytes message, Nanos now) {
  if (exit_code_) return;
  auto opened = msg::open<msg::GpuWorkerMessage>(message);
  if (!opened) {
    ++counters_.malformed_messages;
    log::warning("message from the router ignored: {}", opened.error().message);
    return;
  }
  switch ((*opened)->body_type()) {
    case msg::GpuWorkerBody::Registered:
      return registered((*opened)->body_as_Registered()->incarnation());
    case msg::GpuWorkerBody::DrainGpuWorker:
      return drain(now);
    case msg::GpuWorkerBody::AuditGpuWorker:
      return audit((*opened)->body_as_AuditGpuWorker()->tag());
    case msg::GpuWorkerBody::NONE:
      break;
  }
  ++counters_.malformed_messages;
  log::warning("message from the router ignored: body of unknown type {}",
               static_cast<int>((*opened)->body_type()));
}

void GpuWorker::registered(uint32_t incarnation) {
  const bool answered = std::exchange(asked_, false);
  if (incarnation == 0 || (!answered && incarnation != incarnation_)) return send_register();
  if (incarnation != incarnation_) log::info("registered with router incarnation {}", incarnation);
  incarnation_ = incarnation;
}

Nanos GpuWorker::run_timers(Nanos now) {
  if (exit_code_) return kNever;
  if (counters_.registrations == 0) send_register();
  if (now >= next_heartbeat_) {
    send_heartbeat();
    next_heartbeat_ = now + options_.heartbeat;
  }
  return std::min(
      {next_heartbeat_, scheduler_.next_wake(), device_.next_event(), rings_.next_retry(), hung_at()});
}

void GpuWorker::send_register() {
  const DeviceInfo& info = device_.info();
  flatbuffers::FlatBufferBuilder b;
  const auto model = msg::CreateModelInfoDirect(b, identity_.model.c_str(), info.weights_hash,
                                                info.vocab_size, info.context_length);
  const auto body = msg::CreateRegisterDirect(
      b, msg::WorkerKind::gpu_worker, identity_.name.c_str(), identity_.pid, identity_.instance, model,
      info.kind.c_str(), identity_.ring_socket.c_str(), config_.max_running + config_.max_waiting);
  send(msg::seal<msg::RouterMessage>(b, msg::RouterBody::Register, body.Union()));
  asked_ = true;
  ++counters_.registrations;
}

void GpuWorker::send_heartbeat() {
  flatbuffers::FlatBufferBuilder b;
  const auto load =
      msg::CreateLoad(b, scheduler_.num_running() + scheduler_.num_paused(), scheduler_.num_waiting(),
                      kv_.available(), kv_.num_blocks(), counters_.steps);
  const auto body = msg::CreateHeartbeat(b, identity_.instance, load, msg::WorkerKind::gpu_worker);
  send(msg::seal<msg::RouterMessage>(b, msg::RouterBody::Heartbeat, body.Union()));
}

void GpuWorker::audit(uint64_t tag) {
  flatbuffers::FlatBufferBuilder books, answer;
  build_books(books, scheduler_, kv_, rings_, scheduler_.num_lanes());
  send(msg::seal_audited(answer, tag, books));
}

// One that is lost needs no repetition of its own: a router that does not know us says so to the next
// heartbeat.
void GpuWorker::send(actor::Bytes message) {
  if (outbox_.send(kRouter, {}, message) != actor::Sent::kOk) ++counters_.sends_refused;
}

}  // namespace ringmaster::gpu_worker
