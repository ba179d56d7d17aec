// The wide products against sums in double, and its queries, keys and values against those of a finished
// product.
#include <gtest/gtest.h>

#include "gpu-worker/kernels/cuda/rows.h"
#include "gpu-worker/kernels/cuda/wide.h"
#include "tests/gpu-worker/kernels_cuda/device_array.h"
#include "tests/gpu-worker/kernels_cuda/products.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

struct Shape {
  uint32_t rows, n, k;
};

class Wide : public testing::TestWithParam<Shape> {};

TEST_P(Wide, AddProductAddsToTheResidual) {
  const auto [rows, n, k] = GetParam();
  const Tensor x = Tensor::random(size_t{rows} * k, 1, 1), w = Tensor::random(size_t{n} * k, 0.05f, 2);
  const Tensor residual = Tensor::random(size_t{rows} * n, 2, 3);
  std::vector<double> wanted = product(doubles(x.host), w.host, rows, n, k);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += residual.host[i];
  EXPECT_CUDA(wide_add_product(test_launch(), {w.get(), n, k, x.get(), rows}, residual.get()));
  EXPECT_LT(relative_error(floats(residual.device.read()), wanted), kBf16Error);
}

TEST_P(Wide, GatedProductActivatesNeighbours) {
  const auto [rows, n, k] = GetParam();
  const Tensor x = Tensor::random(size_t{rows} * k, 1, 1), w = Tensor::random(size_t{n} * k, 0.05f, 2);
  const DeviceArray<uint16_t> y(size_t{rows} * n / 2);
  EXPECT_CUDA(wide_gated_product(test_launch(), {w.get(), n, k, x.get(), rows}, Gate::kSilu,
                                 reinterpret_cast<bf16*>(y.get())));
  const std::vector<double> both = product(doubles(x.host), w.host, rows, n, k);
  EXPECT_LT(relative_error(floats(y.read()), gated(both, Gate::kSilu)), 2 * kBf16Error);
}

// A row's result is the same alone and in company.
TEST_P(Wide, RowsDoNotMeet) {
  const auto [rows, n, k] = GetParam();
  const Tensor x = Tensor::random(size_t{rows} * k, 1, 1), w = Tensor::random(size_t{n} * k, 0.05f, 2);
  const DeviceArray<uint16_t> together(std::vector<uint16_t>(size_t{rows} * n, 0));
  EXPECT_CUDA(wide_add_product(test_launch(), {w.get(), n, k, x.get(), rows},
                               reinterpret_cast<bf16*>(together.get())));
  const std::vector<uint16_t> all = together.read();
  for (uint32_t r = 0; r < rows; r += 5) {
    const DeviceArray<uint16_t> alone(std::vector<uint16_t>(n, 0));
    EXPECT_CUDA(wide_add_product(test_launch(), {w.get(), n, k, x.get() + size_t{r} * k, 1},
                                 reinterpret_cast<bf16*>(alone.get())));
    const std::vector<uint16_t> one = alone.read();
    ASSERT_EQ(std::memcmp(one.data(), all.data() + size_t{r} * n, n * sizeof(uint16_t)), 0) << "row " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Wide,
                         testing::Values(Shape{1, 3072, 256}, Shape{17, 3072, 8192}, Shape{64, 3072, 3072},
                                         Shape{33, 4096, 1536}, Shape{9, 6144, 256}, Shape{32, 9216, 512},
                                         Shape{64, 9216, 3072}, Shape{25, 16384, 3072},
                                         Shape{64, 28672, 256}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.rows) + "x" + std::to_string(shape.param.n) +
                                  "x" + std::to_string(shape.param.k);
                         });

