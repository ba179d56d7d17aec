// A bounded queue from any thread of this process to the owner of a doorbell: results of an encode pool,
// callbacks of a device. A full mailbox refuses; what then happens is the sender's decision. Between
// processes: shm/ring.h.
//
// Thread: push() any, pop() the owner. `bell` outlives this.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "shm/doorbell.h"

namespace ringmaster::actor {

template <typename T>
class Mailbox {
 public:
  Mailbox(size_t capacity, shm::Doorbell& bell) : capacity_(capacity), bell_(bell) {}
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Takes `value` and rings, or returns false and leaves `value` as it was.
  bool push(T&& value) {
    {
      const std::lock_guard lock(mutex_);
      if (queue_.size() >= capacity_) return false;
      queue_.push_back(std::move(value));
    }
    bell_.ring();
    return true;
  }

  std::optional<T> pop() {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) return std::nullopt;
    std::optional<T> value(std::move(queue_.front()));
    queue_.pop_front();
    return value;
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return queue_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  const size_t capacity_;
  shm::Doorbell& bell_;
  mutable std::mutex mutex_;
  std::deque<T> queue_;  // GUARDED_BY(mutex_)
};

}  // namespace ringmaster::actor
