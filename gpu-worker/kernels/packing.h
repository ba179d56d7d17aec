// From rows of a weight file to the packed form the kernels read. Sixteen rows (a group) lie side by side, so
// that one register holds the same four columns of all sixteen and a product needs no horizontal sum:
//
//   kU4   a block of 32 columns: 4 x 64 bytes; byte 4r + b of the j-th 64: low nibble = row r, column 8j + b,
//   high nibble =
//         row r, column 8j + 4 + b. Then 16 scales and 16 minima (f16). value = scale * nibble + minimum. 320
//         bytes.
//   kU8   all blocks first, 8 x 64 bytes each: byte 4r + b of the j-th 64 = row r, column 4j + b, plus 128;
//   after the last
//         block, 16 scales (f16) a block, filled up to 64 bytes.
//   k*16, kF32   column by column: 16 values.
//
// Groups follow one another; rows missing in the last group are zero. Pure functions, any thread; used at
// load time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu-worker/kernels/kernels.h"

namespace ringmaster::gpu_worker::kernels {

// How rows lie in the file.
enum class SourceForm : uint8_t { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ8_0 };

constexpr size_t groups_of(size_t rows) {
  return (rows + kGroup - 1) / kGroup;
}
constexpr WeightForm packed_form(SourceForm form) {
  switch (form) {
    case SourceForm::kF32:
      return WeightForm::kF32;
    case SourceForm::kF16:
      return WeightForm::kF16;
    case SourceForm::kBF16:
      return WeightForm::kBF16;
    case SourceForm::kQ8_0:
      return WeightForm::kU8;
    case SourceForm::kQ4_0:
    case SourceForm::kQ4_1:
      return WeightForm::kU4;
  }
  return WeightForm::kF32;
}
size_t group_bytes(WeightForm form, size_t columns);  // a multiple of 64
size_t source_row_bytes(SourceForm form, size_t columns);

// One group. out: [group_bytes]; rows: [num_rows] as in the file, one after another, 1 <= num_rows <= kGroup.
// REQUIRES: columns a multiple of kBlock.
void pack_group(std::byte* out, const std::byte* rows, size_t num_rows, size_t columns, SourceForm form);

// The same group as float32 columns (WeightForm::kF32), for matrices whose neighbours are not quantised.
void pack_group_float(std::byte* out, const std::byte* rows, size_t num_rows, size_t columns,
                      SourceForm form);

// Row `lane` of a packed group as floats. out: [columns].
void unpack_row(float* out, const std::byte* group, size_t lane, size_t columns, WeightForm form);

// One row of the file as floats. out: [columns].
void dequantize_row(float* out, const std::byte* row, size_t columns, SourceForm form);

}  // namespace ringmaster::gpu_worker::kernels
