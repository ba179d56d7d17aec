// Attaches to gpu-workers beside the stream thread: the handshake waits for another process, and no wait of
// theirs may stall the streams. One thread, one gpu-worker at a time. Results ring the doorbell. Attacher is
// the seam for tests. A slot that was given and could not be taken is asked for no second time: the next job
// for that instance of the gpu-worker takes it. Thread: attach, take: the owner's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "actor/mailbox.h"
#include "base/status.h"
#include "shm/slot.h"

namespace ringmaster::tokenizer_worker {

struct AttachJob {
  std::string gpu_worker;
  uint64_t gpu_instance = 0;
  std::string ring_socket;
};

struct Attached {
  std::string gpu_worker;
  uint64_t gpu_instance = 0;
  Result<shm::TokenizerEnd> end;  // of that instance
};

class Attacher {
 public:
  virtual ~Attacher() = default;
  // False when too many jobs wait: ask again later.
  virtual bool attach(AttachJob job) = 0;
  virtual std::optional<Attached> take() = 0;
};

class LinkAttacher : public Attacher {
 public:
  // `bell` is this process's doorbell, given to every gpu-worker; it outlives this.
  LinkAttacher(std::string own_name, shm::Doorbell& bell);
  ~LinkAttacher() override;
  bool attach(AttachJob job) override;
  std::optional<Attached> take() override;

 private:
  // Requests that are still open, by gpu-worker; the thread's.
  struct Asked {
    uint64_t gpu_instance;
    shm::SlotRequest request;
  };
  using AskedBefore = std::map<std::string, Asked>;

  void work();
  Result<shm::TokenizerEnd> handshake(const AttachJob& job, AskedBefore& asked) const;

  const std::string own_name_;
  shm::Doorbell& bell_;
  size_t in_flight_ = 0;  // owner's
  actor::Mailbox<Attached> results_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;       // GUARDED_BY(mutex_)
  std::deque<AttachJob> jobs_;  // GUARDED_BY(mutex_)
  std::thread thread_;
};

}  // namespace ringmaster::tokenizer_worker
