// Whether bytes from outside are UTF-8 (Unicode 15, table 3-7: no overlong forms, no surrogates, nothing
// above U+10FFFF). Pure; any thread. Runs over eight ASCII bytes at a time, because it reads every prompt on
// the router's only thread: 8 MiB of English take 0.3 ms, of Chinese 6 ms, of emoji 8 ms. Not for streams
// that may be cut inside a character: tokenizer-worker/text/utf8.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ringmaster {

// Bytes of `text` before the first that is not part of a valid sequence; text.size() when all are.
size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) {
  return valid_utf8_prefix(text) == text.size();
}

// kInvalidUtf8 naming `what` and the offset.
Status check_utf8(const std::string& what, std::string_view text);

}  // namespace ringmaster
