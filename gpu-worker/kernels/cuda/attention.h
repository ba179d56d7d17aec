// Attention over paged keys and values, softmax(q k^T * scale) v, head groups sharing keys (GQA). Decode: one
// query a row, keys divided among multiprocessors by a plan made for each step, partial results joined by
// whoever is last, in the order of the keys. Prefill: tiles of neighbouring queries, keys in order up to the
// query's own position. Both read the block pieces as they are (mma_layout.h) and keep a running maximum
// (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/cuda/launch.h"
#include "gpu-worker/kernels/cuda/tensors.h"

namespace ringmaster::gpu_worker::cuda {

struct AttentionShape {
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;  // 64, 96, 128 or 256
  float scale = 0;
  float soft_cap = 0;   // 0: none; scores become cap * tanh(score / cap)
  uint32_t window = 0;  // 0: all keys; else the newest `window` keys of a query
};

// Scratch of decode attention. Sums: [parts, heads, head_dim]; max_sum: [parts, heads, 2]; arrived: [tokens,
// kv_heads], zero before and after.
struct DecodeScratch {
  float* sums = nullptr;
  float* max_sum = nullptr;
  uint32_t* arrived = nullptr;
};

// Warps of decode attention that a multiprocessor runs at once; a piece is one warp's work.
uint32_t decode_warps(uint32_t head_dim);

// q, out: [tokens, heads, head_dim]. position: [tokens]: keys 0..position are visible. Errors:
// cudaErrorInvalidValue: a shape this build has no kernel for.
cudaError_t decode_attention(const Launch&, const AttentionShape&, const KvView&, uint32_t layer,
                             const DecodePlan&, const TokenView&, const bf16* q, const DecodeScratch&,
                             bf16* out);

// Up to kPrefillTile neighbouring queries of one row.
struct PrefillTile {
  uint32_t first_token = 0;  // of the step
  uint32_t tokens = 0;       // 1 to kPrefillTile
  uint32_t first_position = 0;
  uint32_t first_block = 0;  // into block_table
};
constexpr uint32_t kPrefillTile = 384;  // two blocks of threads with three teams, or three with two

// tiles: [count], device memory; best the longest first.
cudaError_t prefill_attention(const Launch&, const AttentionShape&, const KvView&, uint32_t layer,
                              const PrefillTile* tiles, uint32_t count, const uint32_t* block_table,
                              const bf16* q, bf16* out);

}  // namespace ringmaster::gpu_worker::cuda
