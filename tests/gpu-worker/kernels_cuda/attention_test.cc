// Decode and prefill attention against sums in double over keys and values that lie scattered in blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "gpu-worker/device/cuda/step_inputs.h"
#include "gpu-worker/kernels/cuda/attention.h"
#include "gpu-worker/kernels/cuda/mma_layout.h"
#include "tests/gpu-worker/kernels_cuda/device_array.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

struct Case {
  uint32_t heads, kv_heads, head_dim;
  std::vector<uint32_t> lengths;  // keys of each row, the query's own included
  std::vector<uint32_t> queries;  // of each row
  float soft_cap = 0;
  uint32_t window = 0;
  float score_scale = 1;
};

class Attention : public testing::TestWithParam<Case> {
 protected:
  static constexpr uint32_t kLayers = 2, kLayer = 1;

  void SetUp() override {
    const Case& c = GetParam();
    uint32_t blocks = 3;
    for (const uint32_t length : c.lengths) blocks += (length + 15) / 16;
    kv_ = {nullptr, kLayers, c.kv_heads, c.head_dim};
    std::vector<uint32_t> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(5));
    std::vector<float> memory(blocks * kv_.block_values(), NAN);
    std::mt19937 generator(6);
    std::normal_distribution<float> normal(0, 1);
    uint32_t next = 0;
    for (size_t r = 0; r < c.lengths.size(); ++r) {
      StepRow row{.lane = static_cast<Lane>(r),
                  .first_id = static_cast<uint32_t>(plan_.ids.size()),
                  .num_tokens = c.queries[r],
                  .first_position = c.lengths[r] - c.queries[r],
                  .first_block = static_cast<uint32_t>(plan_.blocks.size()),
                  .num_blocks = (c.lengths[r] + 15) / 16,
                  .samples = true};
      plan_.ids.insert(plan_.ids.end(), c.queries[r], 0);
      for (uint32_t b = 0; b < row.num_blocks; ++b) plan_.blocks.push_back(order[next++]);
      // What lies in the last block beyond the row's own keys stays NaN: a former owner may have left that.
      for (uint32_t t = 0; t < c.lengths[r]; ++t)
        for (uint32_t h = 0; h < c.kv_heads; ++h)
          for (uint32_t d = 0; d < c.head_dim; ++d)
            for (const bool is_v : {false, true}) {
              const float value = from_bits(to_bits(normal(generator)));
              memory[at(plan_.blocks[row.first_block + t / 16], t % 16, h, d, is_v)] = value;
              (is_v ? values_ : keys_).push_back(value);
            }
      plan_.rows.push_back(row);
    }
    cache_.emplace(memory);
    kv_.data = cache_->get();
    q_.emplace(Tensor::random(plan_.ids.size() * c.heads * c.head_dim, c.score_scale, 7));
  }

  size_t at(uint32_t block, uint32_t token, uint32_t head, uint32_t dim, bool is_v) const {
    const int t = static_cast<int>(token), d = static_cast<int>(dim), size = static_cast<int>(kv_.head_dim);
    return block * kv_.block_values() + (size_t{kLayer} * kv_.kv_heads + head) * kv_.piece_values() +
           static_cast<size_t>(is_v ? value_offset(t, d, size) : key_offset(t, d, size));
  }

  std::vector<double> reference() const {
    const Case& c = GetParam();
    std::vector<double> out;
    size_t first_key = 0;  // of the row, among all rows' keys
    for (const StepRow& row : plan_.rows) {
      const auto of = [&](const std::vector<float>& all, uint32_t key, uint32_t head) {
        return &all[((first_key + key) * c.kv_heads + head) * c.head_dim];
      };
      for (uint32_t i = 0; i < row.num_tokens; ++i)
        for (uint32_t h = 0; h < c.heads; ++h) {
          const uint32_t position = row.first_position + i, kv_head = h / (c.heads / c.kv_heads);
          const uint32_t first = c.window != 0 && position >= c.window ? position - c.window + 1 : 0;
          const float* q = &q_->host[((row.first_id + i) * size_t{c.heads} + h) * c.head_dim];
          std::vector<double> score;
          for (uint32_t key = first; key <= position; ++key) {
            const float* const k = of(keys_, key, kv_head);
            double s = 0;
            for (uint32_t d = 0; d < c.head_dim; ++d) s += double{q[d]} * k[d];
            s /= std::sqrt(static_cast<double>(c.head_dim));
            if (c.soft_cap != 0) s = c.soft_cap * std::tanh(s / c.soft_cap);
            score.push_back(s);
          }
          const double largest = *std::max_element(score.begin(), score.end());
          double sum = 0;
          for (double& s : score) sum += s = std::exp(s - largest);
          std::vector<double> value(c.head_dim, 0);
          for (uint32_t key = first; key <= position; ++key) {
            const float* const v = of(values_, key, kv_head);
            for (uint32_t d = 0; d < c.head_dim; ++d) value[d] += score[key - first] / sum * v[d];
          }
          out.insert(out.end(), value.begin(), value.end());
        }
      first_key += row.first_position + row.num_tokens;
    }
    return out;
  }

  AttentionShape shape() const {
    const Case& c = GetParam();
    return {c.heads,    c.kv_heads, c.head_dim, 1 / std::sqrt(static_cast<float>(c.head_dim)),
            c.soft_cap, c.window};
  }

  StepPlan plan_;
  std::vector<float> keys_, values_;  // [row, token, kv_heads, head_dim]
  KvView kv_;
  std::optional<Tensor> cache_, q_;
};

