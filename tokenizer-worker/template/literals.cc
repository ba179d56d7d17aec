#include "tokenizer-worker/template/literals.h"

#include <charconv>
#include <limits>

#include "tokenizer-worker/template/text.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

// Length of a run of digits of `base` with single underscores between them.
size_t digits_size(std::string_view text, int base, bool leading_underscore = false) {
  size_t at = 0;
  for (;;) {
    size_t next = at;
    if ((at > 0 || leading_underscore) && next < text.size() && text[next] == '_') ++next;
    if (next >= text.size() || digit_value(text[next]) >= base) return at;
    at = next + 1;
  }
}

size_t exponent_size(std::string_view text) {
  if (text.empty() || (text[0] != 'e' && text[0] != 'E')) return 0;
  const size_t sign = text.size() > 1 && (text[1] == '+' || text[1] == '-') ? 1 : 0;
  const size_t digits = digits_size(text.substr(1 + sign), 10);
  return digits == 0 ? 0 : 1 + sign + digits;
}

double parse_double(std::string_view text) {
  std::string clean;
  for (const char c : text)
    if (c != '_') clean.push_back(c);
  double value = 0;
  const auto result = std::from_chars(clean.data(), clean.data() + clean.size(), value);
  if (result.ec == std::errc::result_out_of_range) {
    const size_t e = clean.find_first_of("eE");
    return e != std::string::npos && clean[e + 1] == '-' ? 0.0 : std::numeric_limits<double>::infinity();
  }
  return value;
}

}  // namespace

bool parse_digits(std::string_view digits, int base, Int& value) {
  if (digits.empty()) return false;
  value = 0;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (digits[i] == '_') {
      if (i == 0 || i + 1 == digits.size() || digits[i - 1] == '_') return false;
      continue;
    }
    const int digit = digit_value(digits[i]);
    if (digit >= base || __builtin_mul_overflow(value, Int{base}, &value) ||
        __builtin_add_overflow(value, Int{digit}, &value))
      return false;
  }
  return true;
}

NumberLiteral number_literal(std::string_view source, bool after_dot) {
  NumberLiteral literal;
  const size_t whole = digits_size(source, 10);
  size_t fraction = 0;
  if (whole < source.size() && source[whole] == '.') {
    fraction = digits_size(source.substr(whole + 1), 10);
    if (fraction > 0) ++fraction;
  }
  const size_t exponent = exponent_size(source.substr(whole + fraction));
  if (!after_dot && (fraction > 0 || exponent > 0)) {
    literal.size = whole + fraction + exponent;
    literal.is_float = true;
    literal.real = parse_double(source.substr(0, literal.size));
    return literal;
  }
  int base = 10;
  size_t prefix = 0;
  if (source.size() > 2 && source[0] == '0') {
    const char kind = static_cast<char>(source[1] | 0x20);
    const int other = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (other != 0 && digits_size(source.substr(2), other, true) > 0) base = other, prefix = 2;
  }
  if (prefix > 0) {
    literal.size = prefix + digits_size(source.substr(prefix), base, true);
    if (source[prefix] == '_') ++prefix;
  } else {
    literal.size = source[0] == '0' ? digits_size(source, 1) : whole;
  }
  if (!parse_digits(source.substr(prefix, literal.size - prefix), base, literal.integer))
    literal.error = "integer " + std::string(source.substr(0, std::min<size_t>(literal.size, 60))) +
                    " has more than 127 bits, which this evaluator cannot hold";
  return literal;
}

namespace {

// The escape behind the backslash at `at`; moves `at` behind it.
std::string escape(std::string_view quoted, size_t& at, std::string& text) {
  static constexpr std::string_view kFrom = "\\'\"abfnrtv";
  static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
  const char c = quoted[at++];
  if (c == '\n') return {};
  if (const size_t i = kFrom.find(c); i != std::string_view::npos)
    return text.push_back(kTo[i]), std::string();
  if (c >= '0' && c <= '7') {
    char32_t code = static_cast<char32_t>(c - '0');
    for (int i = 0; i < 2 && at < quoted.size() && quoted[at] >= '0' && quoted[at] <= '7'; ++i)
      code = code * 8 + static_cast<char32_t>(quoted[at++] - '0');
    return append_code_point(text, code), std::string();
  }
  const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (c == 'N') return "escape \\N{...} in a string is not supported; write the character itself";
  if (digits == 0) {
    text.push_back('\\');
    text.push_back(c);
    return {};
  }
  Int code = 0;
  if (at + digits > quoted.size() || quoted.substr(at, digits).find('_') != std::string_view::npos ||
      !parse_digits(quoted.substr(at, digits), 16, code))
    return "a string has an incomplete escape \\" + std::string(1, c);
  at += digits;
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
    return "a string has an escape that is no character";
  append_code_point(text, static_cast<char32_t>(code));
  return {};
}

}  // namespace

std::string unescape(std::string_view quoted, std::string& text) {
  for (size_t at = 0; at < quoted.size();) {
    if (quoted[at] != '\\' || at + 1 == quoted.size()) {
      text.push_back(quoted[at++]);
      continue;
    }
    if (std::string why = escape(quoted, ++at, text); !why.empty()) return why;
  }
  return {};
}

}  // namespace ringmaster::tokenizer_worker::jinja
