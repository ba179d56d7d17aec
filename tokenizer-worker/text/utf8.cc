#include "tokenizer-worker/text/utf8.h"

namespace ringmaster::tokenizer_worker {
namespace {

// What may follow a lead byte: how many bytes, and the range of the first of them (the later ones
// are 80..BF).
struct Lead {
  uint8_t size;  // of the whole character; 0: not a lead byte
  uint8_t low, high;
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};  // continuation, or over-long
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // below: over-long
  if (byte == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // above: past U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Char first_char(std::string_view bytes) {
  const auto first = static_cast<uint8_t>(bytes[0]);
  if (first < 0x80) return {first, 1, Utf8Char::kWhole};
  const Lead lead = lead_of(first);
  if (lead.size == 0) return {0, 1, Utf8Char::kBroken};
  char32_t code = first & (0xFFu >> (lead.size + 1));
  for (uint8_t i = 1; i < lead.size; ++i) {
    if (i >= bytes.size()) return {0, i, Utf8Char::kIncomplete};
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {0, i, Utf8Char::kBroken};
    code = code << 6 | (byte & 0x3F);
  }
  return {code, lead.size, Utf8Char::kWhole};
}

size_t append_lossy(std::string_view bytes, std::string& text) {
  size_t at = 0;
  size_t copied = 0;  // bytes[copied, at) is valid and not yet in `text`
  while (at < bytes.size()) {
    const Utf8Char next = first_char(bytes.substr(at));
    if (next.kind == Utf8Char::kIncomplete) break;
    if (next.kind == Utf8Char::kBroken) {
      text.append(bytes, copied, at - copied).append(kReplacement);
      copied = at + next.size;
    }
    at += next.size;
  }
  text.append(bytes, copied, at - copied);
  return at;
}

}  // namespace ringmaster::tokenizer_worker
