#include "gpu-worker/device/cpu/decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

namespace ringmaster::gpu_worker {
namespace {

using kernels::InputForm;
using kernels::kGroup;
using kernels::kQueries;
using kernels::kSpan;
using kernels::kTile;

constexpr size_t index(InputForm form) {
  return static_cast<size_t>(form);
}

// Groups worth claiming at once: pieces of a few microseconds of memory traffic for one row, single groups
// when many rows make each of them long.
size_t grain(const Matrix& matrix, size_t rows) {
  constexpr size_t kPieceBytes = 32 << 10;
  return std::max<size_t>(1, kPieceBytes / matrix.group_bytes() / rows);
}

}  // namespace

Status check_executable(const ModelDescription& d) {
  const auto refuse = [&](const std::string& what) {
    return Error{Code::kUnsupported, "the cpu device does not run models with " + what};
  };
  if (d.norm_weight_offset != 0 || d.norm_after) return refuse("Gemma's norms");
  if (d.qk_norm) return refuse("normalised queries and keys");
  if (d.qkv_bias) return refuse("biases on queries, keys and values");
  if (d.attention_soft_cap != 0 || d.final_soft_cap != 0) return refuse("soft caps");
  if (d.embedding_scale != 1) return refuse("a scaled embedding");
  if (d.activation != Activation::kSilu) return refuse("an activation other than SiLU");
  if (d.rope.pairs != Rope::Pairs::kNeighbours) return refuse("rotary pairs that are half a head apart");
  for (const uint32_t window : d.window)
    if (window != 0 && window < d.context_length)
      return refuse("sliding-window attention (window " + std::to_string(window) + ")");
  if (d.head_dim % kGroup != 0 || d.head_dim > kernels::kMaxHeadDim)
    return refuse("heads of " + std::to_string(d.head_dim) + " values; it needs a multiple of " +
                  std::to_string(kGroup) + ", at most " + std::to_string(kernels::kMaxHeadDim));
  if (d.heads / d.kv_heads * d.head_dim % kernels::kBlock != 0)
    return refuse("key-value heads whose " + std::to_string(d.heads / d.kv_heads) + " query heads have " +
                  std::to_string(d.heads / d.kv_heads * d.head_dim) +
                  " values together; it needs a multiple of " + std::to_string(kernels::kBlock));
  return ok_status();
}

// Rows of the residual stream, normalised and prepared for a product: by every thread for itself when there
// are few of them, else together in a phase of their own.
class Decoder::NormedRows {
 public:
  // samples: which rows of x; empty: the first `count`. Of samples twice as many rows are made: the prepared
  // rows, then what preparing them lost, prepared again.
  NormedRows(Decoder& decoder, Member& member, const float* norm, InputForm form, size_t count,
             std::span<const RoundSample> samples = {})
      : decoder_(decoder), member_(member), norm_(norm), form_(form), count_(count), samples_(samples) {
    if (count_ <= kPrivateRows) return;
    rows_ = decoder_.buffers_.normed;
    member_.for_each(count_, 1, [&](size_t begin, size_t end) { make(begin, end); });
  }

  // Call it with a piece of the product in hand: only then is the residual stream sure to stand still.
  const std::byte* rows() {
    if (rows_ == nullptr) {
      rows_ = decoder_.buffers_.threads[member_.index()].normed;
      make(0, count_);
    }
    return rows_;
  }

 private:
  void make(size_t begin, size_t end) {
    const size_t hidden = decoder_.d_.hidden;
    float* row = decoder_.buffers_.threads[member_.index()].row;
    for (size_t i = begin; i < end; ++i) {
      const size_t token = samples_.empty() ? i : samples_[i].token;
      decoder_.table_.rms_norm(row, decoder_.buffers_.x + token * hidden, norm_, hidden,
                               decoder_.d_.norm_epsilon);
      prepare(i, row);
      if (samples_.empty()) continue;
      decoder_.table_.subtract_prepared[index(form_)](row, rows_ + i * decoder_.buffers_.hidden_row_bytes,
                                                      hidden);
      prepare(count_ + i, row);
    }
  }

  void prepare(size_t i, const float* row) {
    const size_t hidden = decoder_.d_.hidden;
    decoder_.table_.prepare[index(form_)](rows_ + i * decoder_.buffers_.hidden_row_bytes, hidden, 0, row,
                                          hidden);
  }

