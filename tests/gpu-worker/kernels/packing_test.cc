#include "gpu-worker/kernels/packing.h"

#include "tests/gpu-worker/kernels/tables.h"

namespace ringmaster::gpu_worker::kernels {
namespace {

TEST(Half, WorkedExamples) {
  EXPECT_EQ(float_of_half(0x3C00), 1.0f);
  EXPECT_EQ(float_of_half(0xC000), -2.0f);
  EXPECT_EQ(float_of_half(0x7BFF), 65504.0f);
  EXPECT_EQ(float_of_half(0x0001), 0x1p-24f);
  EXPECT_EQ(float_of_half(0x03FF), 1023 * 0x1p-24f);
  EXPECT_TRUE(std::isinf(float_of_half(0x7C00)));
  EXPECT_TRUE(std::isnan(float_of_half(0x7C01)));
  EXPECT_EQ(half_of_float(65519.0f), 0x7BFF);
  EXPECT_EQ(half_of_float(65520.0f), 0x7C00);
  EXPECT_EQ(half_of_float(0x1p-25f), 0x0000);        // a tie, to even
  EXPECT_EQ(half_of_float(0x1.8p-24f), 0x0002);      // a tie, to even
  EXPECT_EQ(half_of_float(1 + 0x1p-11f), 0x3C00);    // a tie, to even
  EXPECT_EQ(half_of_float(1 + 0x1.8p-10f), 0x3C02);  // a tie, to even
  EXPECT_EQ(float_of_bf16(0x3F80), 1.0f);
}

TEST(Half, EveryHalfComesBack) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float value = float_of_half(static_cast<uint16_t>(h));
    if (std::isnan(value)) continue;
    ASSERT_EQ(half_of_float(value), h);
  }
}

// Rows with literal contents: what ggml's documentation says of each block.
TEST(Dequantize, WorkedExamples) {
  std::vector<std::byte> q4_1(20), q4_0(18), q8_0(34);
  const auto put = [](std::byte* at, uint16_t value) { std::memcpy(at, &value, 2); };
  put(&q4_1[0], 0x3800);  // 0.5
  put(&q4_1[2], 0xBC00);  // -1
  put(&q4_0[0], 0x3800);
  put(&q8_0[0], 0x3800);
  for (uint8_t i = 0; i < 16; ++i) q4_1[4 + i] = q4_0[2 + i] = std::byte(i | (15 - i) << 4);
  for (int i = 0; i < 32; ++i) q8_0[2 + i] = static_cast<std::byte>(i * 8 - 128);
  std::vector<float> out(32);
  dequantize_row(out.data(), q4_1.data(), 32, SourceForm::kQ4_1);
  EXPECT_EQ(out[0], -1.0f);
  EXPECT_EQ(out[3], 0.5f);
  EXPECT_EQ(out[16], 6.5f);
  EXPECT_EQ(out[31], -1.0f);
  dequantize_row(out.data(), q4_0.data(), 32, SourceForm::kQ4_0);
  EXPECT_EQ(out[0], -4.0f);
  EXPECT_EQ(out[15], 3.5f);
  EXPECT_EQ(out[16], 3.5f);
  dequantize_row(out.data(), q8_0.data(), 32, SourceForm::kQ8_0);
  EXPECT_EQ(out[0], -64.0f);
  EXPECT_EQ(out[31], 60.0f);
}

class EverySource : public testing::TestWithParam<SourceForm> {};

// What is packed and unpacked is what was dequantised, for full and partly filled groups.
TEST_P(EverySource, UnpackedRowsAreTheRowsOfTheFile) {
  std::mt19937 random(7);
  for (const size_t columns : {32, 64, 160}) {
    for (const size_t rows : {1, 5, 16}) {
      const size_t row_bytes = source_row_bytes(GetParam(), columns);
      std::vector<std::byte> file(rows * row_bytes);
      for (size_t i = 0; i + 1 < file.size();
           i += 2) {  // halves that are ordinary numbers, whatever they are taken for
        const auto value = static_cast<uint16_t>(0x2000 + random() % 0x1000);
        std::memcpy(&file[i], &value, 2);
      }
      const WeightForm form = packed_form(GetParam());
      Bytes packed(group_bytes(form, columns), 0xEE);
      pack_group(packed.data(), file.data(), rows, columns, GetParam());
      Bytes as_float(group_bytes(WeightForm::kF32, columns), 0xEE);
      pack_group_float(as_float.data(), file.data(), rows, columns, GetParam());
      std::vector<float> expected(columns), unpacked(columns);
      for (size_t r = 0; r < kGroup; ++r) {
        std::fill(expected.begin(), expected.end(), 0.0f);
        if (r < rows) dequantize_row(expected.data(), file.data() + r * row_bytes, columns, GetParam());
        unpack_row(unpacked.data(), packed.data(), r, columns, form);
        EXPECT_EQ(unpacked, expected) << "row " << r << " of " << rows << ", " << columns << " columns";
        unpack_row(unpacked.data(), as_float.data(), r, columns, WeightForm::kF32);
        EXPECT_EQ(unpacked, expected) << "as float, row " << r;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, EverySource,
                         testing::Values(SourceForm::kF32, SourceForm::kF16, SourceForm::kBF16,
                                         SourceForm::kQ4_0, SourceForm::kQ4_1, SourceForm::kQ8_0));

}  // namespace
}  // namespace ringmaster::gpu_worker::kernels
