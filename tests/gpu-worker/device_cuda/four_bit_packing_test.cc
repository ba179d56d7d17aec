#include "gpu-worker/device/cuda/four_bit_packing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace ringmaster::gpu_worker::cuda {
namespace {

using kernels::SourceForm;

TEST(FourBitShape, WorkedExamples) {
  constexpr FourBitShape wide{.n = 16, .k = 256, .group = 128}, fine{.n = 8, .k = 160, .group = 32};
  EXPECT_EQ(wide.units(), 2u);
  EXPECT_EQ(wide.unit_bytes(), 512u + 8 * 4);
  EXPECT_EQ(wide.bytes(), 2u * 2 * 544);
  EXPECT_EQ(fine.units(), 2u) << "the last is a quarter full";
  EXPECT_EQ(fine.unit_bytes(), 512u + 4 * 8 * 4);
  EXPECT_EQ(wide.half_offset(0, 0), 0u);
  EXPECT_EQ(wide.half_offset(0, 1), 2u);
  EXPECT_EQ(wide.half_offset(0, 6), 0u);
  EXPECT_EQ(FourBitShape::shift(6), 12u);
  EXPECT_EQ(FourBitShape::shift(7), 12u);
  EXPECT_EQ(wide.half_offset(0, 8), 16u) << "the next lane";
  EXPECT_EQ(wide.half_offset(0, 32), 4u) << "the lane's next word";
  EXPECT_EQ(wide.half_offset(3, 40), 13u * 16 + 4);
  EXPECT_EQ(wide.half_offset(9, 128), 3u * 544 + 4 * 16);
  EXPECT_EQ(wide.scale_offset(9, 200), 3u * 544 + 512 + 4);
  EXPECT_EQ(fine.scale_offset(2, 100), 512u + (3 * 8 + 2) * 4);
}

TEST(FourBitPacking, WorkedExample) {
  constexpr FourBitShape shape{.n = 8, .k = 32, .group = 32};
  std::vector<std::byte> matrix(shape.bytes());
  std::vector<uint8_t> codes(32, 0);
  for (uint8_t i = 0; i < 8; ++i) codes[i] = static_cast<uint8_t>(i + 1);
  pack_group(matrix.data(), 0, shape, 1, 0, codes, 0x3800, 0xBC00);  // 0.5, -1
  uint32_t word, scales;
  std::memcpy(&word, &matrix[4 * 16], 4);
  std::memcpy(&scales, &matrix[512 + 4], 4);
  EXPECT_EQ(word, 0x86427531u);
  EXPECT_EQ(scales, 0xBC003800u);
  std::vector<float> row(32);
  unpack_row(row.data(), matrix.data(), shape, 1);
  EXPECT_EQ(row[0], -0.5f);
  EXPECT_EQ(row[7], 3.0f);
  EXPECT_EQ(row[8], -1.0f);
}

// Every code in every column, through a part of a matrix as the loader packs it.
class FourBitFile : public testing::TestWithParam<SourceForm> {};

TEST_P(FourBitFile, UnpacksToWhatTheFileMeans) {
  std::mt19937 random(11);
  for (const uint32_t k : {32u, 128u, 576u, 1536u}) {
    const FourBitShape shape{.n = 24, .k = k, .group = kFileGroup};
    const size_t row_bytes = kernels::source_row_bytes(GetParam(), k),
                 block = kernels::source_row_bytes(GetParam(), kFileGroup);
    std::vector<std::byte> file(shape.n * row_bytes), matrix(shape.bytes());
    for (std::byte& b : file) b = static_cast<std::byte>(random());
    for (size_t i = 0; i < file.size(); i += block)
      for (const size_t at :
           {size_t{0}, block - 18}) {  // scale and minimum: halves that are ordinary numbers
        const auto value = static_cast<uint16_t>(random() % 2 << 15 | (0x2000 + random() % 0x1000));
        std::memcpy(&file[i + at], &value, 2);
      }
    constexpr uint32_t kStrip = FourBitShape::kUnitRows;
    for (uint32_t first = 0; first < shape.n; first += kStrip) {
      const size_t origin = shape.unit_offset(first, 0);
      std::vector<std::byte> strip(shape.bytes() / shape.n * kStrip);
      for (uint32_t row = first; row < first + kStrip; ++row)
        pack_row(strip.data(), origin, shape, row, file.data() + row * row_bytes, GetParam());
      std::copy(strip.begin(), strip.end(), matrix.begin() + static_cast<std::ptrdiff_t>(origin));
    }
    std::vector<float> expected(k), got(k);
    for (uint32_t row = 0; row < shape.n; ++row) {
      kernels::dequantize_row(expected.data(), file.data() + row * row_bytes, k, GetParam());
      unpack_row(got.data(), matrix.data(), shape, row);
      EXPECT_EQ(got, expected) << "row " << row << " of " << k << " columns";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, FourBitFile, testing::Values(SourceForm::kQ4_0, SourceForm::kQ4_1));

// No two codes or scales share bits, and nothing lies outside, whatever the group.
TEST(FourBitPacking, EveryPlaceIsItsOwn) {
  for (const uint32_t group : {32u, 64u, 128u}) {
    const FourBitShape shape{.n = 16, .k = 384, .group = group};
    std::vector<uint8_t> bits(shape.bytes() * 2);  // nibbles
    for (uint32_t row = 0; row < shape.n; ++row)
      for (uint32_t column = 0; column < shape.k; ++column) {
        ++bits[shape.half_offset(row, column) * 2 + FourBitShape::shift(column) / 4];
        if (column % group == 0)
          for (size_t i = 0; i < 8; ++i) ++bits[shape.scale_offset(row, column) * 2 + i];
      }
    EXPECT_EQ(std::accumulate(bits.begin(), bits.end(), size_t{0}), bits.size());
    for (const uint8_t uses : bits) ASSERT_EQ(uses, 1);
  }
}

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda
