#include "tokenizer-worker/encode_pool.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>

#include "base/log.h"

namespace ringmaster::tokenizer_worker {
namespace {

// One prompt never ends the process: libraries below (JSON, the allocator) report by exception.
Result<std::vector<TokenId>> build(const PromptBuilder& builder, PromptView prompt,
                                   const std::atomic<bool>& cancelled) {
  try {
    return builder.build(prompt, cancelled);
  } catch (const std::bad_alloc&) {
    return Error{Code::kResourceExhausted, "no memory to encode this prompt"};
  } catch (const std::exception& error) {
    return Error{Code::kInternal, std::string("encoding the prompt failed: ") + error.what()};
  }
}

}  // namespace

EncodePool::EncodePool(const PromptBuilder& builder, uint32_t threads, size_t max_jobs, shm::Doorbell& bell,
                       size_t inline_bytes)
    : builder_(builder),
      max_jobs_(max_jobs),
      inline_bytes_(inline_bytes),
      inline_left_(inline_bytes),
      results_(max_jobs, bell) {
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

EncodePool::~EncodePool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
    for (Running& running : running_) running.cancelled.store(true, std::memory_order_relaxed);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status EncodePool::submit(EncodeJob job) {
  if (in_flight_ >= max_jobs_)
    return Error{Code::kOverloaded,
                 std::to_string(in_flight_) + " prompts wait to be encoded; allowed: at most " +
                     std::to_string(max_jobs_) + " (tokenizer-worker.encode_queue); retry later"};
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(job));
  }
  ++in_flight_;
  wake_.notify_one();
  return ok_status();
}

std::optional<Result<std::vector<TokenId>>> EncodePool::encode_here(const EncodeJob& job) {
  const size_t bytes = job.message.size() * sizeof(uint64_t);
  if (job.prompt.type == msg::Prompt::ChatPrompt || bytes > inline_left_) return std::nullopt;
  inline_left_ -= bytes;
  return build(builder_, job.prompt, std::atomic<bool>{false});
}

void EncodePool::cancel(EncodeTicket ticket) {
  const std::lock_guard lock(mutex_);
  const auto job =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const EncodeJob& j) { return j.ticket == ticket; });
  if (job != waiting_.end()) {
    waiting_.erase(job);
    --in_flight_;
    return;
  }
  for (Running& running : running_)
    if (running.ticket == ticket) running.cancelled.store(true, std::memory_order_relaxed);
}

std::optional<Encoded> EncodePool::take() {
  auto result = results_.pop();
  if (result) --in_flight_;
  return result;
}

bool EncodePool::run_one() {
  EncodeJob job;
  std::list<Running>::iterator running;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return false;
    job = std::move(waiting_.front());
    waiting_.pop_front();
    running = running_.emplace(running_.end());
    running->ticket = job.ticket;
  }
  run(std::move(job), running);
  return true;
}

void EncodePool::run(EncodeJob job, std::list<Running>::iterator running) {
  Encoded encoded{job.ticket, build(builder_, job.prompt, running->cancelled)};
  {
    const std::lock_guard lock(mutex_);
    running_.erase(running);
  }
  // in_flight_ counts results too, so the mailbox has room for each.
  if (!results_.push(std::move(encoded)))
    log::error("encode pool: no room for the result of job {}; its request waits for its deadline",
               job.ticket.number);
}

void EncodePool::work() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      // A second is the deadline of every wait here, not a tuning: submit() notifies.
      while (!stopping_ && waiting_.empty()) wake_.wait_for(lock, std::chrono::seconds(1));
      if (stopping_) return;
    }
    run_one();
  }
}

}  // namespace ringmaster::tokenizer_worker
