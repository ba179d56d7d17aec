// The gpu-worker's side of its ring slots: commands in, tokens and endings out. It knows records and holders
// and nothing of scheduling or devices.
//
// The loop never waits for a reader. When a slot's token ring is full, its records queue here, in order, and
// full() asks the caller to leave that slot's rows out of the batch. What can still come is bounded by the
// steps in flight and one ending for each live request; and a slot with `max_pending` records in the queue
// has no more commands read, after those of the turn. A reader that lags is named in the log, with gap and
// age.
//
// Thread: the worker's loop thread. Invariant: a slot's records leave in the order they were written.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "gpu-worker/commands.h"
#include "gpu-worker/schedule/events.h"
#include "shm/slot.h"

namespace ringmaster::gpu_worker {

struct RingCounters {
  uint64_t commands = 0;
  uint64_t token_records = 0;
  uint64_t ended_records = 0;
  uint64_t full = 0;    // times a token ring had no room
  uint64_t broken = 0;  // links that broke their contract
};

// A slot and its holder, for an audit: how far this side has read and written its rings, in bytes.
struct SlotHolding {
  uint32_t slot = 0;
  std::string holder;
  int holder_pid = 0;
  uint64_t commands_read = 0, prompts_read = 0, tokens_written = 0;
  size_t pending = 0;  // records that wait for room
  bool broken = false;
};

class RingServer {
 public:
  // What arrives. Called from inside poll_slots() and read().
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void on_command(uint32_t slot, Command command) = 0;
    // The holder broke the contract of the rings or of the records: nothing is read from it any more, and the
    // caller ends its requests. Endings can still be written, unless the token ring itself is what broke.
    virtual void on_broken(uint32_t slot, const Error& why) = 0;
    // The holder is dead.
    virtual void on_lost(uint32_t slot) = 0;
  };

  // `slots` hands out `count` slots with token rings of `token_bytes`. `handler` outlives this.
  RingServer(std::unique_ptr<shm::SlotServer> slots, uint32_t count, uint64_t token_bytes, size_t max_pending,
             Handler& handler);

  std::vector<int> watch_fds() const { return slots_->watch_fds(); }
  // Connections, handshakes, deaths. To be called when one of watch_fds() is readable.
  void poll_slots();

  // Hands a bounded number of commands of each slot to the handler. True when there was something.
  bool read();
  // Ends the pairing with this holder (a command that is well-formed and still must not be): as if its rings
  // had broken; on_broken() is not called. The holder reads it as the ending of epoch 0.
  void break_link(uint32_t slot, const Error& why);

  // Everything in `events`, all tokens of one slot in as few records as their size allows. Events of a slot
  // without a holder vanish.
  void write(uint64_t step, const Events& events, Nanos now);
  // Moves queued records into their rings as far as there is room. True when something moved.
  bool flush(Nanos now);
  // Makes what was written visible and rings each tokenizer-worker that has something, once.
  void commit();

  bool full(uint32_t slot) const { return links_[slot] && !links_[slot]->pending.empty(); }
  bool any_pending() const;
  // When to call flush() again although nobody rings for room; kNever when nothing is queued.
  Nanos next_retry() const { return next_retry_; }
  uint32_t held() const { return slots_->held(); }
  uint32_t slots() const { return static_cast<uint32_t>(links_.size()); }
  std::vector<SlotHolding> holdings() const;
  const RingCounters& counters() const { return counters_; }

 private:
  struct Pending {
    shm::RecordType type;
    std::vector<std::byte> payload;
  };
  struct Link {
    explicit Link(shm::GpuEnd& e) : end(&e) {}
    shm::GpuEnd* end;  // the SlotServer's, valid until on_lost
    std::deque<Pending> pending;
    std::vector<const TokenEvent*> rows;  // of the write() in progress
    bool broken = false;
    bool dirty = false;
    Nanos full_since = 0;
    Nanos next_report = 0;
  };

  void attach(shm::GpuEnd& end);
  void lose(uint32_t slot);
  bool read_slot(uint32_t slot, Link& link);
  std::optional<Error> ring_error(const Link& link) const;
  void write_rows(Link& link, uint64_t step, std::span<const TokenEvent* const> rows, Nanos now);
  void write_ending(Link& link, const EndEvent& ending, Nanos now);
  template <typename Fill>
  void emit(Link& link, shm::RecordType type, size_t size, Nanos now, Fill fill);
  void report(Link& link, Nanos now);

  std::unique_ptr<shm::SlotServer> slots_;
  const uint64_t token_bytes_;
  const size_t max_pending_;
  Handler& handler_;
  std::vector<std::optional<Link>> links_;  // [count], by slot
  Nanos next_retry_ = kNever;
  Nanos retry_interval_ = 0;
  RingCounters counters_;
};

}  // namespace ringmaster::gpu_worker
