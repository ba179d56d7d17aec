// The kernels over rows against the same in double.
#include "gpu-worker/kernels/cuda/rows.h"

#include <gtest/gtest.h>

#include "gpu-worker/kernels/cuda/mma_layout.h"
#include "gpu-worker/schedule/step_plan.h"
#include "tests/gpu-worker/kernels_cuda/device_array.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

bf16* as_bf16(const DeviceArray<uint16_t>& array) {
  return reinterpret_cast<bf16*>(array.get());
}

TEST(Rows, EmbedTakesGivenIdsAndWhatLanesSampledLast) {
  constexpr uint32_t kVocab = 50, kHidden = 96;
  const Tensor table = Tensor::random(kVocab * kHidden, 1, 1);
  const DeviceArray<uint32_t> ids(std::vector<uint32_t>{7, kFromLane, 49, kFromLane}),
      lanes(std::vector<uint32_t>{0, 2, 1, 0});
  const DeviceArray<uint32_t> last(std::vector<uint32_t>{11, 12, 13});
  const DeviceArray<uint16_t> x(4 * kHidden);
  EXPECT_CUDA(
      embed(test_launch(), table.get(), kHidden, 2, ids.get(), lanes.get(), last.get(), 4, as_bf16(x)));
  const std::vector<float> got = floats(x.read());
  const uint32_t expected[] = {7, 13, 49, 11};
  for (uint32_t t = 0; t < 4; ++t)
    for (uint32_t i = 0; i < kHidden; ++i)
      ASSERT_EQ(got[t * kHidden + i], 2 * table.host[expected[t] * kHidden + i]) << t << " " << i;
}

TEST(Rows, NormOfChosenRows) {
  for (const uint32_t hidden : {64u, 576u, 3072u}) {
    const Tensor x = Tensor::random(5 * hidden, 3, 1), weight = Tensor::random(hidden, 1, 2);
    const DeviceArray<uint32_t> rows(std::vector<uint32_t>{4, 0, 2});
    const DeviceArray<uint16_t> y(3 * hidden);
    EXPECT_CUDA(rms_norm(test_launch(), x.get(), rows.get(), 3, hidden, {weight.get(), 1e-5f}, as_bf16(y)));
    std::vector<double> wanted;
    for (const uint32_t r : {4u, 0u, 2u}) {
      double squares = 0;
      for (uint32_t i = 0; i < hidden; ++i)
        squares += double{x.host[r * hidden + i]} * x.host[r * hidden + i];
      for (uint32_t i = 0; i < hidden; ++i)
        wanted.push_back(x.host[r * hidden + i] / std::sqrt(squares / hidden + 1e-5) * weight.host[i]);
    }
    EXPECT_LT(relative_error(floats(y.read()), wanted), kBf16Error);
  }
}

TEST(Rows, GateActivatesNeighbours) {
  constexpr uint32_t kTokens = 3, kWidth = 1540;
  const Tensor x = Tensor::random(kTokens * kWidth * 2, 2, 1);
  for (const Gate kind : {Gate::kSilu, Gate::kGeluTanh}) {
    const DeviceArray<uint16_t> y(kTokens * kWidth);
    EXPECT_CUDA(gate(test_launch(), x.get(), kTokens, kWidth, kind, as_bf16(y)));
    std::vector<double> wanted;
    for (uint32_t i = 0; i < kTokens * kWidth; ++i) {
      const double g = x.host[2 * i];
      const double act = kind == Gate::kSilu
                             ? g / (1 + std::exp(-g))
                             : 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
      wanted.push_back(act * x.host[2 * i + 1]);
    }
    EXPECT_LT(relative_error(floats(y.read()), wanted), kBf16Error);
  }
}

// A chunk that begins in the middle of a block, ends in the middle of another, and a decoding row beside it:
// by itself and in groups the values land in the same places.
TEST(Rows, ValuesInGroupsAreTheValuesOneByOne) {
  for (const uint32_t head_dim : {64u, 96u, 128u, 256u}) {
    constexpr uint32_t kHeads = 4, kKvHeads = 2, kLayers = 2, kBlocks = 6;
    const uint32_t width = (kHeads + 2 * kKvHeads) * head_dim;
    std::vector<uint32_t> position, slot;
    for (uint32_t t = 0; t < 39; ++t) {
      position.push_back(t + 21);
      slot.push_back((t + 5) / 16 * 32 % (kBlocks * 16) + (t + 5) % 16);
    }
    position.push_back(70);
    slot.push_back(5 * 16 + 9);
    const std::vector<BlockTokens> groups = {{0, 11, 5}, {11, 16, 32}, {27, 12, 64}, {39, 1, 89}};
    const auto tokens = static_cast<uint32_t>(position.size());
    const Tensor qkv = Tensor::random(size_t{tokens} * width, 1, 1), bias = Tensor::random(width, 1, 2);
    const DeviceArray<uint32_t> positions(position), slots(slot);
    const DeviceArray<float> frequency(std::vector<float>(head_dim / 2, 0.01f));
    const DeviceArray<BlockTokens> on_device(groups);
    KvView kv{nullptr, kLayers, kKvHeads, head_dim};
    std::vector<uint16_t> results[2], queries[2];
    for (const bool together : {false, true}) {
      const DeviceArray<uint16_t> blocks(kBlocks * kv.block_values()), q(size_t{tokens} * kHeads * head_dim);
      kv.data = as_bf16(blocks);
      EXPECT_CUDA(split_qkv(test_launch(), qkv.get(), tokens, bias.get(), {positions.get(), slots.get()},
                            {frequency.get(), head_dim}, kv, 1, kHeads, !together, as_bf16(q)));
      if (together)
        EXPECT_CUDA(store_values(test_launch(), qkv.get(), bias.get(), on_device.get(), 4, kv, 1, kHeads));
      results[together] = blocks.read();
      queries[together] = q.read();
    }
    EXPECT_EQ(queries[0], queries[1]);
    EXPECT_EQ(results[0], results[1]);
    // And they are the values: token 3 lies at place 8 of block 0.
    const size_t piece = size_t{kKvHeads} * kv.piece_values();
    for (uint32_t d = 0; d < head_dim; ++d)
      ASSERT_NEAR(from_bits(results[1][piece + static_cast<size_t>(value_offset(
                                                   8, static_cast<int>(d), static_cast<int>(head_dim)))]),
                  qkv.host[3 * width + (kHeads + kKvHeads) * head_dim + d] +
                      bias.host[(kHeads + kKvHeads) * head_dim + d],
                  0.02)
          << d;
  }
}

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda
