#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace ringmaster {
namespace {

// Length of the sequence that `lead` starts and the range its second byte must lie in; length 0: no such
// lead.
struct Form {
  int length;
  uint8_t second_low, second_high;
};

Form form(uint8_t lead) {
  if (lead < 0xC2) return {0, 0, 0};  // continuation bytes, and C0 C1: overlong
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (lead == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};  // below: overlong
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};  // above: past U+10FFFF
  return {0, 0, 0};
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const size_t size = text.size();
  size_t i = 0;
  while (i < size) {
    if (bytes[i] < 0x80) {
      uint64_t eight;
      while (i + sizeof(eight) <= size) {
        std::memcpy(&eight, bytes + i, sizeof(eight));
        if (eight & 0x8080808080808080ull) break;
        i += sizeof(eight);
      }
      while (i < size && bytes[i] < 0x80) ++i;
      continue;
    }
    const Form f = form(bytes[i]);
    if (f.length == 0 || size - i < static_cast<size_t>(f.length)) return i;
    if (bytes[i + 1] < f.second_low || bytes[i + 1] > f.second_high) return i;
    for (int k = 2; k < f.length; ++k)
      if ((bytes[i + static_cast<size_t>(k)] & 0xC0) != 0x80) return i;
    i += static_cast<size_t>(f.length);
  }
  return size;
}

Status check_utf8(const std::string& what, std::string_view text) {
  const size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return ok_status();
  return Error{Code::kInvalidUtf8,
               what + " is not UTF-8: byte " + std::to_string(valid) + " starts no valid character"};
}

}  // namespace ringmaster
