// Deadlines of an actor by name: set, move, cancel, and take what is due, in order of deadline and, for equal
// ones, in order of set(). Holds no callbacks and reads no clock. One thread; O(log n).
//
//   timers_.set(uid, now + lease);
//   while (auto uid = timers_.take_due(now)) expire(*uid);
//   return timers_.next();
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/clock.h"

namespace ringmaster::actor {

// Id: copyable, hashable, equality.
template <typename Id>
class Timers {
 public:
  // Replaces the deadline that `id` had. kNever is the same as cancel.
  void set(const Id& id, Nanos at) {
    cancel(id);
    if (at == kNever) return;
    const Key key{at, ++count_};
    order_.emplace(key, id);
    keys_.emplace(id, key);
  }

  bool cancel(const Id& id) {
    const auto found = keys_.find(id);
    if (found == keys_.end()) return false;
    order_.erase(found->second);
    keys_.erase(found);
    return true;
  }

  // The earliest deadline; kNever when nothing is set.
  Nanos next() const { return order_.empty() ? kNever : order_.begin()->first.first; }

  std::optional<Nanos> deadline(const Id& id) const {
    const auto found = keys_.find(id);
    if (found == keys_.end()) return std::nullopt;
    return found->second.first;
  }

  // Removes and returns the earliest id whose deadline is at or before `now`.
  std::optional<Id> take_due(Nanos now) {
    if (order_.empty() || order_.begin()->first.first > now) return std::nullopt;
    Id id = std::move(order_.begin()->second);
    order_.erase(order_.begin());
    keys_.erase(id);
    return id;
  }

  size_t size() const { return order_.size(); }
  bool empty() const { return order_.empty(); }

 private:
  using Key = std::pair<Nanos, uint64_t>;  // deadline, number of the set(): equal deadlines keep their order
  std::map<Key, Id> order_;
  std::unordered_map<Id, Key> keys_;
  uint64_t count_ = 0;
};

}  // namespace ringmaster::actor
