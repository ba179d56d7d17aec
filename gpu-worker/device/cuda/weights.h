// The tensors of a model in device memory, 16 bits each, in the order in which the kernels take them: q, k
// and v under one another, gate and up row by row in turn, rotary pairs as neighbours. From a GGUF file (any
// type kernels/packing.h reads) or drawn at random, for measuring speed where no checkpoint can be had. Read
// once, through pinned memory, by several threads; immutable after that.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/gguf.h"
#include "base/status.h"
#include "gpu-worker/device/cuda/memory.h"
#include "gpu-worker/kernels/cuda/tensors.h"
#include "gpu-worker/model/description.h"

namespace ringmaster::gpu_worker::cuda {

struct LayerWeights {
  bf16* attention_norm = nullptr;     // [hidden]
  bf16* qkv = nullptr;                // [(heads + 2 * kv_heads) * head_dim, hidden]
  bf16* attention_output = nullptr;   // [hidden, heads * head_dim]
  bf16* feed_forward_norm = nullptr;  // [hidden]
  bf16* gate_up = nullptr;            // [2 * feed_forward, hidden]
  bf16* down = nullptr;               // [hidden, feed_forward]
};

struct Weights {
  bf16* embedding = nullptr;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  bf16* output_norm = nullptr;         // [hidden]
  bf16* head = nullptr;                // [padded_vocab, hidden]; the embedding when tied
  float* inverse_frequency = nullptr;  // [rope.dims / 2]
  uint32_t padded_vocab = 0;           // a multiple of eight; rows beyond the vocabulary are zero
};

// The same calls count bytes (null base) and place.
Weights place_weights(const ModelDescription& description, Layout& layout);

// Fills placed weights. Errors: kMalformed, kUnsupported: name the tensor; kInternal: CUDA.
Status load_weights(const Gguf& file, const ModelDescription& description, const Weights& weights,
                    unsigned threads);
// Uniform values of the variance 1 / columns, norms of one. The same seed, the same weights.
Status random_weights(const ModelDescription& description, const Weights& weights, uint64_t seed);

}  // namespace ringmaster::gpu_worker::cuda