  Decoder& decoder_;
  Member& member_;
  const float* norm_;
  const InputForm form_;
  const size_t count_;
  const std::span<const RoundSample> samples_;
  std::byte* rows_ = nullptr;
};

Decoder::Decoder(const ModelDescription& description, const Weights& weights, const kernels::Table& table,
                 const KvMemory& kv, StepBuffers& buffers, Team& team, uint32_t num_lanes)
    : d_(description),
      weights_(weights),
      table_(table),
      kv_(kv),
      buffers_(buffers),
      team_(team),
      group_(description.heads / description.kv_heads),
      lanes_(num_lanes) {}

std::vector<SampledRow> Decoder::run(const StepPlan& plan) {
  for (const LaneOpen& open : plan.opens) lanes_[open.lane].open(open, d_.vocab_size);
  results_.assign(static_cast<size_t>(std::count_if(plan.rows.begin(), plan.rows.end(),
                                                    [](const StepRow& row) { return row.samples; })),
                  {});
  std::vector<Round> rounds = make_rounds(plan, {.tokens = kRoundTokens,
                                                 .query_tokens = kQueryTokens,
                                                 .parts = kParts,
                                                 .kv_heads = d_.kv_heads,
                                                 .threads = team_.size()});
  for (Round& round : rounds) {
    for (RoundToken& token : round.tokens)
      if (token.id == kFromLane) token.id = lanes_[plan.rows[token.row].lane].last_id();
    team_.run([&](Member& member) { forward(member, plan, round); }, phases_of(round));
  }
  return std::move(results_);
}

size_t Decoder::phases_of(const Round& round) const {
  constexpr size_t kPerLayer = 9;  // norm, qkv, turn, attend, merge, output, norm, gate and up, down
  constexpr size_t kPerLogits = 3;
  return 1 + d_.layers * kPerLayer + (round.samples.size() / kLogitRows + 1) * kPerLogits;
}

void Decoder::forward(Member& member, const StepPlan& plan, const Round& round) {
  embed(member, round);
  for (uint32_t layer = 0; layer < d_.layers; ++layer) {
    attention(member, plan, round, layer);
    feed_forward(member, round, weights_.layers[layer]);
  }
  if (!round.samples.empty()) sample(member, plan, round);
}

void Decoder::embed(Member& member, const Round& round) {
  const Matrix& table = weights_.embedding;
  member.for_each(round.tokens.size(), 8, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      const RoundToken& token = round.tokens[t];
      kernels::unpack_row(buffers_.x + t * d_.hidden, table.group(token.id / kGroup), token.id % kGroup,
                          d_.hidden, table.form);
      float* cosine = buffers_.cosine + t * d_.head_dim;
      float* sine = buffers_.sine + t * d_.head_dim;
      for (uint32_t i = 0; i < d_.head_dim / 2; ++i) {
        const bool turned = 2 * i < d_.rope.dims;
        const float angle = turned ? static_cast<float>(token.position) * d_.rope.inverse_frequency[i] : 0;
        cosine[2 * i] = cosine[2 * i + 1] = std::cos(angle);
        sine[2 * i] = -std::sin(angle);
        sine[2 * i + 1] = std::sin(angle);
      }
    }
  });
}

void Decoder::attention(Member& member, const StepPlan& plan, const Round& round, uint32_t layer) {
  const LayerWeights& weights = weights_.layers[layer];
  const size_t tokens = round.tokens.size();
  project_qkv(member, round, weights);
  turn_and_store(member, plan, round, layer);
  member.for_each(round.pieces.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) attend_piece(member.index(), plan, round, round.pieces[i], layer);
  });
  const Matrix& output = weights.attention_output;
  if (!round.merges.empty())
    member.for_each(round.merges.size(), 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) merge_parts(member.index(), round.merges[i], output.input());
    });
  member.for_each(output.groups(), grain(output, tokens), [&](size_t begin, size_t end) {
    table_.matmul[static_cast<size_t>(output.form)](buffers_.x + begin * kGroup, d_.hidden, buffers_.attended,
                                                    buffers_.attended_row_bytes, tokens, output.group(begin),
                                                    output.columns, end - begin, true);
  });
}

void Decoder::project_qkv(Member& member, const Round& round, const LayerWeights& layer) {
  const size_t tokens = round.tokens.size();
  NormedRows input(*this, member, layer.attention_norm, layer.q.input(), tokens);
  const size_t items = layer.q.groups() + layer.k.groups() + layer.v.groups();
  member.for_each(items, grain(layer.q, tokens), [&](size_t begin, size_t end) {
    size_t first = 0;  // item at which the matrix starts
    for (const Matrix* matrix : {&layer.q, &layer.k, &layer.v}) {
      const size_t low = std::max(begin, first), high = std::min(end, first + matrix->groups());
      if (low < high)
        table_.matmul[static_cast<size_t>(matrix->form)](
            buffers_.qkv + low * kGroup, buffers_.qkv_width, input.rows(), buffers_.hidden_row_bytes, tokens,
            matrix->group(low - first), matrix->columns, high - low, false);
      first += matrix->groups();
    }
  });
}

