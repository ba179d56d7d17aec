// Intensity limit of restarts, as in Erlang's supervisors: at most `max` in any `window`; and the back-off
// between them, so that a cause that lasts a while does not use all of them up in a moment. Plain value, no
// clock and no chance of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "base/clock.h"

namespace ringmaster::launcher {

class RestartLimit {
 public:
  // As long as kubelet's: beyond it, waiting longer helps nobody.
  static constexpr Nanos kMaxDelay = 300 * kSecond;

  RestartLimit(uint32_t max, Nanos window, Nanos delay) : max_(max), window_(window), delay_(delay) {}

  // Whether one more restart at `now` is within the limit; if so it is counted.
  bool allow(Nanos now) {
    while (!times_.empty() && now - times_.front() >= window_) times_.pop_front();
    if (times_.size() >= max_) return false;
    times_.push_back(now);
    return true;
  }

  // How long the restart that allow() has just counted waits: not at all for the first in the window, `delay`
  // for the second, twice as long for each further one. `chance` in [0, 1) moves it by up to a quarter either
  // way, so that processes that die of one cause do not come back in step.
  Nanos backoff(double chance) const {
    if (times_.size() < 2) return 0;
    Nanos wait = delay_;
    for (size_t i = 2; i < times_.size() && wait < kMaxDelay; ++i) wait *= 2;
    return static_cast<Nanos>(static_cast<double>(std::min(wait, kMaxDelay)) * (0.75 + chance / 2));
  }

 private:
  uint32_t max_;
  Nanos window_;
  Nanos delay_;
  std::deque<Nanos> times_;  // ascending, at most max_
};

}  // namespace ringmaster::launcher
