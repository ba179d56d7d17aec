// Where keys and values of a block lie. A block is one contiguous piece for all layers:
//
//   [layer][kv_head] ( keys: [tile of 16 tokens][head_dim][16], values: [token][head_dim] ), f16
//
// Addresses only; the bytes are written and read by the kernels (store_kv, attend). Blocks are numbers here:
// who uses which is the scheduler's affair.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu-worker/kernels/kernels.h"
#include "gpu-worker/schedule/step_plan.h"

namespace ringmaster::gpu_worker {

struct KvMemory {
  std::byte* data = nullptr;
  uint32_t layers = 0, kv_heads = 0, head_dim = 0;
  uint32_t block_tokens = 0;  // a multiple of kernels::kTile

  size_t head_values() const { return size_t{block_tokens} * head_dim; }  // of keys, and again of values
  size_t block_bytes() const { return size_t{layers} * kv_heads * 2 * head_values() * sizeof(uint16_t); }

  // The tile that holds `position` of the sequence with this block table. Keys: [head_dim, kTile].
  uint16_t* key_tile(const BlockId* table, uint32_t position, uint32_t layer, uint32_t head) const {
    return piece(table[position / block_tokens], layer, head) + tile_offset(position);
  }
  uint16_t* value_tile(const BlockId* table, uint32_t position, uint32_t layer, uint32_t head) const {
    return piece(table[position / block_tokens], layer, head) + head_values() + tile_offset(position);
  }

 private:
  uint16_t* piece(BlockId block, uint32_t layer, uint32_t head) const {
    return reinterpret_cast<uint16_t*>(data + block * block_bytes()) +
           (size_t{layer} * kv_heads + head) * 2 * head_values();
  }
  size_t tile_offset(uint32_t position) const {
    return size_t{position % block_tokens / kernels::kTile} * kernels::kTile * head_dim;
  }
};

}  // namespace ringmaster::gpu_worker