TEST(WideFits, SharesThatGiveNearlyEveryMultiprocessorOne) {
  constexpr int kPlaces = 132;
  EXPECT_TRUE(wide_fits({.n = 3072, .k = 256, .rows = 64}, kPlaces)) << "128 shares of 24";
  EXPECT_TRUE(wide_fits({.n = 28672, .k = 4096, .rows = 1}, kPlaces)) << "128 shares of 224";
  EXPECT_FALSE(wide_fits({.n = 3072, .k = 256, .rows = 65}, kPlaces));
  EXPECT_FALSE(wide_fits({.n = 3072, .k = 256, .rows = 0}, kPlaces));
  EXPECT_FALSE(wide_fits({.n = 3072, .k = 384, .rows = 1}, kPlaces)) << "half a stage";
  EXPECT_FALSE(wide_fits({.n = 2304, .k = 256, .rows = 1}, kPlaces)) << "96 shares of 24 for 132";
  EXPECT_FALSE(wide_fits({.n = 3072, .k = 256, .rows = 1}, 108)) << "128 shares for 108";
}

TEST(WideQkv, IsWhatSplittingTheProductGives) {
  constexpr uint32_t kRows = 37, kHeads = 40, kKvHeads = 4, kHeadDim = 64, kHidden = 512, kLayer = 1,
                     kBlocks = 40;
  constexpr uint32_t kQWidth = kHeads * kHeadDim, kN = kQWidth + 2 * kKvHeads * kHeadDim;
  const Tensor x = Tensor::random(size_t{kRows} * kHidden, 1, 1),
               w = Tensor::random(size_t{kN} * kHidden, 0.05f, 2), bias = Tensor::random(kN, 1, 3);
  std::vector<uint32_t> position, slot;
  std::vector<float> frequency;
  for (uint32_t r = 0; r < kRows; ++r) {
    position.push_back(r * 977 % 5000);
    slot.push_back(r * 16 + (r * 5 + 2) % 16);
  }
  for (uint32_t i = 0; i < kHeadDim / 2; ++i)
    frequency.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / kHeadDim));
  const DeviceArray<uint32_t> positions(position), slots(slot);
  const DeviceArray<float> frequencies(frequency);
  const TokenView tokens{positions.get(), slots.get()};
  const RopeView rope{frequencies.get(), kHeadDim};
  KvView kv{nullptr, 2, kKvHeads, kHeadDim};
  const DeviceArray<uint16_t> blocks(kBlocks * kv.block_values()), q(size_t{kRows} * kQWidth),
      wanted_blocks(kBlocks * kv.block_values()), wanted_q(size_t{kRows} * kQWidth);

  kv.data = reinterpret_cast<bf16*>(blocks.get());
  EXPECT_CUDA(wide_project_qkv(test_launch(), {w.get(), kN, kHidden, x.get(), kRows}, bias.get(), tokens,
                               rope, kv, kLayer, kHeads, reinterpret_cast<bf16*>(q.get())));

  Tensor finished = Tensor::random(size_t{kRows} * kN, 0, 4);
  EXPECT_CUDA(wide_add_product(test_launch(), {w.get(), kN, kHidden, x.get(), kRows}, finished.get()));
  kv.data = reinterpret_cast<bf16*>(wanted_blocks.get());
  EXPECT_CUDA(split_qkv(test_launch(), finished.get(), kRows, bias.get(), tokens, rope, kv, kLayer, kHeads,
                        true, reinterpret_cast<bf16*>(wanted_q.get())));

  EXPECT_LT(relative_error(floats(q.read()), doubles(floats(wanted_q.read()))), 2 * kBf16Error);
  const std::vector<float> got = floats(blocks.read()), wanted = floats(wanted_blocks.read());
  std::vector<float> got_kv;
  std::vector<double> wanted_kv;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::isnan(got[i]), std::isnan(wanted[i])) << "value " << i << " of the blocks";
    if (std::isnan(got[i])) continue;
    got_kv.push_back(got[i]);
    wanted_kv.push_back(wanted[i]);
  }
  EXPECT_EQ(got_kv.size(), size_t{kRows} * 2 * kKvHeads * kHeadDim);
  EXPECT_LT(relative_error(got_kv, wanted_kv), 2 * kBf16Error);
}

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda
