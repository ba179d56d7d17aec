// str.isalpha and its kin.
#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/text.h"
#include "tokenizer-worker/template/unicode.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

// Python's answer for the empty string is no, but for isascii and isprintable.
template <bool (*test)(char32_t), bool if_empty = false>
Value every(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  if (self.size == 0) return bool_value(if_empty);
  if (!box.step_bytes(4 * size_t{self.size})) return {};
  for (size_t at = 0; at < self.size;)
    if (!test(next_code_point(self.str(), at))) return bool_value(false);
  return bool_value(true);
}

template <bool (*test)(std::string_view)>
Value whole(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  return box.step_bytes(4 * size_t{self.size}) ? bool_value(test(self.str())) : Value{};
}

Value istitle(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  if (!box.step_bytes(4 * size_t{self.size})) return {};
  bool after_cased = false, any = false;
  for (size_t at = 0; at < self.size;) {
    const char32_t code = next_code_point(self.str(), at);
    const bool big = is_upper(code) || is_title(code);
    if ((big && after_cased) || (is_lower(code) && !after_cased)) return bool_value(false);
    after_cased = big || is_lower(code);
    any = any || after_cased;
  }
  return bool_value(any);
}

Value isidentifier(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  if (!box.step_bytes(4 * size_t{self.size})) return {};
  for (size_t at = 0; at < self.size;) {
    const bool first = at == 0;
    const char32_t code = next_code_point(self.str(), at);
    if (!is_word(code) || (first && is_numeric(code) && !is_letter(code))) return bool_value(false);
  }
  return bool_value(self.size > 0);
}

bool is_ascii(char32_t code) {
  return code < 0x80;
}
bool is_alphanumeric(char32_t code) {
  return is_letter(code) || is_numeric(code);
}

constexpr Builtin kTests[] = {
    {"isalnum", every<is_alphanumeric>, 0, {}},
    {"isalpha", every<is_letter>, 0, {}},
    {"isascii", every<is_ascii, true>, 0, {}},
    {"isdecimal", every<is_decimal>, 0, {}},
    {"isdigit", every<is_digit>, 0, {}},
    {"isidentifier", isidentifier, 0, {}},
    {"islower", whole<all_lower>, 0, {}},
    {"isnumeric", every<is_numeric>, 0, {}},
    {"isprintable", every<is_printable, true>, 0, {}},
    {"isspace", every<is_space>, 0, {}},
    {"istitle", istitle, 0, {}},
    {"isupper", whole<all_upper>, 0, {}},
};

}  // namespace

std::span<const Builtin> string_tests() {
  return kTests;
}

}  // namespace ringmaster::tokenizer_worker::jinja
