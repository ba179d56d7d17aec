// The tensors of a model in device memory, in the order in which the kernels take them: q, k and v under one
// another, gate and up row by row in turn, rotary pairs as neighbours. A layer's matrices have four bits
// where all their tensors have four bits in the file, else 16; embedding and head have 16. From a GGUF file
// (any type kernels/packing.h reads) or drawn at random, for measuring speed where no checkpoint can be had.
// Read once, through pinned memory, by several threads; immutable after that.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/gguf.h"
#include "base/status.h"
#include "gpu-worker/device/cuda/memory.h"
#include "gpu-worker/kernels/cuda/four_bit.h"
#include "gpu-worker/kernels/cuda/tensors.h"
#include "gpu-worker/model/description.h"

namespace ringmaster::gpu_worker::cuda {

// Columns of a group of each matrix of a layer; 0: 16 bits a weight.
struct LayerForms {
  uint32_t qkv = 0, attention_output = 0, gate_up = 0, down = 0;
};
using WeightForms = std::vector<LayerForms>;  // [layers]

// One of the two forms.
struct Matrix {
  bf16* wide = nullptr;    // [n, k]
  FourBitMatrix four_bit;  // n of 0: wide

  bool is_four_bit() const { return four_bit.shape.n != 0; }
};

struct LayerWeights {
  bf16* attention_norm = nullptr;     // [hidden]
  Matrix qkv;                         // [(heads + 2 * kv_heads) * head_dim, hidden]
  Matrix attention_output;            // [hidden, heads * head_dim]
  bf16* feed_forward_norm = nullptr;  // [hidden]
  Matrix gate_up;                     // [2 * feed_forward, hidden]
  Matrix down;                        // [hidden, feed_forward]
};

struct Weights {
  bf16* embedding = nullptr;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  bf16* output_norm = nullptr;         // [hidden]
  bf16* head = nullptr;                // [padded_vocab, hidden]; the embedding when tied
  float* inverse_frequency = nullptr;  // [rope.dims / 2]
  uint32_t padded_vocab = 0;           // a multiple of eight; rows beyond the vocabulary are zero
  bf16* widened = nullptr;             // scratch: the largest matrix of four bits, for steps of many rows
};

// From the types of the file's tensors; of a shape, from its description.
WeightForms forms_of(const Gguf& file, const ModelDescription& description);
WeightForms forms_of(const ModelDescription& description);

// The same calls count bytes (null base) and place.
Weights place_weights(const ModelDescription& description, const WeightForms& forms, Layout& layout);

// Fills placed weights. Errors: kMalformed, kUnsupported: name the tensor; kInternal: CUDA.
Status load_weights(const Gguf& file, const ModelDescription& description, const Weights& weights,
                    unsigned threads);
// Uniform values of the variance 1 / columns, norms of one. The same seed, the same weights.
Status random_weights(const ModelDescription& description, const Weights& weights, uint64_t seed);

}  // namespace ringmaster::gpu_worker::cuda
