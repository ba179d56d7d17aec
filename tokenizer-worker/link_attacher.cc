#include "tokenizer-worker/link_attacher.h"

#include <chrono>

#include "base/clock.h"
#include "base/log.h"

namespace ringmaster::tokenizer_worker {
namespace {

// gpu-workers of one host; more wait for the next try.
constexpr size_t kMaxJobs = 64;
// A gpu-worker answers between two steps; a step of a large prefill on a CPU takes seconds.
constexpr Nanos kHandshake = 5 * kSecond;

}  // namespace

LinkAttacher::LinkAttacher(std::string own_name, shm::Doorbell& bell)
    : own_name_(std::move(own_name)), bell_(bell), results_(kMaxJobs, bell), thread_([this] { work(); }) {}

LinkAttacher::~LinkAttacher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool LinkAttacher::attach(AttachJob job) {
  if (in_flight_ >= kMaxJobs) return false;
  ++in_flight_;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
  return true;
}

std::optional<Attached> LinkAttacher::take() {
  auto attached = results_.pop();
  if (attached) --in_flight_;
  return attached;
}

Result<shm::TokenizerEnd> LinkAttacher::handshake(const AttachJob& job, AskedBefore& asked) const {
  const Nanos deadline = monotonic_now() + kHandshake;
  auto known = asked.find(job.gpu_worker);
  if (known != asked.end() && known->second.gpu_instance != job.gpu_instance) {
    asked.erase(known);  // of an instance that has a successor: it is dead, and its slots with it
    known = asked.end();
  }
  if (known == asked.end()) {
    auto sent = shm::SlotRequest::send(job.ring_socket, job.gpu_instance, own_name_, bell_, deadline);
    if (!sent) return std::move(sent).error();
    known = asked.emplace(job.gpu_worker, Asked{job.gpu_instance, std::move(sent).value()}).first;
  }
  auto end = known->second.request.take(deadline);
  if (!known->second.request.open()) asked.erase(known);
  return end;
}

void LinkAttacher::work() {
  AskedBefore asked;
  for (;;) {
    AttachJob job;
    {
      std::unique_lock lock(mutex_);
      while (!stopping_ && jobs_.empty()) wake_.wait_for(lock, std::chrono::seconds(1));
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    Attached attached{job.gpu_worker, job.gpu_instance, handshake(job, asked)};
    if (!results_.push(std::move(attached)))  // in_flight_ counts results too
      log::error("link attacher: no room for the answer of {}", job.gpu_worker);
  }
}

}  // namespace ringmaster::tokenizer_worker
