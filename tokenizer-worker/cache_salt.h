// What keeps the KV blocks of different tenants apart: the gpu-worker shares blocks only under an equal salt
// (shm::StartRecord::cache_salt), so the salt is the first 128 bits of SHA-256, not a hash that a tenant
// could steer. Pure; any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ringmaster::tokenizer_worker {

std::array<uint8_t, 32> sha256(std::string_view bytes);  // FIPS 180-4

// Adapter and rope variant join here when there are any; all tokenizer-workers of a cluster compute the same
// value.
std::array<uint64_t, 2> cache_salt(std::string_view tenant);

}  // namespace ringmaster::tokenizer_worker
