#include "gpu-worker/device/cuda/four_bit_packing.h"

#include <cstring>

#include "gpu-worker/kernels/half.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

uint16_t load_u16(const std::byte* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

// Eight codes, one a byte, as the word of a lane: four_bit_layout.h.
uint32_t word_of(uint64_t codes) {
  const auto gather = [](uint64_t every_other) {  // bits 0, 16, 32, 48 on, to 0, 4, 8, 12 on
    every_other |= every_other >> 12;
    return static_cast<uint32_t>((every_other & 0xFF) | (every_other >> 32 & 0xFF) << 8);
  };
  constexpr uint64_t kEven = 0x000F000F000F000F;
  return gather(codes & kEven) | gather(codes >> 8 & kEven) << 16;
}

void put_word(std::byte* at, size_t origin, const FourBitShape& shape, uint32_t row, uint32_t column,
              uint64_t codes) {
  const uint32_t word = word_of(codes);
  std::memcpy(at + (shape.half_offset(row, column) - origin), &word, 4);
}

void put_scales(std::byte* at, size_t origin, const FourBitShape& shape, uint32_t row, uint32_t column,
                uint16_t scale, uint16_t offset) {
  std::byte* const scales = at + (shape.scale_offset(row, column) - origin);
  std::memcpy(scales, &scale, 2);
  std::memcpy(scales + 2, &offset, 2);
}

uint64_t load_u64(const std::byte* p) {
  uint64_t value;
  std::memcpy(&value, p, 8);
  return value;
}

}  // namespace

void pack_group(std::byte* at, size_t origin, const FourBitShape& shape, uint32_t row, uint32_t column,
                std::span<const uint8_t> codes, uint16_t scale, uint16_t offset) {
  for (uint32_t i = 0; i < codes.size(); i += 8) {
    uint64_t eight;
    std::memcpy(&eight, codes.data() + i, 8);
    put_word(at, origin, shape, row, column + i, eight);
  }
  put_scales(at, origin, shape, row, column, scale, offset);
}

// A block of the file: f16 scale, [f16 minimum], 16 bytes: value i in the low half of byte i, value 16 + i in
// its high half.
void pack_row(std::byte* at, size_t origin, const FourBitShape& shape, uint32_t row, const std::byte* source,
              kernels::SourceForm form) {
  constexpr uint64_t kLow = 0x0F0F0F0F0F0F0F0F;
  const bool has_minimum = form == kernels::SourceForm::kQ4_1;
  const size_t block_bytes = kernels::source_row_bytes(form, kFileGroup);
  for (uint32_t column = 0; column < shape.k; column += kFileGroup, source += block_bytes) {
    const uint16_t scale = load_u16(source);
    const uint16_t offset =
        has_minimum ? load_u16(source + 2) : kernels::half_of_float(-8 * kernels::float_of_half(scale));
    put_scales(at, origin, shape, row, column, scale, offset);
    for (uint32_t half = 0; half < 2; ++half) {
      const uint64_t packed = load_u64(source + (has_minimum ? 4 : 2) + 8 * half);
      put_word(at, origin, shape, row, column + 8 * half, packed & kLow);
      put_word(at, origin, shape, row, column + 16 + 8 * half, packed >> 4 & kLow);
    }
  }
}

void unpack_row(float* out, const std::byte* matrix, const FourBitShape& shape, uint32_t row) {
  for (uint32_t column = 0; column < shape.k; ++column) {
    const std::byte* const scales = matrix + shape.scale_offset(row, column);
    const int code = load_u16(matrix + shape.half_offset(row, column)) >> FourBitShape::shift(column) & 15;
    out[column] = kernels::float_of_half(load_u16(scales)) * static_cast<float>(code) +
                  kernels::float_of_half(load_u16(scales + 2));
  }
}

}  // namespace ringmaster::gpu_worker::cuda
