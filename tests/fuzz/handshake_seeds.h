// What handshake_fuzz and its seeds agree on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "shm/slot.h"

namespace ringmaster::fuzz {

inline constexpr uint64_t kHandshakeInstance = 77;
inline constexpr shm::SlotSizes kHandshakeSizes{4096, 8192, 4096};

}  // namespace ringmaster::fuzz
