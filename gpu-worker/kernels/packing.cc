#include "gpu-worker/kernels/packing.h"

#include <array>
#include <cstring>
#include <vector>

#include "gpu-worker/kernels/half.h"

namespace ringmaster::gpu_worker::kernels {
namespace {

// Blocks of the file (ggml): f16 scale, [f16 minimum], then 16 bytes of nibbles or 32 signed bytes. Nibble i
// of the low halves is value i, of the high halves value 16 + i.
constexpr size_t kQ4_0Bytes = 18;
constexpr size_t kQ4_1Bytes = 20;
constexpr size_t kQ8_0Bytes = 34;
constexpr size_t kU4BlockBytes = 4 * 64 + 2 * 2 * kGroup;
constexpr size_t kU8BlockBytes = 8 * 64;

uint16_t load_u16(const std::byte* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

uint32_t load_u32(const std::byte* p) {
  uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

void store_u16(std::byte* p, uint16_t value) {
  std::memcpy(p, &value, 2);
}
void store_u32(std::byte* p, uint32_t value) {
  std::memcpy(p, &value, 4);
}

// One row's block of 16 nibble bytes into its lane of a packed block.
void pack_nibbles(std::byte* block, size_t lane, const std::byte* nibbles) {
  std::array<uint32_t, 8> word;  // columns 4i .. 4i + 3, a byte each
  for (size_t i = 0; i < 4; ++i) {
    const uint32_t bytes = load_u32(nibbles + 4 * i);
    word[i] = bytes & 0x0F0F0F0F;
    word[4 + i] = bytes >> 4 & 0x0F0F0F0F;
  }
  for (size_t j = 0; j < 4; ++j) store_u32(block + 64 * j + 4 * lane, word[2 * j] | word[2 * j + 1] << 4);
}

void pack_u4(std::byte* out, const std::byte* rows, size_t num_rows, size_t columns, SourceForm form) {
  const size_t block_bytes = form == SourceForm::kQ4_1 ? kQ4_1Bytes : kQ4_0Bytes;
  const size_t blocks = columns / kBlock;
  for (size_t b = 0; b < blocks; ++b) {
    std::byte* block = out + b * kU4BlockBytes;
    for (size_t r = 0; r < num_rows; ++r) {
      const std::byte* source = rows + (r * blocks + b) * block_bytes;
      const uint16_t scale = load_u16(source);
      std::byte* lane = block + 256 + 2 * r;
      store_u16(lane, scale);
      if (form == SourceForm::kQ4_1) {
        store_u16(lane + 2 * kGroup, load_u16(source + 2));
      } else {  // values are scale * (nibble - 8)
        store_u16(lane + 2 * kGroup, half_of_float(-8 * float_of_half(scale)));
      }
      pack_nibbles(block, r, source + block_bytes - 16);
    }
  }
}

void pack_u8(std::byte* out, const std::byte* rows, size_t num_rows, size_t columns) {
  const size_t blocks = columns / kBlock;
  std::byte* scales = out + blocks * kU8BlockBytes;
  for (size_t r = 0; r < num_rows; ++r)
    for (size_t b = 0; b < blocks; ++b) {
      const std::byte* source = rows + (r * blocks + b) * kQ8_0Bytes;
      store_u16(scales + 2 * (b * kGroup + r), load_u16(source));
      for (size_t j = 0; j < 8; ++j)
        store_u32(out + b * kU8BlockBytes + 64 * j + 4 * r, load_u32(source + 2 + 4 * j) ^ 0x80808080);
    }
}

template <typename T>
void pack_columns(std::byte* out, const std::byte* rows, size_t num_rows, size_t columns) {
  for (size_t r = 0; r < num_rows; ++r)
    for (size_t c = 0; c < columns; ++c)
      std::memcpy(out + (c * kGroup + r) * sizeof(T), rows + (r * columns + c) * sizeof(T), sizeof(T));
}

void dequantize_nibbles(float* out, const std::byte* nibbles, float scale, float minimum) {
  for (size_t i = 0; i < 16; ++i) {
    const auto byte = static_cast<uint8_t>(nibbles[i]);
    out[i] = scale * static_cast<float>(byte & 15) + minimum;
    out[16 + i] = scale * static_cast<float>(byte >> 4) + minimum;
  }
}

}  // namespace

size_t group_bytes(WeightForm form, size_t columns) {
  const size_t blocks = columns / kBlock;
  switch (form) {
    case WeightForm::kU4:
      return blocks * kU4BlockBytes;
    case WeightForm::kU8:
      return blocks * kU8BlockBytes + (blocks * 2 * kGroup + 63) / 64 * 64;
    case WeightForm::kF16:
    case WeightForm::kBF16:
      return columns * kGroup * 2;
    case WeightForm::kF32:
      return columns * kGroup * 4;
  }
  return 0;
}

size_t source_row_bytes(SourceForm form, size_t columns) {
  const size_t blocks = columns / kBlock;
  switch (form) {
    case SourceForm::kF32:
      return columns * 4;
    case SourceForm::kF16:
    case SourceForm::kBF16:
      return columns * 2;
    case SourceForm::kQ4_0:
      return blocks * kQ4_0Bytes;
    case SourceForm::kQ4_1:
      return blocks * kQ4_1Bytes;
    case SourceForm::kQ8_0:
      return blocks * kQ8_0Bytes;
  }
  return 0;
}

void pack_group(std::byte* out, const std::byte* rows, size_t num_rows, size_t columns, SourceForm form) {
  if (num_rows < kGroup) std::memset(out, 0, group_bytes(packed_form(form), columns));
  switch (form) {
    case SourceForm::kF32:
      return pack_columns<uint32_t>(out, rows, num_rows, columns);
    case SourceForm::kF16:
    case SourceForm::kBF16:
      return pack_columns<uint16_t>(out, rows, num_rows, columns);
    case SourceForm::kQ4_0:
    case SourceForm::kQ4_1:
      return pack_u4(out, rows, num_rows, columns, form);
    case SourceForm::kQ8_0:
      return pack_u8(out, rows, num_rows, columns);
  }
}

void pack_group_float(std::byte* out, const std::byte* rows, size_t num_rows, size_t columns,
                      SourceForm form) {
  std::vector<float> floats(num_rows * columns);
  const size_t row_bytes = source_row_bytes(form, columns);
  for (size_t r = 0; r < num_rows; ++r)
    dequantize_row(&floats[r * columns], rows + r * row_bytes, columns, form);
  pack_group(out, reinterpret_cast<const std::byte*>(floats.data()), num_rows, columns, SourceForm::kF32);
}

void unpack_row(float* out, const std::byte* group, size_t lane, size_t columns, WeightForm form) {
  const size_t blocks = columns / kBlock;
  switch (form) {
    case WeightForm::kU4:
      for (size_t c = 0; c < columns; ++c) {
        const std::byte* block = group + c / kBlock * kU4BlockBytes;
        const auto byte = static_cast<uint8_t>(block[64 * (c % kBlock / 8) + 4 * lane + c % 4]);
        const float value = static_cast<float>(c % 8 < 4 ? byte & 15 : byte >> 4);
        const std::byte* scale = block + 256 + 2 * lane;
        out[c] = float_of_half(load_u16(scale)) * value + float_of_half(load_u16(scale + 2 * kGroup));
      }
      return;
    case WeightForm::kU8:
      for (size_t c = 0; c < columns; ++c) {
        const std::byte* block = group + c / kBlock * kU8BlockBytes;
        const int value = static_cast<uint8_t>(block[64 * (c % kBlock / 4) + 4 * lane + c % 4]) - 128;
        const std::byte* scale = group + blocks * kU8BlockBytes + 2 * (c / kBlock * kGroup + lane);
        out[c] = float_of_half(load_u16(scale)) * static_cast<float>(value);
      }
      return;
    case WeightForm::kF16:
      for (size_t c = 0; c < columns; ++c) out[c] = float_of_half(load_u16(group + 2 * (c * kGroup + lane)));
      return;
    case WeightForm::kBF16:
      for (size_t c = 0; c < columns; ++c) out[c] = float_of_bf16(load_u16(group + 2 * (c * kGroup + lane)));
      return;
    case WeightForm::kF32:
      for (size_t c = 0; c < columns; ++c) std::memcpy(out + c, group + 4 * (c * kGroup + lane), 4);
      return;
  }
}

void dequantize_row(float* out, const std::byte* row, size_t columns, SourceForm form) {
  switch (form) {
    case SourceForm::kF32:
      std::memcpy(out, row, columns * 4);
      return;
    case SourceForm::kF16:
      for (size_t c = 0; c < columns; ++c) out[c] = float_of_half(load_u16(row + 2 * c));
      return;
    case SourceForm::kBF16:
      for (size_t c = 0; c < columns; ++c) out[c] = float_of_bf16(load_u16(row + 2 * c));
      return;
    case SourceForm::kQ4_0:
    case SourceForm::kQ4_1: {
      const size_t bytes = form == SourceForm::kQ4_1 ? kQ4_1Bytes : kQ4_0Bytes;
      for (size_t b = 0; b < columns / kBlock; ++b) {
        const std::byte* source = row + b * bytes;
        const float scale = float_of_half(load_u16(source));
        const float minimum = form == SourceForm::kQ4_1 ? float_of_half(load_u16(source + 2)) : -8 * scale;
        dequantize_nibbles(out + b * kBlock, source + bytes - 16, scale, minimum);
      }
      return;
    }
    case SourceForm::kQ8_0:
      for (size_t b = 0; b < columns / kBlock; ++b) {
        const std::byte* source = row + b * kQ8_0Bytes;
        const float scale = float_of_half(load_u16(source));
        for (size_t i = 0; i < kBlock; ++i)
          out[b * kBlock + i] = scale * static_cast<float>(static_cast<int8_t>(source[2 + i]));
      }
      return;
  }
}

}  // namespace ringmaster::gpu_worker::kernels
