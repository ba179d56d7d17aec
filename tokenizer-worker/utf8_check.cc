#include "tokenizer-worker/utf8_check.h"

#include <cstdint>
#include <cstring>

#include "tokenizer-worker/text/utf8.h"

namespace ringmaster::tokenizer_worker {

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    // Eight ASCII bytes at a time: prompts are mostly that.
    uint64_t word;
    while (at + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080ull) != 0) break;
      at += sizeof(word);
    }
    if (at == text.size()) break;
    const Utf8Char next = first_char(text.substr(at));
    if (next.kind != Utf8Char::kWhole) return at;
    at += next.size;
  }
  return std::nullopt;
}

Status check_utf8(std::string_view text, const std::string& what) {
  if (const auto at = find_invalid_utf8(text))
    return Error{Code::kInvalidUtf8, what + " is not UTF-8 at byte " + std::to_string(*at)};
  return ok_status();
}

}  // namespace ringmaster::tokenizer_worker
