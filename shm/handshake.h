// The two messages by which a slot changes hands, over a SOCK_SEQPACKET Unix socket: a Hello with the
// tokenizer-worker's doorbell and the gpu-worker instance that it wants, answered by a Reply with the slot's
// memory file and the gpu-worker's doorbell, or by a refusal without descriptors. LAYOUT.md draws them. Used
// by attach_slot and SlotServer alone. One host, so native byte order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "base/status.h"

namespace ringmaster::shm {

inline constexpr uint64_t kHandshakeMagic = 0x00'31'44'4E'41'48'4D'52;  // "RMHAND1\0" in memory order
inline constexpr size_t kMaxHolderName = 63;

// With 1 descriptor: the sender's doorbell. Magic and version keep their places in every version.
struct Hello {
  uint64_t magic;
  uint32_t version;
  uint32_t name_size;
  uint64_t gpu_instance;  // that is wanted: a successor under the same path refuses
  char name[kMaxHolderName + 1];
};
static_assert(sizeof(Hello) == 88 && std::is_trivially_copyable_v<Hello>);

// With 2 descriptors when code is kOk: slot, doorbell of the gpu-worker. Without any, and all else 0,
// otherwise.
struct Reply {
  uint64_t magic;
  uint32_t version;
  uint32_t code;  // ringmaster::Code
  uint32_t slot;
  uint32_t pad;
  uint64_t gpu_instance;
  uint64_t command_bytes, prompt_bytes, token_bytes;
};
static_assert(sizeof(Reply) == 56 && std::is_trivially_copyable_v<Reply>);

// 1 to kMaxHolderName characters of [A-Za-z0-9._-]: it goes into log lines and file names.
inline bool valid_holder_name(std::string_view name) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= kMaxHolderName &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

}  // namespace ringmaster::shm
