// The views that kernels of a step take: plain pointers into device memory with their shapes. Nothing here
// owns memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

namespace ringmaster::gpu_worker::cuda {

using bf16 = __nv_bfloat16;

// Keys and values of all layers. A block is one contiguous piece: [layer][kv_head][keys, then values],
// mma_layout.h says how inside.
struct KvView {
  bf16* data = nullptr;
  uint32_t layers = 0, kv_heads = 0, head_dim = 0;

  __host__ __device__ size_t piece_values() const { return size_t{2} * 16 * head_dim; }
  __host__ __device__ size_t block_values() const { return size_t{layers} * kv_heads * piece_values(); }
  __host__ __device__ bf16* piece(uint32_t block, uint32_t layer, uint32_t kv_head) const {
    return data + block * block_values() + (size_t{layer} * kv_heads + kv_head) * piece_values();
  }
};

// Where the tokens of a step stand. Arrays in device memory.
struct TokenView {
  const uint32_t* position = nullptr;  // [tokens], in its sequence
  const uint32_t* kv_slot = nullptr;   // [tokens], block * 16 + place in the block
};

// Neighbouring tokens of one sequence that lie in the same block.
struct BlockTokens {
  uint32_t first_token = 0;  // of the step
  uint32_t tokens = 0;       // 1 to 16
  uint32_t first_slot = 0;   // block * 16 + place of the first
};

// Rotary embedding of neighbouring pairs (2i, 2i + 1). Models whose pairs are half a head apart have their
// rows of q and k reordered when they are loaded; the dot product of q and k does not see the order.
struct RopeView {
  const float* inverse_frequency = nullptr;  // [dims / 2], radians a position
  uint32_t dims = 0;
};

// One piece of decode attention: keys [first_key, first_key + keys) of one row, for all its heads.
struct DecodePiece {
  uint32_t token = 0;        // of the step: whose query it is
  uint32_t first_block = 0;  // into the step's block list: the row's block table
  uint32_t first_key = 0;    // a multiple of 16
  uint32_t keys = 0;
  uint32_t part = 0;        // where the partial result goes
  uint32_t first_part = 0;  // of this token; parts of a token follow one another
  uint32_t parts = 0;       // 1: the piece is all there is
};

struct DecodePlan {
  const DecodePiece* pieces = nullptr;    // [count]
  const uint32_t* count = nullptr;        // in device memory: a graph is replayed with other plans
  const uint32_t* block_table = nullptr;  // of the step
};

}  // namespace ringmaster::gpu_worker::cuda
