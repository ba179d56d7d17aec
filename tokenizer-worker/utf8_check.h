// Whether bytes from outside are UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF), and
// where text may be cut. Pure; any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ringmaster::tokenizer_worker {

// Offset of the first byte that does not belong to a valid character; nothing when all are valid.
std::optional<size_t> find_invalid_utf8(std::string_view text);

// kInvalidUtf8 naming `what` and the offset.
Status check_utf8(std::string_view text, const std::string& what);

// Whether `text` may be cut before byte `offset`: at its end or at the first byte of a character.
inline bool is_character_border(std::string_view text, size_t offset) {
  if (offset >= text.size()) return offset == text.size();
  return (static_cast<unsigned char>(text[offset]) & 0xC0) != 0x80;
}

}  // namespace ringmaster::tokenizer_worker
