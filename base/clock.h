// One monotonic clock for deadlines and stage timings, in nanoseconds, comparable between the processes of
// one host (CLOCK_MONOTONIC). Actors never read it themselves: `now` is handed to them, so tests run on a
// fake one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <time.h>

#include <cstdint>
#include <limits>

namespace ringmaster {

using Nanos = int64_t;
inline constexpr Nanos kNever = std::numeric_limits<Nanos>::max();
inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;

inline Nanos monotonic_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * kSecond + t.tv_nsec;
}

}  // namespace ringmaster
