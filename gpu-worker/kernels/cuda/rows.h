// Kernels over the rows of a step whose time does not matter beside the products: embedding, norms for the
// large products, rotary embedding and KV write after them, activation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/cuda/launch.h"
#include "gpu-worker/kernels/cuda/skinny.h"
#include "gpu-worker/kernels/cuda/tensors.h"

namespace ringmaster::gpu_worker::cuda {

// x[t] = table[id] * scale. ids: [tokens]; an id of kFromLane is last_id[lane[t]], what that lane sampled
// last. table: [vocab, hidden].
cudaError_t embed(const Launch&, const bf16* table, uint32_t hidden, float scale, const uint32_t* ids,
                  const uint32_t* lane, const uint32_t* last_id, uint32_t tokens, bf16* x);
// y[i] = norm(x[row[i]]); row null: all in order. x: [*, hidden], y: [count, hidden].
cudaError_t rms_norm(const Launch&, const bf16* x, const uint32_t* row, uint32_t count, uint32_t hidden,
                     const Norm&, bf16* y);
// What project_qkv does after its product. qkv: [tokens, (heads + 2 * kv_heads) * head_dim]. values: also v;
// else store_values is to follow.
cudaError_t split_qkv(const Launch&, const bf16* qkv, uint32_t tokens, const bf16* bias, const TokenView&,
                      const RopeView&, const KvView&, uint32_t layer, uint32_t heads, bool values, bf16* q);
// v of neighbouring tokens of a block together: one value at a time, as split_qkv writes them, is what takes
// the time of a long prompt.
cudaError_t store_values(const Launch&, const bf16* qkv, const bf16* bias, const BlockTokens* groups,
                         uint32_t count, const KvView&, uint32_t layer, uint32_t heads);
// y[t, i] = act(x[t, 2i]) * x[t, 2i + 1]. x: [tokens, 2 * width].
cudaError_t gate(const Launch&, const bf16* x, uint32_t tokens, uint32_t width, Gate, bf16* y);

}  // namespace ringmaster::gpu_worker::cuda
