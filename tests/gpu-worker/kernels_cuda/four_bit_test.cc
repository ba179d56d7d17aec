// The products with weights of four bits against sums in double over the unpacked weights, for every group
// size, 1 to 40 rows, the shapes that must run and awkward ones.
#include "gpu-worker/kernels/cuda/four_bit.h"

#include <gtest/gtest.h>

#include "gpu-worker/device/cuda/four_bit_packing.h"
#include "gpu-worker/kernels/half.h"
#include "tests/gpu-worker/kernels_cuda/device_array.h"
#include "tests/gpu-worker/kernels_cuda/products.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

struct Shape {
  uint32_t rows, n, k, group;
};

// Random codes; scales and offsets of their own for each group, which are not in proportion.
struct Weights {
  FourBitShape shape;
  std::vector<float> host;
  DeviceArray<std::byte> device;

  static Weights random(uint32_t n, uint32_t k, uint32_t group, uint32_t seed) {
    const FourBitShape shape{.n = n, .k = k, .group = group};
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
    std::vector<std::byte> packed(shape.bytes());
    std::vector<uint8_t> codes(group);
    for (uint32_t row = 0; row < n; ++row)
      for (uint32_t column = 0; column < k; column += group) {
        for (uint8_t& code : codes) code = static_cast<uint8_t>(generator() % 16);
        pack_group(packed.data(), 0, shape, row, column, codes,
                   kernels::half_of_float(0.01f * uniform(generator)),
                   kernels::half_of_float(-0.075f * uniform(generator)));
      }
    std::vector<float> values(size_t{n} * k);
    for (uint32_t row = 0; row < n; ++row) unpack_row(&values[size_t{row} * k], packed.data(), shape, row);
    return {shape, std::move(values), DeviceArray<std::byte>(packed)};
  }
  FourBitMatrix matrix() const { return {shape, device.get()}; }
};

class FourBit : public testing::TestWithParam<Shape> {};

TEST_P(FourBit, LogitsAreTheProduct) {
  const auto [rows, n, k, group] = GetParam();
  const Weights w = Weights::random(n, k, group, 2);
  const Tensor x = Tensor::random(size_t{rows} * k, 1, 1);
  const FourBitProduct p{w.matrix(), x.get(), rows};
  const DeviceArray<float> y(size_t{rows} * n);
  if (!four_bit_fits(p)) {
    EXPECT_EQ(logits(test_launch(), p, 0, y.get()), cudaErrorInvalidValue);
    EXPECT_GT(size_t{rows} * k, 16u * 4096) << "small enough to fit";
    return;
  }
  EXPECT_CUDA(logits(test_launch(), p, 0, y.get()));
  EXPECT_LT(relative_error(y.read(), product(doubles(x.host), w.host, rows, n, k)), 1e-5);
}

TEST_P(FourBit, AddProductAddsToTheResidual) {
  const auto [rows, n, k, group] = GetParam();
  const Weights w = Weights::random(n, k, group, 2);
  const Tensor x = Tensor::random(size_t{rows} * k, 1, 1), residual = Tensor::random(size_t{rows} * n, 2, 3);
  std::vector<double> wanted = product(doubles(x.host), w.host, rows, n, k);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += residual.host[i];
  ASSERT_TRUE(add_four_bit_fits({w.matrix(), x.get(), rows}));
  EXPECT_CUDA(add_product(test_launch(), FourBitProduct{w.matrix(), x.get(), rows}, residual.get()));
  EXPECT_LT(relative_error(floats(residual.device.read()), wanted), kBf16Error);
}

