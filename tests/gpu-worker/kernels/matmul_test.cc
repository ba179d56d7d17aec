#include "tests/gpu-worker/kernels/tables.h"

namespace ringmaster::gpu_worker::kernels {
namespace {

// A random matrix of the file's form, packed, and the same as floats.
struct Weights {
  WeightForm form;
  size_t rows, columns;
  std::vector<float> values;  // [rows, columns]
  Bytes packed;

  Weights(SourceForm source, size_t rows_, size_t columns_, std::mt19937& random)
      : form(packed_form(source)),
        rows(rows_),
        columns(columns_),
        values(rows_ * columns_),
        packed(groups_of(rows_) * group_bytes(packed_form(source), columns_)) {
    const size_t row_bytes = source_row_bytes(source, columns);
    std::vector<std::byte> file(rows * row_bytes);
    fill(file, source, random);
    for (size_t r = 0; r < rows; ++r)
      dequantize_row(&values[r * columns], &file[r * row_bytes], columns, source);
    for (size_t g = 0; g < groups_of(rows); ++g)
      pack_group(packed.data() + g * group_bytes(form, columns), &file[g * kGroup * row_bytes],
                 std::min(kGroup, rows - g * kGroup), columns, source);
  }

  static void fill(std::vector<std::byte>& file, SourceForm source, std::mt19937& random) {
    const auto put_half = [&](size_t at, float value) {
      const uint16_t half = half_of_float(value);
      std::memcpy(&file[at], &half, 2);
    };
    std::uniform_real_distribution<float> value(-1, 1);
    for (std::byte& b : file) b = static_cast<std::byte>(random());
    const size_t block = source_row_bytes(source, kBlock);
    switch (source) {
      case SourceForm::kF32:
        for (size_t i = 0; i < file.size(); i += 4) {
          const float x = value(random);
          std::memcpy(&file[i], &x, 4);
        }
        break;
      case SourceForm::kF16:
        for (size_t i = 0; i < file.size(); i += 2) put_half(i, value(random));
        break;
      case SourceForm::kBF16:
        for (size_t i = 0; i < file.size(); i += 2) {
          const auto bits = static_cast<uint16_t>(bits_of_float(value(random)) >> 16);
          std::memcpy(&file[i], &bits, 2);
        }
        break;
      default:
        for (size_t i = 0; i < file.size(); i += block) {
          put_half(i, value(random) / 8);
          if (source == SourceForm::kQ4_1) put_half(i + 2, value(random));
        }
    }
  }
};

// What the fast tables do to a row before a quantised product: a scale a block of 32, nearest integer, ties
// to even.
std::vector<double> rounded(const std::vector<float>& x) {
  std::vector<double> out(x.size());
  for (size_t b = 0; b < x.size(); b += kBlock) {
    float largest = 0;
    for (size_t i = b; i < b + kBlock; ++i) largest = std::max(largest, std::abs(x[i]));
    for (size_t i = b; i < b + kBlock; ++i)
      out[i] = largest > 0 ? static_cast<double>(std::nearbyint(x[i] * (127.0f / largest))) *
                                 static_cast<double>(largest / 127.0f)
                           : 0.0;
  }
  return out;
}

class Matmul : public EveryTable {
 protected:
  // Prepared rows of m x k values.
  Bytes prepare(const std::vector<std::vector<float>>& rows, InputForm form) {
    const size_t k = rows[0].size(), stride = table().row_bytes[static_cast<size_t>(form)](k);
    EXPECT_EQ(stride % 64, 0u);
    Bytes out(stride * rows.size(), 0xEE);
    for (size_t i = 0; i < rows.size(); ++i)
      table().prepare[static_cast<size_t>(form)](out.data() + i * stride, k, 0, rows[i].data(), k);
    return out;
  }

  std::vector<float> multiply(Bytes& prepared, Weights& w, size_t first_row, size_t m, size_t first_group,
                              size_t groups, size_t stride, bool increase = false, float before = 0) {
    const size_t row_stride = table().row_bytes[static_cast<size_t>(input_form(w.form))](w.columns);
    std::vector<float> out(m * stride, before);
    table().matmul[static_cast<size_t>(w.form)](
        out.data(), stride, prepared.data() + first_row * row_stride, row_stride, m,
        w.packed.data() + first_group * group_bytes(w.form, w.columns), w.columns, groups, increase);
    return out;
  }

