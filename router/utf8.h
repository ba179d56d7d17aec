// Whether bytes from outside are UTF-8 (Unicode 15, table 3-7: no overlong forms, no surrogates, nothing
// above U+10FFFF). Pure, any thread; runs over eight ASCII bytes at a time because it reads every prompt on
// the router's only thread. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace ringmaster::router {

// Bytes of `text` before the first that is not part of a valid sequence; text.size() when all are.
size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) {
  return valid_utf8_prefix(text) == text.size();
}

}  // namespace ringmaster::router
