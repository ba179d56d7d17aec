// The CPU device's kernels as one table of pure functions: outputs first, raw pointers, a shape on every
// argument. No project type below this line; nothing here allocates, locks or fails. Three tables exist, one
// an instruction set, seam by file name: *_generic.cc is the slow, exact reference and runs anywhere,
// *_avx2.cc and *_avx512.cc are fast. They are chosen once, at start (dispatch.h).
//
// Batch invariance, the promise every table keeps: the bits of one output row depend on that row's inputs
// alone, never on how many rows, weight groups or queries a call was given. Across tables results differ in
// rounding. Thread: any. Buffers of one call may not overlap unless said so.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringmaster::gpu_worker::kernels {

inline constexpr size_t kBlock = 32;  // values of a row that share a scale
inline constexpr size_t kGroup = 16;  // weight rows packed side by side: one 512-bit register of 32-bit sums
inline constexpr size_t kTile = 16;   // keys stored side by side, so that a score needs no horizontal sum
inline constexpr size_t kSpan = 128;  // keys that one partial softmax covers, counted from position 0
inline constexpr size_t kQueries =
    4;  // most queries of one attend() call: 2 x 4 score sums fill the pipelines
inline constexpr size_t kMaxHeadDim = 256;
inline constexpr size_t kExtentBlock =
    128;  // logits that share one maximum and one partial sum in the sampler

// How a weight matrix lies in memory (packing.h draws it).
enum class WeightForm : uint8_t {
  kU4,  // 4-bit values with scale and minimum a block: Q4_1, Q4_0
  kU8,  // 8-bit values, stored plus 128, with a scale a block: Q8_0
  kF16,
  kBF16,
  kF32,
};
inline constexpr size_t kNumForms = 5;

// What a matrix product wants its left side to be: activations rounded to 8 bits a block, or as they are.
enum class InputForm : uint8_t { kQuantized, kFloat };
inline constexpr size_t kNumInputs = 2;
constexpr InputForm input_form(WeightForm form) {
  return form == WeightForm::kU4 || form == WeightForm::kU8 ? InputForm::kQuantized : InputForm::kFloat;
}

struct Extent {
  float max = 0;       // of the finite values
  uint32_t index = 0;  // the lowest index that holds it
  bool finite = true;  // every value is finite
};

// out[i][j] = row i . weight row j, or is increased by it. out: [m, groups * kGroup], rows out_stride floats
// apart; rows: [m] prepared, row_stride bytes apart; weights: `groups` packed groups of k.
using Matmul = void (*)(float* out, size_t out_stride, const std::byte* rows, size_t row_stride, size_t m,
                        const std::byte* weights, size_t k, size_t groups, bool increase);

struct Table {
  const char* name;

  // Bytes of one prepared row of k values; a multiple of 64.
  size_t (*row_bytes[kNumInputs])(size_t k);
  // Writes values [first, first + n) of a prepared row of k. x: [n]. REQUIRES: first, n, k multiples of
  // kBlock.
  void (*prepare[kNumInputs])(std::byte* row, size_t k, size_t first, const float* x, size_t n);
  // x -= what the prepared row stands for: the rest that rounding lost. x: [k].
  void (*subtract_prepared[kNumInputs])(float* x, const std::byte* row, size_t k);
  Matmul matmul[kNumForms];

  // x += y; [n], n a multiple of kGroup.
  void (*add)(float* x, const float* y, size_t n);
  // out = x / rms(x) * weight; all [n], n a multiple of kGroup.
  void (*rms_norm)(float* out, const float* x, const float* weight, size_t n, float epsilon);
  // out = silu(gate) * up; [n], n a multiple of kGroup; out may be gate.
  void (*silu_mul)(float* out, const float* gate, const float* up, size_t n);
  // Turns neighbouring pairs (2i, 2i + 1) of each head by the angle whose cosine and sine are given twice,
  // the first sine negated, and multiplies by scale. x: [heads, head_dim]; cosine, sine: [head_dim].
  void (*rope_pairs)(float* x, const float* cosine, const float* sine, size_t heads, size_t head_dim,
                     float scale);

  // One token's key and value into slot `slot` of a tile. k_tile: [head_dim, kTile] f16; v_tile: [kTile,
  // head_dim] f16; key, value: [head_dim]. Values beyond the range of f16 saturate.
  void (*store_kv)(uint16_t* k_tile, uint16_t* v_tile, size_t slot, const float* key, const float* value,
                   size_t head_dim);
  // Softmax-weighted sum of the values of keys [first_key, min(first_key + kSpan, last_key[i] + 1)) for each
  // query, not normalised. sums: [nq, head_dim]; max_sum: [nq, 2], the largest score and the sum of
  // exponentials below it; q: [nq, head_dim], rows q_stride floats apart, scaled already; tiles: those of the
  // span, each as in store_kv. REQUIRES: 1 <= nq <= kQueries, first_key a multiple of kSpan and <=
  // last_key[i].
  void (*attend)(float* sums, float* max_sum, const float* q, size_t q_stride, const uint32_t* last_key,
                 size_t nq, const uint16_t* const* k_tiles, const uint16_t* const* v_tiles, size_t first_key,
                 size_t head_dim);
  // Joins the partial result of a later span to that of the earlier ones. Shapes as of one query in attend().
  void (*attend_merge)(float* sums, float* max_sum, const float* later_sums, const float* later_max_sum,
                       size_t head_dim);
  // out = sums / max_sum[1]; [head_dim].
  void (*attend_finish)(float* out, const float* sums, const float* max_sum, size_t head_dim);

  // logits: [n], any n.
  Extent (*extent)(const float* logits, size_t n);
  // maxima: [ceil(n / kExtentBlock)], of each block of kExtentBlock logits.
  void (*block_maxima)(float* maxima, const float* logits, size_t n);
  // out[i] = exp((logits[i] - max) * scale); [n].
  void (*exponentials)(float* out, const float* logits, size_t n, float max, float scale);
  // sums: [ceil(n / kExtentBlock)], of the exponentials of each block, added up in order of index.
  void (*block_exp_sums)(double* sums, const float* logits, size_t n, float max, float scale);
};

}  // namespace ringmaster::gpu_worker::kernels
