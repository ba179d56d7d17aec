// Where the rings of a slot lie, and the memory file that holds them: made and reset by the gpu-worker,
// checked by the tokenizer-worker. Internal to shm.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "shm/layout.h"
#include "shm/memory_file.h"
#include "shm/ring.h"
#include "shm/slot.h"

namespace ringmaster::shm {

struct SlotPlaces {
  RingPlace command, prompt, token;
  uint64_t size = 0;  // of the whole slot
};

// kInvalidArgument names the size that is not a power of two in [kMinRingBytes, kMaxRingBytes].
Result<SlotPlaces> place_rings(const SlotSizes& sizes);

struct SlotRings {
  RingView command, prompt, token;
};
// REQUIRES: `memory` has places.size bytes.
SlotRings rings_of(std::span<std::byte> memory, const SlotPlaces& places);

// Writes the whole header anew and empties the rings. REQUIRES: nobody else uses the slot.
void reset_slot(std::span<std::byte> memory, const SlotPlaces& places, uint32_t slot, uint64_t gpu_instance);
// Compares the header with what the reply has said. Error: kMalformed, kUnsupportedVersion.
Status check_slot(std::span<const std::byte> memory, const SlotPlaces& places, uint32_t slot,
                  uint64_t gpu_instance);

}  // namespace ringmaster::shm