void Decoder::turn_and_store(Member& member, const StepPlan& plan, const Round& round, uint32_t layer) {
  const size_t tokens = round.tokens.size(), head_dim = d_.head_dim;
  member.for_each(tokens, 4, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      const RoundToken& token = round.tokens[t];
      const BlockId* blocks = plan.blocks.data() + plan.rows[token.row].first_block;
      float* q = buffers_.qkv + t * buffers_.qkv_width;
      float* k = q + d_.heads * head_dim;
      const float* v = k + d_.kv_heads * head_dim;
      const float *cosine = buffers_.cosine + t * head_dim, *sine = buffers_.sine + t * head_dim;
      table_.rope_pairs(q, cosine, sine, d_.heads, head_dim, d_.attention_scale);
      table_.rope_pairs(k, cosine, sine, d_.kv_heads, head_dim, 1);
      for (uint32_t h = 0; h < d_.kv_heads; ++h) {
        std::memcpy(buffers_.q + (h * tokens + t) * group_ * head_dim, q + h * group_ * head_dim,
                    group_ * head_dim * sizeof(float));
        table_.store_kv(kv_.key_tile(blocks, token.position, layer, h),
                        kv_.value_tile(blocks, token.position, layer, h), token.position % kTile,
                        k + h * head_dim, v + h * head_dim, head_dim);
      }
    }
  });
}

void Decoder::attend_piece(unsigned thread, const StepPlan& plan, const Round& round,
                           const AttentionPiece& piece, uint32_t layer) {
  const size_t head_dim = d_.head_dim;
  StepBuffers::PerThread& own = buffers_.threads[thread];
  const BlockId* blocks = plan.blocks.data() + plan.rows[piece.row].first_block;
  const float* q = buffers_.q + (piece.kv_head * round.tokens.size() + piece.first_token) * group_ * head_dim;
  const uint32_t first_position = round.tokens[piece.first_token].position;
  const uint32_t last_position = first_position + piece.tokens - 1;
  for (uint32_t span = piece.first_span; span <= piece.last_span; ++span) {
    const uint32_t first_key = span * kSpan;
    const uint16_t *k_tiles[kSpan / kTile], *v_tiles[kSpan / kTile];
    for (uint32_t i = 0; i < kSpan / kTile && first_key + i * kTile <= last_position; ++i) {
      k_tiles[i] = kv_.key_tile(blocks, first_key + i * kTile, layer, piece.kv_head);
      v_tiles[i] = kv_.value_tile(blocks, first_key + i * kTile, layer, piece.kv_head);
    }
    // Queries of the piece that reach this span: (token, head of the group), token by token.
    const uint32_t unreached = first_key > first_position ? first_key - first_position : 0;
    for (size_t i = size_t{unreached} * group_; i < size_t{piece.tokens} * group_; i += kQueries) {
      const size_t nq = std::min(kQueries, size_t{piece.tokens} * group_ - i);
      std::array<uint32_t, kQueries> last_key;
      for (size_t n = 0; n < nq; ++n) last_key[n] = first_position + static_cast<uint32_t>((i + n) / group_);
      const bool whole = piece.part == AttentionPiece::kWhole;
      const size_t part = whole ? 0 : piece.part + (span - piece.first_span);
      float* sums = whole ? own.sums + i * head_dim : buffers_.part_sums + (part * group_ + i) * head_dim;
      float* max_sums = whole ? own.max_sums + i * 2 : buffers_.part_max_sums + (part * group_ + i) * 2;
      if (!whole || span == 0) {
        table_.attend(sums, max_sums, q + i * head_dim, head_dim, last_key.data(), nq, k_tiles, v_tiles,
                      first_key, head_dim);
        continue;
      }
      float later_max_sums[kQueries * 2];
      table_.attend(own.later_sums, later_max_sums, q + i * head_dim, head_dim, last_key.data(), nq, k_tiles,
                    v_tiles, first_key, head_dim);
      for (size_t n = 0; n < nq; ++n)
        table_.attend_merge(sums + n * head_dim, max_sums + 2 * n, own.later_sums + n * head_dim,
                            later_max_sums + 2 * n, head_dim);
    }
  }
  if (piece.part != AttentionPiece::kWhole) return;
  for (uint32_t t = 0; t < piece.tokens; ++t)
    finish_attention(own.sums + t * group_ * head_dim, own.max_sums + t * group_ * 2, piece.first_token + t,
                     piece.kv_head, weights_.layers[layer].attention_output.input());
}