TEST_P(FourBit, GatedProductActivatesNeighbours) {
  const auto [rows, n, k, group] = GetParam();
  const Weights w = Weights::random(n, k, group, 2);
  const Tensor x = Tensor::random(size_t{rows} * k, 3, 1), norm = Tensor::random(k, 1, 3);
  const FourBitProduct p{w.matrix(), x.get(), rows};
  if (!four_bit_fits(p)) return;  // tested above
  const std::vector<double> both = product(normed(x, norm, rows, k, 1e-5), w.host, rows, n, k);
  for (const Gate kind : {Gate::kSilu, Gate::kGeluTanh}) {
    const DeviceArray<uint16_t> y(size_t{rows} * n / 2);
    EXPECT_CUDA(gated_product(test_launch(), p, {norm.get(), 1e-5f}, kind, reinterpret_cast<bf16*>(y.get())));
    EXPECT_LT(relative_error(floats(y.read()), gated(both, kind)), 2 * kBf16Error);
  }
}

// A row's result is the same alone and in company, whatever pass it falls into.
TEST_P(FourBit, RowsDoNotMeet) {
  const auto [rows, n, k, group] = GetParam();
  const Weights w = Weights::random(n, k, group, 2);
  const Tensor x = Tensor::random(size_t{rows} * k, 1, 1);
  if (!four_bit_fits({w.matrix(), x.get(), rows})) return;  // tested above
  const DeviceArray<float> together(size_t{rows} * n), alone(n);
  EXPECT_CUDA(logits(test_launch(), FourBitProduct{w.matrix(), x.get(), rows}, 0, together.get()));
  const std::vector<float> all = together.read();
  for (uint32_t r = 0; r < rows; ++r) {
    EXPECT_CUDA(
        logits(test_launch(), FourBitProduct{w.matrix(), x.get() + size_t{r} * k, 1}, 0, alone.get()));
    const std::vector<float> one = alone.read();
    ASSERT_EQ(std::memcmp(one.data(), all.data() + size_t{r} * n, n * sizeof(float)), 0) << "row " << r;
  }
}

TEST_P(FourBit, WidenedWeightsAreTheUnpackedOnesRounded) {
  const auto [rows, n, k, group] = GetParam();
  const Weights w = Weights::random(n, k, group, 2);
  const DeviceArray<uint16_t> wide(size_t{n} * k);
  EXPECT_CUDA(widen(test_launch(), w.matrix(), reinterpret_cast<bf16*>(wide.get())));
  const std::vector<uint16_t> got = wide.read();
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(from_bits(got[i]), w.host[i], std::abs(w.host[i]) / 256 + 1e-7) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, FourBit,
    testing::Values(Shape{1, 8, 32, 32}, Shape{1, 8, 128, 128}, Shape{1, 3072, 3072, 128},
                    Shape{2, 1096, 576, 32}, Shape{3, 1096, 576, 64}, Shape{4, 576, 1536, 32},
                    Shape{8, 576, 1536, 64}, Shape{8, 1160, 3072, 128}, Shape{8, 640, 8192, 128},
                    Shape{9, 256, 3072, 128}, Shape{13, 1064, 4096, 64}, Shape{16, 1160, 3072, 32},
                    Shape{16, 264, 8192, 128}, Shape{17, 264, 8192, 128}, Shape{24, 136, 3072, 128},
                    Shape{32, 1096, 576, 32}, Shape{32, 264, 8192, 128}, Shape{40, 64, 1536, 64},
                    Shape{1, 264, 14336, 128}, Shape{2, 136, 14336, 32}),
    [](const auto& s) {
      return std::to_string(s.param.rows) + "x" + std::to_string(s.param.n) + "x" +
             std::to_string(s.param.k) + "g" + std::to_string(s.param.group);
    });