  void check(SourceForm source, size_t m, size_t n, size_t k) {
    Weights w(source, n, k, random_);
    std::vector<std::vector<float>> rows;
    for (size_t i = 0; i < m; ++i) rows.push_back(normal(k, static_cast<float>(1 + i)));
    const bool quantized = input_form(w.form) == InputForm::kQuantized;
    Bytes prepared = prepare(rows, input_form(w.form));
    const size_t groups = groups_of(n), stride = groups * kGroup + 3;
    const std::vector<float> out = multiply(prepared, w, 0, m, 0, groups, stride);
    for (size_t i = 0; i < m; ++i) {
      std::vector<double> x(rows[i].begin(), rows[i].end());
      if (quantized && !exact()) x = rounded(rows[i]);
      for (size_t j = 0; j < n; ++j) {
        double sum = 0, magnitude = 0;
        for (size_t c = 0; c < k; ++c) {
          const double product = x[c] * static_cast<double>(w.values[j * k + c]);
          sum += product;
          magnitude += std::abs(product);
        }
        ASSERT_NEAR(static_cast<double>(out[i * stride + j]), sum, kFloatTolerance * magnitude)
            << table().name << " m " << m << " n " << n << " k " << k << " at " << i << ", " << j;
      }
    }
  }
};

TEST_P(Matmul, EqualsTheReferenceForOddSizes) {
  for (const SourceForm source : {SourceForm::kQ4_1, SourceForm::kQ4_0, SourceForm::kQ8_0, SourceForm::kF16,
                                  SourceForm::kBF16, SourceForm::kF32}) {
    check(source, 1, 1, 32);
    check(source, 3, 17, 64);
    check(source, 8, 16, 96);
    check(source, 9, 48, 576);
    check(source, 19, 33, 160);
  }
}

TEST_P(Matmul, BitsOfARowDoNotDependOnItsCompany) {
  for (const SourceForm source : {SourceForm::kQ4_1, SourceForm::kQ8_0, SourceForm::kF16, SourceForm::kF32}) {
    Weights w(source, 48, 160, random_);
    std::vector<std::vector<float>> rows;
    for (size_t i = 0; i < 21; ++i) rows.push_back(normal(160));
    Bytes prepared = prepare(rows, input_form(w.form));
    const std::vector<float> together = multiply(prepared, w, 0, 21, 0, 3, 48);
    for (size_t i = 0; i < 21; ++i)
      for (size_t g = 0; g < 3; ++g) {
        const std::vector<float> alone = multiply(prepared, w, i, 1, g, 1, kGroup);
        ASSERT_EQ(std::memcmp(alone.data(), &together[i * 48 + g * kGroup], sizeof(float) * kGroup), 0)
            << table().name << " row " << i << " group " << g;
      }
    for (size_t m = 2; m <= 12; ++m) {
      const std::vector<float> some = multiply(prepared, w, 4, m, 0, 3, 48);
      ASSERT_EQ(std::memcmp(some.data(), &together[4 * 48], sizeof(float) * 48 * m), 0)
          << table().name << " m " << m;
    }
  }
}

TEST_P(Matmul, IncreasesWhatIsThere) {
  for (const SourceForm source : {SourceForm::kQ4_1, SourceForm::kQ8_0, SourceForm::kF16}) {
    Weights w(source, 16, 64, random_);
    Bytes prepared = prepare({normal(64), normal(64)}, input_form(w.form));
    const std::vector<float> plain = multiply(prepared, w, 0, 2, 0, 1, kGroup);
    const std::vector<float> increased = multiply(prepared, w, 0, 2, 0, 1, kGroup, true, 1.5f);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(increased[i], plain[i] + 1.5f);
  }
}

TEST_P(Matmul, RowsPreparedInSpansEqualRowsPreparedAtOnce) {
  const std::vector<float> x = normal(256);
  for (size_t form = 0; form < kNumInputs; ++form) {
    const size_t bytes = table().row_bytes[form](256);
    Bytes whole(bytes), spans(bytes);
    table().prepare[form](whole.data(), 256, 0, x.data(), 256);
    for (const size_t first : {96, 0, 32, 224}) {
      const size_t n = first == 96 ? 128 : first == 32 ? 64 : 32;
      table().prepare[form](spans.data(), 256, first, x.data() + first, n);
    }
    EXPECT_EQ(std::memcmp(whole.data(), spans.data(), bytes), 0);
  }
}

// What a prepared row lost, prepared again: together they hold about 15 bits.
TEST_P(Matmul, TheRestOfAPreparedRowMakesItNearlyExact) {
  for (const InputForm form : {InputForm::kQuantized, InputForm::kFloat}) {
    const std::vector<float> x = normal(96);
    const size_t f = static_cast<size_t>(form);
    Bytes prepared = prepare({x}, form);
    std::vector<float> rest = x, lost = x;
    table().subtract_prepared[f](rest.data(), prepared.data(), 96);
    Bytes prepared_rest = prepare({rest}, form);
    lost = rest;
    table().subtract_prepared[f](lost.data(), prepared_rest.data(), 96);
    const bool rounds = form == InputForm::kQuantized && !exact();
    float most_rest = 0, most_lost = 0;
    for (size_t i = 0; i < 96; ++i) {
      most_rest = std::max(most_rest, std::abs(rest[i]));
      most_lost = std::max(most_lost, std::abs(lost[i]));
      if (rounds) {
        EXPECT_NEAR(rest[i], static_cast<double>(x[i]) - rounded(x)[i], 1e-6);
      }
    }
    EXPECT_LE(most_rest, rounds ? 4.0f / 254 : 0.0f);
    EXPECT_LE(most_lost, rounds ? 4.0f / 254 / 254 : 0.0f);
  }
}

TEST_P(Matmul, AddAddsInPlace) {
  std::vector<float> x = normal(48), y = normal(48), before = x;
  table().add(x.data(), y.data(), 48);
  for (size_t i = 0; i < 48; ++i) EXPECT_EQ(x[i], before[i] + y[i]);
}

TEST_P(Matmul, ValuesThatAreNotFiniteSpoilTheirRowOnly) {
  for (const SourceForm source : {SourceForm::kQ4_1, SourceForm::kQ8_0, SourceForm::kF32}) {
    Weights w(source, 16, 64, random_);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      std::vector<std::vector<float>> rows = {normal(64), normal(64), normal(64)};
      rows[1][40] = bad;
      Bytes prepared = prepare(rows, input_form(w.form));
      const std::vector<float> out = multiply(prepared, w, 0, 3, 0, 1, kGroup);
      for (size_t j = 0; j < kGroup; ++j) {
        EXPECT_TRUE(std::isfinite(out[j]));
        EXPECT_FALSE(std::isfinite(out[kGroup + j])) << table().name << " " << bad << " " << j;
        EXPECT_TRUE(std::isfinite(out[2 * kGroup + j]));
      }
    }
  }
}

TEST_P(Matmul, ZeroAndTinyRowsGiveZero) {
  Weights w(SourceForm::kQ4_1, 16, 64, random_);
  Bytes prepared =
      prepare({std::vector<float>(64, 0.0f), std::vector<float>(64, 1e-42f)}, InputForm::kQuantized);
  for (const float x : multiply(prepared, w, 0, 2, 0, 1, kGroup)) EXPECT_NEAR(x, 0, 1e-38);
}

// Every weight 15 or 255, every activation 127: the largest sums the integer paths must hold.
TEST_P(Matmul, LargestSumsDoNotOverflow) {
  const size_t k = 256;
  std::vector<std::byte> q4(source_row_bytes(SourceForm::kQ4_1, k), std::byte{0xFF});
  std::vector<std::byte> q8(source_row_bytes(SourceForm::kQ8_0, k), std::byte{0x7F});
  const uint16_t one = 0x3C00, zero = 0;
  for (size_t b = 0; b < k / kBlock; ++b) {
    std::memcpy(&q4[b * 20], &one, 2);
    std::memcpy(&q4[b * 20 + 2], &zero, 2);
    std::memcpy(&q8[b * 34], &one, 2);
  }
  for (const float sign : {1.0f, -1.0f}) {
    Bytes prepared = prepare({std::vector<float>(k, 127 * sign)}, InputForm::kQuantized);
    Bytes packed4(group_bytes(WeightForm::kU4, k)), packed8(group_bytes(WeightForm::kU8, k));
    pack_group(packed4.data(), q4.data(), 1, k, SourceForm::kQ4_1);
    pack_group(packed8.data(), q8.data(), 1, k, SourceForm::kQ8_0);
    float out[kGroup];
    const size_t stride = table().row_bytes[0](k);
    table().matmul[0](out, kGroup, prepared.data(), stride, 1, packed4.data(), k, 1, false);
    EXPECT_EQ(out[0], sign * 256 * 15 * 127);
    table().matmul[1](out, kGroup, prepared.data(), stride, 1, packed8.data(), k, 1, false);
    EXPECT_EQ(out[0], sign * 256 * 127 * 127);
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, Matmul, testing::ValuesIn(available_tables()), table_name);

}  // namespace
}  // namespace ringmaster::gpu_worker::kernels
