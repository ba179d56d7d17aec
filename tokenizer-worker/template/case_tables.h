// Case mappings to several characters and character classes that utf8proc does not know. Generated,
// constant.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

namespace ringmaster::tokenizer_worker::jinja {

struct CaseMapping {
  char32_t from;
  char32_t to[3];  // zeros at the end are no characters
};
struct CodeRange {
  char32_t first, last;
};

// Sorted by `from` and by `first`.
std::span<const CaseMapping> upper_specials();
std::span<const CaseMapping> title_specials();
std::span<const CaseMapping> fold_specials();
std::span<const CodeRange> digits_beyond_decimal();
std::span<const CodeRange> numeric_letters();
std::span<const CodeRange> other_upper();
std::span<const CodeRange> other_lower();

}  // namespace ringmaster::tokenizer_worker::jinja
