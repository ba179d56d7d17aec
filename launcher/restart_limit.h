// Intensity limit of restarts, as in Erlang's supervisors: at most `max` in any `window`. Plain value, no
// clock of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>

#include "base/clock.h"

namespace ringmaster::launcher {

class RestartLimit {
 public:
  RestartLimit(uint32_t max, Nanos window) : max_(max), window_(window) {}

  // Whether one more restart at `now` is within the limit; if so it is counted.
  bool allow(Nanos now) {
    while (!times_.empty() && now - times_.front() >= window_) times_.pop_front();
    if (times_.size() >= max_) return false;
    times_.push_back(now);
    return true;
  }

 private:
  uint32_t max_;
  Nanos window_;
  std::deque<Nanos> times_;  // ascending, at most max_
};

}  // namespace ringmaster::launcher
