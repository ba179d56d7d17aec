// Every array a step needs, named, with its largest shape, taken once at start; a step never allocates for
// tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "gpu-worker/device/cpu/host.h"
#include "gpu-worker/kernels/kernels.h"
#include "gpu-worker/model/description.h"
#include "gpu-worker/model/sampler.h"

namespace ringmaster::gpu_worker {

// Most tokens computed together; longer steps run in several rounds. Where prefill stops getting faster
// (bench/cpu_decode: 64, 128, 256, 512 tried), and small enough that activations stay in the second-level
// caches.
inline constexpr uint32_t kRoundTokens = 256;
// Most rows of logits held at once: a head product over fewer rows would read the head more often.
inline constexpr uint32_t kLogitRows = 32;
// Up to this many rows every thread normalises for itself, which is quicker than meeting at a barrier.
inline constexpr uint32_t kPrivateRows = 4;
// Tokens of a prompt whose attention to one key-value head is one piece of work.
inline constexpr uint32_t kQueryTokens = 16;
// Feed-forward columns computed, activated and rounded together: one block.
inline constexpr uint32_t kFeedForwardColumns = kernels::kBlock;
// Spans whose partial results are kept when few sequences with long contexts are split among threads.
inline constexpr uint32_t kParts = 1024;

struct StepBuffers {
  float* x = nullptr;              // [tokens, hidden], the residual stream
  float* cosine = nullptr;         // [tokens, head_dim], as rope_pairs wants them
  float* sine = nullptr;           // [tokens, head_dim]
  std::byte* normed = nullptr;     // [tokens] prepared rows of hidden
  float* qkv = nullptr;            // [tokens, (heads + 2 * kv_heads) * head_dim]
  float* q = nullptr;              // [kv_heads, tokens, group, head_dim], turned and scaled
  std::byte* attended = nullptr;   // [tokens] prepared rows of heads * head_dim
  std::byte* activated = nullptr;  // [tokens] prepared rows of feed_forward
  float* part_sums = nullptr;      // [kParts, group, head_dim]
  float* part_max_sums = nullptr;  // [kParts, group, 2]
  float* logits = nullptr;         // [2 * kLogitRows, vocabulary filled up to kGroup]: see Decoder::sample

  struct PerThread {
    float* gate = nullptr;        // [tokens, kFeedForwardColumns]
    float* up = nullptr;          // [tokens, kFeedForwardColumns]
    float* row = nullptr;         // [hidden]
    std::byte* normed = nullptr;  // [2 * kPrivateRows] prepared rows of hidden
    float* sums = nullptr;        // [kQueryTokens * group, head_dim]
    float* max_sums = nullptr;    // [kQueryTokens * group, 2]
    float* later_sums = nullptr;  // [kQueries, head_dim]
    SamplerScratch sampler;
  };
  std::vector<PerThread> threads;

  size_t hidden_row_bytes = 0;  // of a prepared row, the larger of the input forms
  size_t attended_row_bytes = 0;
  size_t feed_forward_row_bytes = 0;
  size_t qkv_width = 0;
  size_t logit_width = 0;

  // Shapes for this model; pointers are null until placed.
  StepBuffers(const ModelDescription& description, const kernels::Table& table, unsigned num_threads);
  size_t bytes() const { return bytes_; }
  // memory: [bytes()], aligned to 64, outlives this.
  void place(std::byte* memory);

 private:
  template <typename Visit>
  void each(Visit&& visit);
  size_t hidden_, head_dim_, kv_heads_, group_;
  size_t bytes_ = 0;
};

}  // namespace ringmaster::gpu_worker
