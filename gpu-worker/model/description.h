// A decoder as data: one forward pass serves Llama, Mistral, Qwen, Phi-3 and Gemma because what sets them
// apart is written down here and not in code. Read from a GGUF file's metadata; a device refuses by name what
// it does not execute. Plain values; any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/gguf.h"
#include "base/status.h"

namespace ringmaster::gpu_worker {

enum class Activation : uint8_t { kSilu, kGeluTanh };  // of the gated feed-forward: act(gate) * up

struct Rope {
  // Which two values of a head turn together. Llama files written by llama.cpp have the rows of q and k
  // reordered so that it is neighbours.
  enum class Pairs : uint8_t { kNeighbours, kHalves };
  Pairs pairs = Pairs::kNeighbours;
  uint32_t dims = 0;                     // of head_dim; the rest is left as it is
  std::vector<float> inverse_frequency;  // [dims / 2], radians a position; scaling factors are in it already
};

struct ModelDescription {
  std::string architecture;  // as in the file: "llama"
  std::string name;
  uint32_t layers = 0;
  uint32_t hidden = 0;
  uint32_t feed_forward = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;  // the longest the model was made for
  float norm_epsilon = 0;
  float norm_weight_offset = 0;  // Gemma: 1, weights are stored less one
  bool norm_after = false;       // Gemma 2 and 3: a second norm after attention and after feed-forward
  bool qk_norm = false;          // Qwen 3, Gemma 3: q and k normalised a head
  bool qkv_bias = false;         // Qwen 2
  float attention_scale = 0;     // of q . k; 1 / sqrt(head_dim) unless the model says otherwise
  float attention_soft_cap = 0;  // 0: none
  float final_soft_cap = 0;
  float embedding_scale = 1;     // Gemma: sqrt(hidden)
  std::vector<uint32_t> window;  // [layers], keys a query sees; 0: all
  Rope rope;
  Activation activation = Activation::kSilu;
  bool tied_head = false;  // the head is the embedding
  // Shapes only: layers' matrices are drawn with four bits a weight, in groups of so many columns; 0: 16 bits.
  uint32_t weight_group = 0;
};

// Errors: kUnsupported names the architecture or key, kMalformed the key and what is wrong with its value.
// Sizes are checked against each other and bounded, so that products of two of them fit 64 bits.
Result<ModelDescription> describe(const Gguf& file);

}  // namespace ringmaster::gpu_worker
