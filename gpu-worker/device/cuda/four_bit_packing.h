// From rows of a weight file to the four-bit form of the kernels (kernels/cuda/four_bit_layout.h), and back
// for tests. Pure functions, any thread; used at load time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu-worker/kernels/cuda/four_bit_layout.h"
#include "gpu-worker/kernels/packing.h"

namespace ringmaster::gpu_worker::cuda {

constexpr uint32_t kFileGroup = 32;  // columns of a block of Q4_0 and Q4_1

constexpr bool is_four_bit(kernels::SourceForm form) {
  return form == kernels::SourceForm::kQ4_0 || form == kernels::SourceForm::kQ4_1;
}

// One group of a row. `at` is where byte `origin` of the matrix lies: a part of it can be packed by itself.
// codes: [shape.group], each 0 to 15. scale, offset: bits of f16. REQUIRES: column is the first of a group.
void pack_group(std::byte* at, size_t origin, const FourBitShape& shape, uint32_t row, uint32_t column,
                std::span<const uint8_t> codes, uint16_t scale, uint16_t offset);

// One row of the file. REQUIRES: is_four_bit(form), shape.group == kFileGroup.
void pack_row(std::byte* at, size_t origin, const FourBitShape& shape, uint32_t row, const std::byte* source,
              kernels::SourceForm form);

// out: [shape.k].
void unpack_row(float* out, const std::byte* matrix, const FourBitShape& shape, uint32_t row);

}  // namespace ringmaster::gpu_worker::cuda
