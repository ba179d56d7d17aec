#include "gpu-worker/device/cuda/decoder.h"

#include <algorithm>
#include <string>

#include "gpu-worker/device/cuda/cuda_error.h"
#include "gpu-worker/kernels/cuda/rows.h"
#include "gpu-worker/kernels/cuda/skinny.h"

namespace ringmaster::gpu_worker::cuda {
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
  const uint32_t rows = step.shape.tokens, q_width = d.heads * d.head_dim,
                 qkv_width = q_width + 2 * d.kv_heads * d.head_dim;
  const Norm before_attention{w.attention_norm, d.norm_epsilon},
      before_feed_forward{w.feed_forward_norm, d.norm_epsilon};
  const RopeView rope{p_.weights.inverse_frequency, d.rope.dims};
  const Gate kind = d.activation == Activation::kSilu ? Gate::kSilu : Gate::kGeluTanh;

  Status s = ok_status();
  if (skinny_fits({.n = qkv_width, .k = d.hidden, .rows = rows})) {
    s = check(project_qkv(step.how, {w.qkv, qkv_width, d.hidden, b.x, rows}, before_attention, nullptr,
                          step.tokens, rope, p_.kv, index, d.heads, b.q),
              "queries, keys and values");
  } else {
    s = check(rms_norm(step.how, b.x, nullptr, rows, d.hidden, before_attention, b.normed), "norm");
    if (s) s = p_.matmul.run(step.how.stream, b.qkv, b.normed, w.qkv, rows, qkv_width, d.hidden, false);
    const bool values = step.shape.groups == 0;
    if (s)
      s = check(
          split_qkv(step.how, b.qkv, rows, nullptr, step.tokens, rope, p_.kv, index, d.heads, values, b.q),
          "queries and keys");
    if (s && !values)
      s = check(
          store_values(step.how, b.qkv, nullptr, step.in.groups, step.shape.groups, p_.kv, index, d.heads),
          "values");
  }
  if (s) s = attention(step, index);
  if (!s) return s;
  if (add_product_fits({.n = d.hidden, .k = q_width, .rows = rows})) {
    s = check(add_product(step.how, {w.attention_output, d.hidden, q_width, b.attended, rows}, b.x),
              "attention output");
  } else {
    s = p_.matmul.run(step.how.stream, b.x, b.attended, w.attention_output, rows, d.hidden, q_width, true);
  }
  if (!s) return s;
  if (skinny_fits({.n = 2 * d.feed_forward, .k = d.hidden, .rows = rows})) {
    s = check(gated_product(step.how, {w.gate_up, 2 * d.feed_forward, d.hidden, b.x, rows},
                            before_feed_forward, kind, b.activated),
              "feed-forward");
  } else {
    s = check(rms_norm(step.how, b.x, nullptr, rows, d.hidden, before_feed_forward, b.normed), "norm");
    if (s)
      s = p_.matmul.run(step.how.stream, b.gate_up, b.normed, w.gate_up, rows, 2 * d.feed_forward, d.hidden,
                        false);
    if (s) s = check(gate(step.how, b.gate_up, rows, d.feed_forward, kind, b.activated), "activation");
  }
  if (!s) return s;
  if (add_product_fits({.n = d.hidden, .k = d.feed_forward, .rows = rows}))
    return check(add_product(step.how, {w.down, d.hidden, d.feed_forward, b.activated, rows}, b.x),
                 "feed-forward output");
  return p_.matmul.run(step.how.stream, b.x, b.activated, w.down, rows, d.hidden, d.feed_forward, true);
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