// As a step runs it: rows with one query by the decode kernel, the others by the prefill kernel. Twice, since
// the counters of parts must be zero again after a step.
TEST_P(Attention, IsTheSoftmaxOverTheVisibleKeys) {
  const Case& c = GetParam();
  const auto tokens = static_cast<uint32_t>(plan_.ids.size());
  StepLimits limits{.tokens = tokens,
                    .rows = static_cast<uint32_t>(plan_.rows.size()),
                    .blocks = static_cast<uint32_t>(plan_.blocks.size()),
                    .kv_heads = c.kv_heads,
                    .decode_warps = 132 * decode_warps(c.head_dim)};
  std::vector<std::byte> host(StepInputs::place(limits, nullptr).bytes);
  // The layout aligns offsets, not addresses: a plain vector will do on the host.
  const StepInputs in = StepInputs::place(limits, host.data());
  const Result<StepShape> filled = fill_inputs(plan_, limits, 0, in);
  ASSERT_TRUE(filled.ok());
  const DeviceArray<std::byte> device_bytes(host);
  const StepInputs on = StepInputs::place(limits, device_bytes.get());
  const uint32_t parts = StepInputs::max_pieces(limits);
  const DeviceArray<float> sums(size_t{parts} * c.heads * c.head_dim), max_sum(size_t{parts} * c.heads * 2);
  const DeviceArray<uint32_t> arrived(std::vector<uint32_t>(size_t{tokens} * c.kv_heads, 0));
  const std::vector<double> wanted = reference();
  for (int turn = 0; turn < 2; ++turn) {
    const DeviceArray<uint16_t> out(size_t{tokens} * c.heads * c.head_dim);
    if (filled->pieces > 0)
      EXPECT_CUDA(decode_attention(test_launch(), shape(), kv_, kLayer,
                                   {on.pieces, on.piece_count, on.block_table}, {on.position, on.kv_slot},
                                   q_->get(), {sums.get(), max_sum.get(), arrived.get()},
                                   reinterpret_cast<bf16*>(out.get())));
    if (filled->tiles > 0)
      EXPECT_CUDA(prefill_attention(test_launch(), shape(), kv_, kLayer, on.tiles, filled->tiles,
                                    on.block_table, q_->get(), reinterpret_cast<bf16*>(out.get())));
    EXPECT_LT(relative_error(floats(out.read()), wanted), 2 * kBf16Error) << "turn " << turn;
  }
}

// What each head size has a kernel of its own for: tiles of queries and of keys that are ragged at both
// ends, windows that begin within a block and within a tile, capped scores, prompts in chunks, keys enough
// for every stage of the pipeline to come round.
std::vector<Case> cases_of_each_head_size() {
  std::vector<Case> cases;
  for (const uint32_t size : {64u, 96u, 128u, 256u}) {
    cases.push_back({2,
                     2,
                     size,
                     {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257},
                     {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257}});
    cases.push_back({6, 2, size, {513, 700, 1000}, {2, 129, 300}});
    cases.push_back({4, 2, size, {400, 333, 150}, {260, 1, 150}, 0, 75});
    cases.push_back({4, 2, size, {500, 90}, {200, 90}, 30, 129, 3});
    cases.push_back({2, 1, size, {8192}, {67}});
    cases.push_back({2, 1, size, {8192}, {67}, 50, 4096});
    cases.push_back({1, 1, size, {8190}, {1}});
    // Work enough for the kernels with three teams, on 132 multiprocessors.
    const std::vector<uint32_t> many = {250, 2, 16, 33, 64, 65, 100, 128, 129, 7, 90, 191, 193, 40};
    cases.push_back({32, 8, size, many, many, 0, size == 96 ? 50u : 0u});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(EachHeadSize, Attention, testing::ValuesIn(cases_of_each_head_size()));

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    testing::Values(Case{4, 4, 96, {1, 2, 15, 16, 17, 33}, {1, 1, 1, 1, 1, 1}},      // around a block's end
                    Case{32, 32, 96, {272}, {1}}, Case{9, 3, 64, {700, 5}, {1, 1}},  // SmolLM2
                    Case{32, 8, 128, {2000, 1, 640}, {1, 1, 1}},                     // Llama 3, ragged
                    Case{8, 4, 256, {300, 40}, {1, 1}, 50, 100},                     // Gemma 2
                    Case{16, 1, 64, {90}, {1}}, Case{12, 1, 128, {129}, {1}},
                    Case{4, 4, 96, {64, 128, 129, 300}, {64, 128, 129, 300}},  // whole prompts
                    Case{9, 3, 64, {333, 1000}, {33, 500}},                    // chunks
                    Case{8, 2, 128, {257, 90}, {257, 1}},                      // both kernels
                    Case{8, 4, 256, {200}, {130}, 50, 64}, Case{4, 2, 96, {400}, {300}, 0, 100},
                    Case{4, 4, 64, {200, 150}, {1, 140}, 0, 0, 40}));  // scores far apart

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda
