// UTF-8 one character at a time, for streams: tells a broken sequence from one that only waits for more
// bytes, by the Unicode rule of maximal subparts (Table 3-7), which Python's errors='replace' and Rust's
// from_utf8_lossy follow too. Pure functions, any thread, any bytes. Whether a whole text is valid:
// base/utf8.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ringmaster::tokenizer_worker {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Char {
  enum Kind : uint8_t {
    kWhole,       // a character
    kIncomplete,  // all bytes there are, and more could complete it
    kBroken,      // bytes that no continuation makes valid: one U+FFFD stands for them
  };
  char32_t code;  // only of a whole character
  uint8_t size;   // bytes, 1..4
  Kind kind;
};

// REQUIRES: `bytes` is not empty.
Utf8Char first_char(std::string_view bytes);

// Appends the text of `bytes` to `text`, broken sequences as U+FFFD, and returns how many bytes were used:
// all but an incomplete character at the end.
size_t append_lossy(std::string_view bytes, std::string& text);

// Whether valid `text` may be cut before byte `offset`: at its end or at the first byte of a character.
inline bool is_character_border(std::string_view text, size_t offset) {
  if (offset >= text.size()) return offset == text.size();
  return (static_cast<unsigned char>(text[offset]) & 0xC0) != 0x80;
}

}  // namespace ringmaster::tokenizer_worker