// The scratch for q, k and v in passes: positions and slots follow the rows.
TEST(FourBitQkv, RowsOfALaterPassFindTheirPositionsAndSlots) {
  constexpr uint32_t kRows = 21, kHeads = 3, kHeadDim = 64, kHidden = 576, kBlocks = 4;
  constexpr uint32_t kWidth = kHeads * kHeadDim, kN = 3 * kWidth;
  const Weights w = Weights::random(kN, kHidden, 32, 2);
  const Tensor x = Tensor::random(kRows * kHidden, 2, 1), norm = Tensor::random(kHidden, 1, 3);
  std::vector<uint32_t> position, slot;
  for (uint32_t r = 0; r < kRows; ++r) {
    position.push_back(r * 977 % 5000);
    slot.push_back(r * 3 % (kBlocks * 16));
  }
  std::vector<float> frequency;
  for (uint32_t i = 0; i < kHeadDim / 2; ++i)
    frequency.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / kHeadDim));
  const DeviceArray<uint32_t> positions(position), slots(slot);
  const DeviceArray<float> frequencies(frequency);
  const auto run = [&](uint32_t first, uint32_t rows, const DeviceArray<uint16_t>& q, KvView kv) {
    EXPECT_CUDA(project_qkv(test_launch(),
                            FourBitProduct{w.matrix(), x.get() + size_t{first} * kHidden, rows},
                            {norm.get(), 1e-5f}, nullptr, {positions.get() + first, slots.get() + first},
                            {frequencies.get(), kHeadDim}, kv, 0, kHeads,
                            reinterpret_cast<bf16*>(q.get()) + size_t{first} * kWidth));
  };
  KvView kv{nullptr, 1, kHeads, kHeadDim};
  const DeviceArray<uint16_t> together(kBlocks * kv.block_values()), apart(kBlocks * kv.block_values()),
      q_together(kRows * kWidth), q_apart(kRows * kWidth);
  kv.data = reinterpret_cast<bf16*>(together.get());
  run(0, kRows, q_together, kv);
  kv.data = reinterpret_cast<bf16*>(apart.get());
  for (uint32_t r = 0; r < kRows; ++r) run(r, 1, q_apart, kv);
  EXPECT_EQ(together.read(), apart.read());
  EXPECT_EQ(q_together.read(), q_apart.read());
  // And q is what it should be.
  std::vector<double> all = product(normed(x, norm, kRows, kHidden, 1e-5), w.host, kRows, kN, kHidden),
                      wanted;
  for (uint32_t r = 0; r < kRows; ++r)
    for (uint32_t c = 0; c < kWidth; c += 2) {
      const double angle = double{static_cast<float>(position[r]) * frequency[c % kHeadDim / 2]},
                   a = all[size_t{r} * kN + c], b = all[size_t{r} * kN + c + 1];
      wanted.push_back(a * std::cos(angle) - b * std::sin(angle));
      wanted.push_back(b * std::cos(angle) + a * std::sin(angle));
    }
  EXPECT_LT(relative_error(floats(q_together.read()), wanted), 2 * kBf16Error);
}

TEST(FourBitRefusals, ShapesThatDoNotFitAreNamed) {
  const auto fits = [](FourBitShape shape, uint32_t rows) {
    return four_bit_fits({.weights = {.shape = shape}, .rows = rows});
  };
  EXPECT_TRUE(fits({.n = 8, .k = 128, .group = 128}, 1));
  EXPECT_FALSE(fits({.n = 8, .k = 128, .group = 128}, 0));
  EXPECT_FALSE(fits({.n = 12, .k = 128, .group = 128}, 1));
  EXPECT_FALSE(fits({.n = 8, .k = 192, .group = 128}, 1));
  EXPECT_FALSE(fits({.n = 8, .k = 96, .group = 16}, 1));
}

TEST(FourBitRandom, WeightsHaveTheVarianceOfTheirColumns) {
  const FourBitShape shape{.n = 64, .k = 3072, .group = 128};
  const DeviceArray<std::byte> data(shape.bytes());
  EXPECT_CUDA(fill_random({shape, data.get()}, 5));
  const std::vector<std::byte> packed = data.read();
  std::vector<float> row(shape.k);
  double sum = 0, squares = 0;
  for (uint32_t r = 0; r < shape.n; ++r) {
    unpack_row(row.data(), packed.data(), shape, r);
    for (const float v : row) {
      sum += v;
      squares += double{v} * v;
    }
  }
  EXPECT_NEAR(squares / shape.n, 1, 0.02);
  EXPECT_NEAR(sum / (shape.n * shape.k), 0, 0.001);
}

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda
