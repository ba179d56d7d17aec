// Threads that turn prompts into ids, so that a 1 MB prompt never stalls the streams (TOK-17). One stream
// thread submits, cancels and takes results; the pool's threads only run PromptBuilder on a copy of the
// message. At most `max_jobs` jobs are anywhere between submit() and take(); more are refused. Results ring
// the doorbell. A short prompt is quicker encoded than handed to another thread and back (two wake-ups), so
// the stream thread may encode_here() a bounded number of bytes a turn.
//
// First come, first served: a long prompt delays prompts behind it (with one thread by its whole encoding),
// never a running stream. Thread: submit, cancel, take, encode_here, end_turn, in_flight: the owner's.
// run_one: any (the pool's threads call it; tests may, with 0 threads).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "actor/mailbox.h"
#include "base/status.h"
#include "tokenizer-worker/prompt_builder.h"

namespace ringmaster::tokenizer_worker {

// Who waits for a prompt's ids: a request (its epoch) or a tokenize query (its number).
struct EncodeTicket {
  enum class Kind : uint8_t { kRequest, kQuery };
  Kind kind = Kind::kRequest;
  uint64_t number = 0;
  bool operator==(const EncodeTicket&) const = default;
};

struct EncodeJob {
  EncodeTicket ticket;
  std::vector<uint64_t> message;  // the bytes that `prompt` points into, aligned as FlatBuffers reads them
  PromptView prompt;
};

struct Encoded {
  EncodeTicket ticket;
  Result<std::vector<TokenId>> ids;
};

class EncodePool {
 public:
  // `builder` and `bell` outlive the pool. Without threads somebody calls run_one().
  // `inline_bytes`: see encode_here().
  EncodePool(const PromptBuilder& builder, uint32_t threads, size_t max_jobs, shm::Doorbell& bell,
             size_t inline_bytes = 0);
  // Finishes the jobs that run; those that wait are dropped.
  ~EncodePool();
  EncodePool(const EncodePool&) = delete;
  EncodePool& operator=(const EncodePool&) = delete;

  // kOverloaded when max_jobs are in flight.
  Status submit(EncodeJob job);
  // A job that waits leaves at once and has no result; one that runs ends early and its result is an error or
  // comes too late.
  void cancel(EncodeTicket ticket);
  std::optional<Encoded> take();
  size_t in_flight() const { return in_flight_; }

  // Encodes on this thread if `job` is a message of text or ids that fits into what is left of this turn's
  // `inline_bytes`; otherwise nothing, and it is to be submitted. Chats go to the threads: what a template
  // does with one is up to the model.
  std::optional<Result<std::vector<TokenId>>> encode_here(const EncodeJob& job);
  void end_turn() { inline_left_ = inline_bytes_; }

  // Runs the oldest waiting job on this thread; false when none waits.
  bool run_one();

 private:
  struct Running {
    EncodeTicket ticket;
    std::atomic<bool> cancelled{false};
  };
  void work();
  void run(EncodeJob job, std::list<Running>::iterator running);

  const PromptBuilder& builder_;
  const size_t max_jobs_;
  const size_t inline_bytes_;
  size_t inline_left_;  // owner's, as the next
  size_t in_flight_ = 0;
  actor::Mailbox<Encoded> results_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;          // GUARDED_BY(mutex_)
  std::deque<EncodeJob> waiting_;  // GUARDED_BY(mutex_)
  std::list<Running> running_;     // GUARDED_BY(mutex_), `cancelled` apart
  std::vector<std::thread> threads_;
};

}  // namespace ringmaster::tokenizer_worker
