// Names for the numbers that travel through the whole system. Plain values, no ownership.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace ringmaster {

using TokenId = uint32_t;

// One assignment of a request to its workers: router incarnation << 32 | counter. It grows whenever the
// request moves, so records and messages of a former owner are recognised and dropped. Never 0.
using Epoch = uint64_t;

// A request as its client names it: 128 random bits. The same uid again is a resume, never a second run.
struct Uid {
  uint64_t hi = 0;
  uint64_t lo = 0;
  auto operator<=>(const Uid&) const = default;  // NOLINT(modernize-use-nullptr): of the code made for it
};

Uid random_uid();
uint64_t random_number();        // 64 bits from the kernel, never 0: instances of workers, seeds
std::string to_string(Uid uid);  // 32 lower-case hexadecimal digits

}  // namespace ringmaster

template <>
struct std::hash<ringmaster::Uid> {
  size_t operator()(const ringmaster::Uid& uid) const noexcept {
    return uid.hi ^ (uid.lo * 0x9E3779B97F4A7C15ull);
  }
};
