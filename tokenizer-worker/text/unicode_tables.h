// Letters, numbers and white space as the reference tokenizer library knows them, frozen to its version of
// Unicode: following a newer one would change token ids. Not a general Unicode library. Immutable data, any
// thread. `digit` is what the Digits pre-tokenizer splits off; it holds all of \p{N} and 13 code points more.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ringmaster::tokenizer_worker {

struct UnicodeBlock {  // 64 code points, bit i is the i-th
  uint64_t letter;
  uint64_t number;
  uint64_t space;
  uint64_t digit;
};

extern const uint32_t kUnicodeEnd;  // from here on every code point is in none of the classes
extern const uint16_t kUnicodeIndex[];
extern const UnicodeBlock kUnicodeBlocks[];

inline bool in_class(char32_t code, uint64_t UnicodeBlock::*mask) {
  if (code >= kUnicodeEnd) return false;
  return (kUnicodeBlocks[kUnicodeIndex[code >> 6]].*mask >> (code & 63)) & 1;
}
inline bool is_letter(char32_t code) {
  return in_class(code, &UnicodeBlock::letter);
}
inline bool is_number(char32_t code) {
  return in_class(code, &UnicodeBlock::number);
}
inline bool is_space(char32_t code) {
  return in_class(code, &UnicodeBlock::space);
}
inline bool is_digit(char32_t code) {
  return in_class(code, &UnicodeBlock::digit);
}

}  // namespace ringmaster::tokenizer_worker