void Decoder::merge_parts(unsigned thread, const AttentionMerge& merge, InputForm form) {
  const size_t head_dim = d_.head_dim;
  StepBuffers::PerThread& own = buffers_.threads[thread];
  const float* sums = buffers_.part_sums + size_t{merge.part} * group_ * head_dim;
  const float* max_sums = buffers_.part_max_sums + size_t{merge.part} * group_ * 2;
  std::memcpy(own.sums, sums, group_ * head_dim * sizeof(float));
  std::memcpy(own.max_sums, max_sums, group_ * 2 * sizeof(float));
  for (uint32_t span = 1; span < merge.spans; ++span)
    for (uint32_t g = 0; g < group_; ++g)
      table_.attend_merge(own.sums + g * head_dim, own.max_sums + g * 2,
                          sums + (span * group_ + g) * head_dim, max_sums + (span * group_ + g) * 2,
                          head_dim);
  finish_attention(own.sums, own.max_sums, merge.token, merge.kv_head, form);
}

// The heads of one group: normalised in place, then prepared as input of the output projection. sums: [group,
// head_dim].
void Decoder::finish_attention(float* sums, const float* max_sums, uint32_t token, uint32_t kv_head,
                               InputForm form) {
  const size_t head_dim = d_.head_dim, width = group_ * head_dim;
  for (uint32_t g = 0; g < group_; ++g)
    table_.attend_finish(sums + g * head_dim, sums + g * head_dim, max_sums + g * 2, head_dim);
  table_.prepare[index(form)](buffers_.attended + token * buffers_.attended_row_bytes, d_.heads * head_dim,
                              kv_head * width, sums, width);
}

void Decoder::feed_forward(Member& member, const Round& round, const LayerWeights& layer) {
  constexpr size_t kColumns = kFeedForwardColumns, kGroups = kColumns / kGroup;
  const size_t tokens = round.tokens.size();
  NormedRows input(*this, member, layer.feed_forward_norm, layer.gate.input(), tokens);
  StepBuffers::PerThread& own = buffers_.threads[member.index()];
  const auto product = [&](const Matrix& matrix, float* out, size_t column) {
    table_.matmul[static_cast<size_t>(matrix.form)](out, kColumns, input.rows(), buffers_.hidden_row_bytes,
                                                    tokens, matrix.group(column * kGroups), matrix.columns,
                                                    kGroups, false);
  };
  member.for_each(d_.feed_forward / kColumns, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      product(layer.gate, own.gate, i);
      product(layer.up, own.up, i);
      for (size_t t = 0; t < tokens; ++t) {
        table_.silu_mul(own.gate + t * kColumns, own.gate + t * kColumns, own.up + t * kColumns, kColumns);
        table_.prepare[index(layer.down.input())](buffers_.activated + t * buffers_.feed_forward_row_bytes,
                                                  d_.feed_forward, i * kColumns, own.gate + t * kColumns,
                                                  kColumns);
      }
    }
  });
  const Matrix& down = layer.down;
  member.for_each(down.groups(), grain(down, tokens), [&](size_t begin, size_t end) {
    table_.matmul[static_cast<size_t>(down.form)](buffers_.x + begin * kGroup, d_.hidden, buffers_.activated,
                                                  buffers_.feed_forward_row_bytes, tokens, down.group(begin),
                                                  down.columns, end - begin, true);
  });
}

// The head's input in two parts, rounded and rest: the logits decide between tokens, and the second part
// costs no memory traffic. (SmolLM2's perplexity against the reference: 1.0036 without, 1.0027 with.)
void Decoder::sample(Member& member, const StepPlan& plan, const Round& round) {
  const Matrix& head = weights_.head;
  for (size_t first = 0; first < round.samples.size(); first += kLogitRows) {
    const size_t count = std::min<size_t>(kLogitRows, round.samples.size() - first);
    const std::span<const RoundSample> samples(round.samples.data() + first, count);
    NormedRows input(*this, member, weights_.output_norm, head.input(), count, samples);
    member.for_each(head.groups(), grain(head, count), [&](size_t begin, size_t end) {
      float* out = buffers_.logits + begin * kGroup;
      table_.matmul[static_cast<size_t>(head.form)](out, buffers_.logit_width, input.rows(),
                                                    buffers_.hidden_row_bytes, 2 * count, head.group(begin),
                                                    head.columns, end - begin, false);
      for (size_t i = 0; i < count; ++i)
        table_.add(out + i * buffers_.logit_width, out + (count + i) * buffers_.logit_width,
                   (end - begin) * kGroup);
    });
    member.for_each(count, 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const StepRow& row = plan.rows[samples[i].row];
        results_[samples[i].result] =
            lanes_[row.lane].sample(table_, {buffers_.logits + i * buffers_.logit_width, d_.vocab_size},
                                    row.token_number, buffers_.threads[member.index()].sampler);
      }
    });
  }
}

}  // namespace ringmaster::gpu_worker
