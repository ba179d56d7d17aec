// The skinny products against sums in double, for the shapes of the models that must run and for awkward
// ones.
#include <gtest/gtest.h>

#include "gpu-worker/kernels/cuda/mma_layout.h"
#include "gpu-worker/kernels/cuda/skinny.h"
#include "tests/gpu-worker/kernels_cuda/device_array.h"
#include "tests/gpu-worker/kernels_cuda/products.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

struct Shape {
  uint32_t rows, n, k;
};

class Skinny : public testing::TestWithParam<Shape> {};

TEST_P(Skinny, LogitsAreTheProduct) {
  const auto [rows, n, k] = GetParam();
  const Tensor x = Tensor::random(size_t{rows} * k, 1, 1), w = Tensor::random(size_t{n} * k, 0.05f, 2);
  const DeviceArray<float> y(size_t{rows} * n);
  EXPECT_CUDA(logits(test_launch(), {w.get(), n, k, x.get(), rows}, 0, y.get()));
  EXPECT_LT(relative_error(y.read(), product(doubles(x.host), w.host, rows, n, k)), 1e-5);
}

TEST_P(Skinny, SoftCapBoundsLogits) {
  const auto [rows, n, k] = GetParam();
  const Tensor x = Tensor::random(size_t{rows} * k, 1, 1), w = Tensor::random(size_t{n} * k, 1, 2);
  const DeviceArray<float> y(size_t{rows} * n);
  EXPECT_CUDA(logits(test_launch(), {w.get(), n, k, x.get(), rows}, 30, y.get()));
  std::vector<double> wanted = product(doubles(x.host), w.host, rows, n, k);
  for (double& v : wanted) v = 30 * std::tanh(v / 30);
  EXPECT_LT(relative_error(y.read(), wanted), 1e-4);
}

TEST_P(Skinny, AddProductAddsToTheResidual) {
  const auto [rows, n, k] = GetParam();
  const Tensor x = Tensor::random(size_t{rows} * k, 1, 1), w = Tensor::random(size_t{n} * k, 0.05f, 2);
  const Tensor residual = Tensor::random(size_t{rows} * n, 2, 3);
  std::vector<double> wanted = product(doubles(x.host), w.host, rows, n, k);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += residual.host[i];
  EXPECT_CUDA(add_product(test_launch(), {w.get(), n, k, x.get(), rows}, residual.get()));
  EXPECT_LT(relative_error(floats(residual.device.read()), wanted), kBf16Error);
}

TEST_P(Skinny, GatedProductActivatesNeighbours) {
  const auto [rows, n, k] = GetParam();
  const Tensor x = Tensor::random(size_t{rows} * k, 3, 1), w = Tensor::random(size_t{n} * k, 0.05f, 2),
               norm = Tensor::random(k, 1, 3);
  for (const Gate kind : {Gate::kSilu, Gate::kGeluTanh}) {
    const DeviceArray<uint16_t> y(size_t{rows} * n / 2);
    EXPECT_CUDA(gated_product(test_launch(), {w.get(), n, k, x.get(), rows}, {norm.get(), 1e-5f}, kind,
                              reinterpret_cast<bf16*>(y.get())));
    const std::vector<double> both = product(normed(x, norm, rows, k, 1e-5), w.host, rows, n, k);
    EXPECT_LT(relative_error(floats(y.read()), gated(both, kind)), 2 * kBf16Error);
  }
}

// A row's result is the same alone and in company.
TEST_P(Skinny, RowsDoNotMeet) {
  const auto [rows, n, k] = GetParam();
  const Tensor x = Tensor::random(size_t{rows} * k, 1, 1), w = Tensor::random(size_t{n} * k, 0.05f, 2);
  const DeviceArray<float> together(size_t{rows} * n), alone(n);
  EXPECT_CUDA(logits(test_launch(), {w.get(), n, k, x.get(), rows}, 0, together.get()));
  const std::vector<float> all = together.read();
  for (uint32_t r = 0; r < rows; ++r) {
    EXPECT_CUDA(logits(test_launch(), {w.get(), n, k, x.get() + size_t{r} * k, 1}, 0, alone.get()));
    const std::vector<float> one = alone.read();
    ASSERT_EQ(std::memcmp(one.data(), all.data() + size_t{r} * n, n * sizeof(float)), 0) << "row " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Skinny,
                         testing::Values(Shape{1, 8, 32}, Shape{1, 3072, 3072}, Shape{3, 1096, 576},
                                         Shape{8, 576, 1536}, Shape{8, 640, 8192}, Shape{2, 1000, 2304},
                                         Shape{5, 512, 9216}, Shape{9, 256, 3072}, Shape{16, 1160, 4096},
                                         Shape{1, 264, 14336}, Shape{4, 136, 14336}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.rows) + "x" + std::to_string(shape.param.n) +
                                  "x" + std::to_string(shape.param.k);
                         });

