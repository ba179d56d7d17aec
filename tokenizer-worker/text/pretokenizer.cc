#include "tokenizer-worker/text/pretokenizer.h"

#include <array>
#include <cstdint>

#include "tokenizer-worker/text/unicode_tables.h"
#include "tokenizer-worker/text/utf8.h"

namespace ringmaster::tokenizer_worker {
namespace {

// 's|'t|'re|'ve|'m|'ll|'d : bytes of the contraction that `text` (at an apostrophe) begins with, 0 for none.
size_t contraction(std::string_view text) {
  if (text.size() < 2) return 0;
  switch (text[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return text.size() > 2 && text[2] == 'e' ? 3 : 0;
    case 'l':
      return text.size() > 2 && text[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

}  // namespace

// One line a scheme. gpt-2:  's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// smollm: digits one by one, then that pattern on each stretch between them.
constexpr PreTokenizer PreTokenizer::kSchemes[] = {
    {"gpt-2", false},
    {"smollm", true},
};

const PreTokenizer* PreTokenizer::named(std::string_view name) {
  for (const PreTokenizer& scheme : kSchemes) {
    if (scheme.name_ == name) return &scheme;
  }
  return nullptr;
}

std::string PreTokenizer::known_names() {
  std::string names;
  for (const PreTokenizer& scheme : kSchemes) {
    names.append(names.empty() ? "" : ", ").append(scheme.name_);
  }
  return names;
}

inline PreTokenizer::Step PreTokenizer::step(std::string_view text, size_t at) const {
  using enum Class;
  static constexpr auto kAscii = [] {
    std::array<Class, 128> classes{};  // all kOther
    for (int c = 'A'; c <= 'Z'; ++c) classes[c] = classes[c + 32] = kLetter;
    for (int c = '0'; c <= '9'; ++c) classes[c] = kNumber;
    for (int c = '\t'; c <= '\r'; ++c) classes[c] = kSpace;
    classes[' '] = kSpace;
    return classes;
  }();
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) return {kAscii[byte], 1};

  const Utf8Char next = first_char(text.substr(at));
  if (next.kind != Utf8Char::kWhole) return {kOther, next.size};
  if (is_letter(next.code)) return {kLetter, next.size};
  if (is_space(next.code)) return {kSpace, next.size};
  if (digits_alone_ ? is_digit(next.code) : is_number(next.code)) return {kNumber, next.size};
  return {kOther, next.size};
}

inline size_t PreTokenizer::run_end(std::string_view text, size_t at, Class cls) const {
  while (at < text.size()) {
    const Step next = step(text, at);
    if (next.cls != cls) break;
    at += next.size;
  }
  return at;
}

// \s+(?!\S)|\s+ : a run of blanks without its last character, which may belong to the next piece; the whole
// run at the end of a stretch; a single one as it is.
size_t PreTokenizer::space_piece(std::string_view text) const {
  size_t at = 0;
  size_t last = 0;  // where the run's last character begins
  while (at < text.size()) {
    const Step next = step(text, at);
    if (next.cls == Class::kSpace) {
      last = at;
      at += next.size;
      continue;
    }
    const bool stretch_ends = digits_alone_ && next.cls == Class::kNumber;
    return stretch_ends || last == 0 ? at : last;
  }
  return at;
}

size_t PreTokenizer::next(std::string_view text) const {
  if (text[0] == '\'') {
    if (const size_t size = contraction(text)) return size;
  }
  const size_t blank = text[0] == ' ' ? 1 : 0;  // the pattern's " ?"
  if (blank == text.size()) return blank;
  const Step first = step(text, blank);
  switch (first.cls) {
    case Class::kSpace:
      return space_piece(text);
    case Class::kNumber:
      if (digits_alone_) return blank ? blank : first.size;
      break;
    case Class::kLetter:
    case Class::kOther:
      break;
  }
  return run_end(text, blank + first.size, first.cls);
}

}  // namespace ringmaster::tokenizer_worker
