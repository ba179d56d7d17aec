#include "gpu-worker/device/cuda/decoder.h"

#include <algorithm>
#include <string>

#include "gpu-worker/device/cuda/cuda_error.h"
#include "gpu-worker/kernels/cuda/four_bit.h"
#include "gpu-worker/kernels/cuda/rows.h"
#include "gpu-worker/kernels/cuda/skinny.h"
#include "gpu-worker/kernels/cuda/wide.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

// Fewer rows are quicker in kernels/cuda/skinny.h (bench_cuda_kernels).
constexpr uint32_t kFewestWideRows = 9;
// Above, products with weights of four bits are made by cuBLASLt after they are widened
// (bench_cuda_four_bit).
constexpr uint32_t kFourBitRows = 32;

// Whether a matrix of four bits is multiplied as it is, and not widened first.
bool stays_four_bit(const FourBitProduct& p) {
  return p.weights.shape.n != 0 && p.rows <= kFourBitRows && add_four_bit_fits(p);
}

}  // namespace

Status check_executable(const ModelDescription& d) {
  const auto refuse = [&](const std::string& what) {
    return Error{Code::kUnsupported, "the cuda device does not run models with " + what};
  };
  if (d.norm_after) return refuse("norms after attention and feed-forward");
  if (d.norm_weight_offset != 0) return refuse("norm weights that are stored less one");
  if (d.qk_norm) return refuse("normalised queries and keys");
  if (d.qkv_bias) return refuse("biases on queries, keys and values");
  if (d.head_dim != 64 && d.head_dim != 96 && d.head_dim != 128 && d.head_dim != 256)
    return refuse("heads of " + std::to_string(d.head_dim) +
                  " values; it has kernels for 64, 96, 128 and 256");
  if (d.heads / d.kv_heads > 16)
    return refuse(std::to_string(d.heads / d.kv_heads) + " query heads a key-value head; at most 16");
  if (d.hidden % 32 != 0 || d.feed_forward % 32 != 0)
    return refuse("rows of " + std::to_string(d.hidden) + " and " + std::to_string(d.feed_forward) +
                  " values; it needs multiples of 32");
  return ok_status();
}

StepBuffers StepBuffers::place(const ModelDescription& d, const StepLimits& limits, Layout& layout) {
  StepBuffers b;
  const size_t tokens = limits.tokens, q_width = size_t{d.heads} * d.head_dim;
  const size_t padded_vocab = (d.vocab_size + 7) / 8 * 8, parts = StepInputs::max_pieces(limits);
  b.x = layout.take<bf16>(tokens * d.hidden);
  b.normed = layout.take<bf16>(tokens * d.hidden);
  b.qkv = layout.take<bf16>(tokens * (q_width + 2 * size_t{d.kv_heads} * d.head_dim));
  b.q = layout.take<bf16>(tokens * q_width);
  b.attended = layout.take<bf16>(tokens * q_width);
  b.gate_up = layout.take<bf16>(tokens * 2 * d.feed_forward);
  b.activated = layout.take<bf16>(tokens * d.feed_forward);
  b.logits = layout.take<float>(limits.rows * padded_vocab);
  b.adjusted = layout.take<float>(limits.rows * padded_vocab);
  b.attention.sums = layout.take<float>(parts * q_width);
  b.attention.max_sum = layout.take<float>(parts * d.heads * 2);
  b.attention.arrived = layout.take<uint32_t>(tokens * d.kv_heads);
  return b;
}

struct Decoder::Step {
  const StepShape& shape;
  const StepInputs& in;
  Launch how;
  TokenView tokens;
  SampledToken* results;
};

Status Decoder::enqueue(cudaStream_t stream, const StepShape& shape, const StepInputs& in,
                        SampledToken* results) {
  const Step step{.shape = shape,
                  .in = in,
                  .how = {.stream = stream, .overlap = true, .multiprocessors = p_.multiprocessors},
                  .tokens = {.position = in.position, .kv_slot = in.kv_slot},
                  .results = results};
  const ModelDescription& d = p_.description;
  // The first kernel of a step starts when all before it is done: it must not overlap with the copy of its
  // inputs.
  Launch first = step.how;
  first.overlap = false;
  if (Status s = check(embed(first, p_.weights.embedding, d.hidden, d.embedding_scale, in.ids, in.lane,
                             p_.lanes.last_id, shape.tokens, p_.buffers.x),
                       "embedding");
      !s)
    return s;
  for (uint32_t i = 0; i < d.layers; ++i)
    if (Status s = layer(step, i); !s) return s;
  return shape.samples > 0 ? head(step) : ok_status();
}

Status Decoder::layer(const Step& step, uint32_t index) {
  const ModelDescription& d = p_.description;
  const LayerWeights& w = p_.weights.layers[index];
  const StepBuffers& b = p_.buffers;
  const uint32_t rows = step.shape.tokens;
  Status s = queries_keys_values(step, index);
  if (s) s = attention(step, index);
  if (s) s = add(step, b.x, b.attended, w.attention_output, rows, d.hidden, d.heads * d.head_dim);
  if (s) s = gate_up(step, index);
  if (s) s = add(step, b.x, b.activated, w.down, rows, d.hidden, d.feed_forward);
  return s;
}

Status Decoder::queries_keys_values(const Step& step, uint32_t index) {
  const ModelDescription& d = p_.description;
  const LayerWeights& w = p_.weights.layers[index];
  const StepBuffers& b = p_.buffers;
  const uint32_t rows = step.shape.tokens, width = (d.heads + 2 * d.kv_heads) * d.head_dim;
  const Norm norm{w.attention_norm, d.norm_epsilon};
  const RopeView rope{p_.weights.inverse_frequency, d.rope.dims};
  const char* const what = "queries, keys and values";
  if (const FourBitProduct p{w.qkv.four_bit, b.x, rows}; stays_four_bit(p) && four_bit_fits(p))
    return check(project_qkv(step.how, p, norm, nullptr, step.tokens, rope, p_.kv, index, d.heads, b.q),
                 what);
  const Product of_x{w.qkv.wide, width, d.hidden, b.x, rows},
      of_normed{w.qkv.wide, width, d.hidden, b.normed, rows};
  const bool wide = is_wide(w.qkv, of_normed);
  if (!wide && !w.qkv.is_four_bit() && skinny_fits(of_x))
    return check(project_qkv(step.how, of_x, norm, nullptr, step.tokens, rope, p_.kv, index, d.heads, b.q),
                 what);
  Status s = check(rms_norm(step.how, b.x, nullptr, rows, d.hidden, norm, b.normed), "norm");
  if (s && wide)
    return check(
        wide_project_qkv(step.how, of_normed, nullptr, step.tokens, rope, p_.kv, index, d.heads, b.q), what);
  if (s) s = multiply(step, b.qkv, b.normed, w.qkv, rows, width, d.hidden, false);
  const bool values = step.shape.groups == 0;
  if (s)
    s = check(
        split_qkv(step.how, b.qkv, rows, nullptr, step.tokens, rope, p_.kv, index, d.heads, values, b.q),
        "queries and keys");
  if (s && !values)
    s = check(
        store_values(step.how, b.qkv, nullptr, step.in.groups, step.shape.groups, p_.kv, index, d.heads),
        "values");
  return s;
}

Status Decoder::gate_up(const Step& step, uint32_t index) {
  const ModelDescription& d = p_.description;
  const LayerWeights& w = p_.weights.layers[index];
  const StepBuffers& b = p_.buffers;
  const uint32_t rows = step.shape.tokens, width = 2 * d.feed_forward;
  const Norm norm{w.feed_forward_norm, d.norm_epsilon};
  const Gate kind = d.activation == Activation::kSilu ? Gate::kSilu : Gate::kGeluTanh;
  if (const FourBitProduct p{w.gate_up.four_bit, b.x, rows}; stays_four_bit(p) && four_bit_fits(p))
    return check(gated_product(step.how, p, norm, kind, b.activated), "gate and up");
  const Product of_x{w.gate_up.wide, width, d.hidden, b.x, rows},
      of_normed{w.gate_up.wide, width, d.hidden, b.normed, rows};
  const bool wide = is_wide(w.gate_up, of_normed);
  if (!wide && !w.gate_up.is_four_bit() && skinny_fits(of_x))
    return check(gated_product(step.how, of_x, norm, kind, b.activated), "gate and up");
  Status s = check(rms_norm(step.how, b.x, nullptr, rows, d.hidden, norm, b.normed), "norm");
  if (s && wide) return check(wide_gated_product(step.how, of_normed, kind, b.activated), "gate and up");
  if (s) s = multiply(step, b.gate_up, b.normed, w.gate_up, rows, width, d.hidden, false);
  if (s) s = check(gate(step.how, b.gate_up, rows, d.feed_forward, kind, b.activated), "activation");
  return s;
}

bool Decoder::is_wide(const Matrix& w, const Product& p) const {
  return !w.is_four_bit() && p.rows >= kFewestWideRows && wide_fits(p, p_.multiprocessors);
}

// y (+)= x W^T by cuBLASLt, which knows no four bits.
Status Decoder::multiply(const Step& step, bf16* y, const bf16* x, const Matrix& w, uint32_t rows, uint32_t n,
                         uint32_t k, bool add) {
  const bf16* weights = w.wide;
  if (w.is_four_bit()) {
    weights = p_.weights.widened;
    if (Status s = check(widen(step.how, w.four_bit, p_.weights.widened), "widening weights"); !s) return s;
  }
  return p_.matmul.run(step.how.stream, y, x, weights, rows, n, k, add);
}

// y += x W^T.
Status Decoder::add(const Step& step, bf16* y, const bf16* x, const Matrix& w, uint32_t rows, uint32_t n,
                    uint32_t k) {
  if (const FourBitProduct p{w.four_bit, x, rows}; stays_four_bit(p))
    return check(add_product(step.how, p, y), "adding a product");
  if (const Product p{w.wide, n, k, x, rows}; is_wide(w, p))
    return check(wide_add_product(step.how, p, y), "adding a product");
  if (!w.is_four_bit() && add_product_fits({.n = n, .k = k, .rows = rows}))
    return check(add_product(step.how, {w.wide, n, k, x, rows}, y), "adding a product");
  return multiply(step, y, x, w, rows, n, k, true);
}

Status Decoder::attention(const Step& step, uint32_t index) {
  const ModelDescription& d = p_.description;
  const uint32_t window = d.window[index] < d.context_length ? d.window[index] : 0;
  const AttentionShape shape{d.heads,           d.kv_heads,           d.head_dim,
                             d.attention_scale, d.attention_soft_cap, window};
  const StepInputs& in = step.in;
  if (step.shape.decode_only || step.shape.pieces > 0)
    if (Status s =
            check(decode_attention(step.how, shape, p_.kv, index, {in.pieces, in.piece_count, in.block_table},
                                   step.tokens, p_.buffers.q, p_.buffers.attention, p_.buffers.attended),
                  "decode attention");
        !s)
      return s;
  if (step.shape.tiles == 0) return ok_status();
  return check(prefill_attention(step.how, shape, p_.kv, index, in.tiles, step.shape.tiles, in.block_table,
                                 p_.buffers.q, p_.buffers.attended),
               "prefill attention");
}

Status Decoder::head(const Step& step) {
  const ModelDescription& d = p_.description;
  const StepBuffers& b = p_.buffers;
  const uint32_t rows = step.shape.samples, width = p_.weights.padded_vocab;
  Status s = check(rms_norm(step.how, b.x, step.in.sample_token, rows, d.hidden,
                            {p_.weights.output_norm, d.norm_epsilon}, b.normed),
                   "norm");
  if (!s) return s;
  if (skinny_fits({.n = width, .k = d.hidden, .rows = rows}) || d.final_soft_cap != 0) {
    for (uint32_t first = 0; s && first < rows; first += kSkinnyRows)
      s = check(logits(step.how,
                       {p_.weights.head, width, d.hidden, b.normed + size_t{first} * d.hidden,
                        std::min(kSkinnyRows, rows - first)},
                       d.final_soft_cap, b.logits + size_t{first} * width),
                "logits");
  } else {
    s = p_.matmul.run(step.how.stream, b.logits, b.normed, p_.weights.head, rows, width, d.hidden);
  }
  if (!s) return s;
  return check(sample(step.how, p_.lanes, b.logits, b.adjusted, d.vocab_size, width, step.in.samples, rows,
                      step.results),
               "sampling");
}

}  // namespace ringmaster::gpu_worker::cuda