struct QkvShape {
  uint32_t rows, heads, kv_heads, head_dim, hidden, rope_dims;
};
class Qkv : public testing::TestWithParam<QkvShape> {};

// Both ways to q, k and v: in one kernel, and from a finished product.
TEST_P(Qkv, QueriesAreTurnedAndKeysAndValuesLieInTheirBlocks) {
  const auto [rows, heads, kv_heads, head_dim, hidden, rope_dims] = GetParam();
  constexpr uint32_t kBlocks = 7, kLayers = 2, kLayer = 1;
  const uint32_t q_width = heads * head_dim, kv_width = kv_heads * head_dim, n = q_width + 2 * kv_width;
  const Tensor x = Tensor::random(size_t{rows} * hidden, 2, 1),
               w = Tensor::random(size_t{n} * hidden, 0.05f, 2);
  const Tensor norm = Tensor::random(hidden, 1, 3), bias = Tensor::random(n, 1, 4);
  std::vector<uint32_t> position, slot;
  for (uint32_t r = 0; r < rows; ++r) {
    position.push_back(r * 977 % 5000);
    slot.push_back((r * 3 + 1) % kBlocks * 16 + (r * 5 + 2) % 16);
  }
  std::vector<float> frequency;
  for (uint32_t i = 0; i < rope_dims / 2; ++i)
    frequency.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(rope_dims)));
  const DeviceArray<uint32_t> positions(position), slots(slot);
  const DeviceArray<float> frequencies(frequency);
  KvView kv{nullptr, kLayers, kv_heads, head_dim};
  const DeviceArray<uint16_t> blocks(kBlocks * kv.block_values()), q(size_t{rows} * q_width);
  kv.data = reinterpret_cast<bf16*>(blocks.get());

  EXPECT_CUDA(project_qkv(test_launch(), {w.get(), n, hidden, x.get(), rows}, {norm.get(), 1e-5f}, bias.get(),
                          {positions.get(), slots.get()}, {frequencies.get(), rope_dims}, kv, kLayer, heads,
                          reinterpret_cast<bf16*>(q.get())));

  std::vector<double> all = product(normed(x, norm, rows, hidden, 1e-5), w.host, rows, n, hidden);
  for (uint32_t r = 0; r < rows; ++r)
    for (uint32_t c = 0; c < n; ++c) all[size_t{r} * n + c] += bias.host[c];
  for (uint32_t r = 0; r < rows; ++r)
    for (uint32_t c = 0; c < q_width + kv_width; c += 2) {
      const uint32_t d = c % head_dim;
      if (d >= rope_dims) continue;
      const double angle = double{static_cast<float>(position[r]) * frequency[d / 2]};
      double &a = all[size_t{r} * n + c], &b = all[size_t{r} * n + c + 1];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = turned;
    }
  std::vector<float> got_q = floats(q.read()), got_kv, stored = floats(blocks.read());
  std::vector<double> wanted_q, wanted_kv;
  size_t written = 0;
  for (const float v : stored) written += std::isnan(v) ? 0 : 1;
  EXPECT_EQ(written, size_t{rows} * 2 * kv_width) << "nothing else is written";
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t c = 0; c < q_width; ++c) wanted_q.push_back(all[size_t{r} * n + c]);
    for (uint32_t c = 0; c < kv_width; ++c)
      for (const bool is_v : {false, true}) {
        wanted_kv.push_back(all[size_t{r} * n + q_width + (is_v ? kv_width : 0) + c]);
        const int token = static_cast<int>(slot[r] % 16), dim = static_cast<int>(c % head_dim),
                  size = static_cast<int>(head_dim);
        const size_t piece =
            slot[r] / 16 * kv.block_values() + (size_t{kLayer} * kv_heads + c / head_dim) * kv.piece_values();
        got_kv.push_back(stored[piece + static_cast<size_t>(is_v ? value_offset(token, dim, size)
                                                                 : key_offset(token, dim, size))]);
      }
  }
  EXPECT_LT(relative_error(got_q, wanted_q), 2 * kBf16Error);
  EXPECT_LT(relative_error(got_kv, wanted_kv), 2 * kBf16Error);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Qkv,
                         testing::Values(QkvShape{1, 9, 3, 64, 576, 64}, QkvShape{4, 32, 32, 96, 3072, 96},
                                         QkvShape{7, 8, 2, 128, 1024, 128},
                                         QkvShape{12, 8, 4, 256, 2304, 256}, QkvShape{3, 4, 4, 96, 384, 48}));

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda
