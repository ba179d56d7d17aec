// Weights of four bits, as they lie in device memory. value = scale * code + offset, code 0 to 15; a group of
// 32, 64 or 128 neighbouring columns of a row has its scale and offset, both f16.
//
// A unit is 8 rows x 128 columns in one piece, in the order in which the lanes of a warp read it:
//   codes    [lane = 4 * row + chunk][32 columns / 4 bytes]: word w of a lane holds columns 32w + 8 chunk +
//   i,
//            i = 0 to 7: even i in bits 2i to 2i + 3, odd i in bits 16 + 2(i - 1) on, so that one mask takes
//            out a pair of neighbours as the tensor cores want them
//   scales   [group of the unit][row]{scale, offset}
// Units of the same eight rows follow one another (a strip), strips follow strips. Columns beyond k in the
// last unit have code, scale and offset 0.
//
// Exact: Q4_0 (offset -8 scale, unless that leaves f16: scale above 8188) and Q4_1. Within f16's rounding
// (2^-11 of scale and offset): Q4_K, AWQ, GPTQ, whose scales or offsets are products of two numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace ringmaster::gpu_worker::cuda {

struct FourBitShape {
  static constexpr uint32_t kUnitRows = 8, kUnitColumns = 128, kCodeBytes = kUnitRows * kUnitColumns / 2;

  uint32_t n = 0, k = 0;  // n a multiple of 8, k of group
  uint32_t group = 128;   // 32, 64 or 128

  __host__ __device__ uint32_t units() const { return (k + kUnitColumns - 1) / kUnitColumns; }  // of a strip
  __host__ __device__ uint32_t unit_bytes() const {
    return kCodeBytes + kUnitColumns / group * kUnitRows * 4;
  }
  __host__ __device__ size_t bytes() const { return size_t{n} / kUnitRows * units() * unit_bytes(); }

  // Where (row, column) is: its byte, and the shift of its 16-bit half.
  __host__ __device__ size_t unit_offset(uint32_t row, uint32_t column) const {
    return (size_t{row / kUnitRows} * units() + column / kUnitColumns) * unit_bytes();
  }
  __host__ __device__ size_t half_offset(uint32_t row, uint32_t column) const {
    const uint32_t lane = row % kUnitRows * 4 + column % 32 / 8;
    return unit_offset(row, column) + lane * 16 + column % kUnitColumns / 32 * 4 + column % 2 * 2;
  }
  __host__ __device__ static uint32_t shift(uint32_t column) { return column % 8 / 2 * 4; }
  // Of the scale; the offset follows it.
  __host__ __device__ size_t scale_offset(uint32_t row, uint32_t column) const {
    return unit_offset(row, column) + kCodeBytes +
           (column % kUnitColumns / group * kUnitRows + row % kUnitRows) * 4;
  }
};

}  // namespace ringmaster::gpu_worker::cuda
