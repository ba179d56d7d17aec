// Where keys and values lie in a piece: against the swizzled order that the tensor cores of a warpgroup read,
// written down here by the rule of the PTX ISA, and by worked examples. Needs no GPU.
#include "gpu-worker/kernels/cuda/mma_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace ringmaster::gpu_worker::cuda {
namespace {

// The byte of element k of a row, rows of `row_bytes` in groups of eight: of the plain address, 16-byte
// chunks are numbered anew by the bits of the row (bits 7 and above).
int swizzled(int row, int k, int row_bytes) {
  const int plain = row * row_bytes + k * 2;
  return row_bytes == 64 ? plain ^ (plain >> 7 & 3) << 4 : plain ^ (plain >> 7 & 1) << 4;
}

class MmaLayout : public testing::TestWithParam<int> {};

TEST_P(MmaLayout, APieceHoldsEveryKeyAndValueOnce) {
  const int size = GetParam();
  std::vector<int> at;
  for (int token = 0; token < kBlockTokens; ++token)
    for (int dim = 0; dim < size; ++dim) {
      at.push_back(key_offset(token, dim, size));
      at.push_back(value_offset(token, dim, size));
    }
  std::vector<int> all(at.size());
  std::iota(all.begin(), all.end(), 0);
  std::sort(at.begin(), at.end());
  EXPECT_EQ(at, all);
}

TEST_P(MmaLayout, KeysAreAtomsOfEightRowsOf64Bytes) {
  const int size = GetParam();
  for (int token = 0; token < kBlockTokens; ++token)
    for (int dim = 0; dim < size; ++dim) {
      const int atom = (token / 8 * (size / 32) + dim / 32) * 512;
      ASSERT_EQ(key_offset(token, dim, size) * 2, atom + swizzled(token % 8, dim % 32, 64))
          << "token " << token << " dim " << dim;
    }
}

TEST_P(MmaLayout, ValuesAreAtomsOfEightRowsOf32Bytes) {
  const int size = GetParam();
  for (int token = 0; token < kBlockTokens; ++token)
    for (int dim = 0; dim < size; ++dim)
      ASSERT_EQ(value_offset(token, dim, size) * 2,
                kBlockTokens * size * 2 + dim / 8 * 256 + swizzled(dim % 8, token, 32))
          << "token " << token << " dim " << dim;
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, MmaLayout, testing::Values(64, 96, 128, 256));

TEST(MmaLayoutExamples, WorkedExamples) {
  EXPECT_EQ(key_offset(0, 0, 96), 0);
  EXPECT_EQ(key_offset(1, 8, 96), 32 + 8);               // rows 0 and 1 are in order
  EXPECT_EQ(key_offset(2, 8, 96), 64);                   // chunks 0 and 1 have changed places
  EXPECT_EQ(key_offset(7, 39, 96), 256 + 224 + 24 + 7);  // second 32 dims, chunk 0 at place 3
  EXPECT_EQ(key_offset(8, 0, 96), 3 * 256);
  EXPECT_EQ(value_offset(0, 0, 96), 16 * 96);
  EXPECT_EQ(value_offset(9, 1, 96), 16 * 96 + 16 + 9);
  EXPECT_EQ(value_offset(9, 4, 96), 16 * 96 + 64 + 1);  // from row 4 on the halves have changed places
}

// A lane of decode has the scores of the four tokens whose values it reads.
TEST(MmaLayoutExamples, ScoresAndValuesOfALaneAreOfTheSameTokens) {
  for (int lane = 0; lane < 4; ++lane)
    for (int i = 0; i < 4; ++i) EXPECT_EQ(score_token(i / 2, 2 * lane + i % 2), 4 * lane + i);
}

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda
