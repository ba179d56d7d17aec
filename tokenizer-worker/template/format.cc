#include "tokenizer-worker/template/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/print.h"
#include "tokenizer-worker/template/text.h"
#include "tokenizer-worker/template/unicode.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

// Widths and precisions that only a hostile template writes.
constexpr int kMaxWidth = 10'000;

struct Spec {
  std::string fill = " ";
  char align = '\0';  // '<' '>' '^' '='
  char sign = '-';
  bool alternate = false;
  bool grouping = false;
  int width = 0;
  int precision = -1;
  char type = '\0';
};

// Digits at `at`; false beyond kMaxWidth.
bool read_number(std::string_view text, size_t& at, int& number) {
  number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at)
    if ((number = number * 10 + (text[at] - '0')) > kMaxWidth) return false;
  return true;
}

std::string float_digits(double value, char type, int precision, bool alternate) {
  if (std::isnan(value)) return type < 'a' ? "NAN" : "nan";
  if (std::isinf(value)) return type < 'a' ? "INF" : "inf";
  const std::string form = std::string("%") + (alternate ? "#" : "") + ".*" + type;
  const char* pattern = form.c_str();
  const int size = std::snprintf(nullptr, 0, pattern, precision, value);
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), pattern, precision, value);
  text.pop_back();
  return text;
}

// Of the magnitude.
std::string int_digits(Int value, char type) {
  if (type == 'd' || type == '\0') return int_text(value).substr(value < 0 ? 1 : 0);
  // The smallest Int has no positive counterpart.
  unsigned __int128 magnitude =
      value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  const unsigned base = type == 'o' ? 8 : type == 'b' ? 2 : 16;
  const std::string_view symbols = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  do {
    digits.push_back(symbols[static_cast<size_t>(magnitude % base)]);
    magnitude /= base;
  } while (magnitude != 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

void group_thousands(std::string& digits) {
  size_t end = 0;
  while (end < digits.size() && digits[end] >= '0' && digits[end] <= '9') ++end;
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, ",");
}

// Sign, zeros or blanks, digits.
std::string pad_number(bool is_negative, const std::string& prefix, const std::string& digits,
                       const Spec& spec) {
  const std::string sign = is_negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  const size_t size = sign.size() + prefix.size() + digits.size();
  const size_t pad = static_cast<size_t>(spec.width) > size ? static_cast<size_t>(spec.width) - size : 0;
  std::string padding, rest;
  const size_t left = spec.align == '<' ? 0 : spec.align == '^' ? pad / 2 : pad;
  for (size_t i = 0; i < pad; ++i) (i < left ? padding : rest) += spec.fill;
  if (spec.align == '=') return sign + prefix + padding + digits;
  return padding + sign + prefix + digits + rest;
}

bool is_float_type(char type) {
  return std::string_view("eEfFgG%").find(type) != std::string_view::npos;
}

std::string format_int(Int value, const Spec& spec) {
  std::string digits = int_digits(value, spec.type);
  if (spec.grouping) group_thousands(digits);
  const std::string prefix =
      !spec.alternate || spec.type == 'd' || spec.type == '\0' ? "" : std::string("0") + spec.type;
  return pad_number(value < 0, prefix, digits, spec);
}

std::string format_float(double value, const Spec& spec) {
  const bool is_negative = std::signbit(value) && !std::isnan(value);
  const double magnitude = std::fabs(value);
  std::string digits;
  if (spec.type == '%') {
    digits =
        float_digits(magnitude * 100, 'f', spec.precision < 0 ? 6 : spec.precision, spec.alternate) + "%";
  } else if (spec.type == '\0' && spec.precision < 0) {
    digits = float_text(magnitude);
  } else {
    digits = float_digits(magnitude, spec.type == '\0' ? 'g' : spec.type,
                          spec.precision < 0 ? 6 : spec.precision, spec.alternate);
    if (spec.type == '\0' && digits.find_first_not_of("0123456789") == std::string::npos) digits += ".0";
  }
  if (spec.grouping) group_thousands(digits);
  return pad_number(is_negative, "", digits, spec);
}

// A string cut to the precision and padded to the width.
void append_padded(Sandbox& box, TextBuilder& out, const Value& string, const Spec& spec) {
  const size_t end =
      spec.precision >= 0 ? byte_offset(string.str(), static_cast<size_t>(spec.precision)) : string.size;
  const size_t size = count_code_points(string.str().substr(0, end));
  const size_t pad = static_cast<size_t>(spec.width) > size ? static_cast<size_t>(spec.width) - size : 0;
  const size_t left = spec.align == '>' ? pad : spec.align == '^' ? pad / 2 : 0;
  box.step_bytes(string.size + pad);
  for (size_t i = 0; i < left; ++i) out.append(spec.fill, true);
  out.append_slice(string, 0, end);
  for (size_t i = left; i < pad; ++i) out.append(spec.fill, true);
}

class PercentFormatter {
 public:
  PercentFormatter(Sandbox& box, const Value& format, const Value& values)
      : box_(box), format_(format), values_(values) {
    if (values.is(Kind::kTuple))
      items_ = values.list();
    else
      items_ = {&values_, 1};
  }

  Value run() {
    const std::string_view text = format_.str();
    if (!box_.step_bytes(text.size())) return {};
    for (size_t at = 0; at < text.size() && !box_.failed();) {
      const size_t percent = std::min(text.find('%', at), text.size());
      out_.append_slice(format_, at, percent);
      at = percent + 1;
      if (percent < text.size()) conversion(text, at);
      if (out_.size() > kMaxTextBytes) box_.room_for_text(out_.size());
    }
    if (!box_.failed() && used_ < items_.size() && !named_ && !has_items(values_))
      box_.fail("not all arguments converted during string formatting");
    return box_.failed() ? Value{} : out_.finish(box_);
  }

 private:
  // What Python takes for a mapping, though it be none: nobody asks whether all of it was used.
  static bool has_items(const Value& value) {
    return value.is(Kind::kDict) || value.is(Kind::kList) || value.is(Kind::kRange) || value.is_undefined();
  }

  Value next() {
    if (used_ < items_.size()) return items_[used_++];
    return box_.fail("not enough arguments for format string");
  }

  bool number(std::string_view text, size_t& at, int& out) {
    if (at < text.size() && text[at] == '*') {
      ++at;
      const Value value = next();
      if (!value.is_int() || to_int(value) < -kMaxWidth || to_int(value) > kMaxWidth)
        return box_.fail("* wants int"), false;
      out = static_cast<int>(to_int(value));
      return true;
    }
    if (!read_number(text, at, out)) box_.fail("width too big");
    return !box_.failed();
  }

  void conversion(std::string_view text, size_t& at) {
    Spec spec;
    spec.align = '>';
    Value value = kMissingValue;
    if (at < text.size() && text[at] == '(') {
      const size_t close = text.find(')', at);
      if (close == std::string_view::npos || !values_.is(Kind::kDict)) {
        box_.fail("format requires a mapping");
        return;
      }
      const std::string_view name = text.substr(at + 1, close - at - 1);
      const Value* found = values_.dict->find(name);
      if (found == nullptr) {
        box_.fail("KeyError: '" + std::string(name) + "'");
        return;
      }
      value = *found;
      named_ = true;
      at = close + 1;
    }
    bool zero = false, left = false;
    for (; at < text.size(); ++at) {
      if (text[at] == '-')
        left = true;
      else if (text[at] == '0')
        zero = true;
      else if (text[at] == '#')
        spec.alternate = true;
      else if (text[at] == '+' || (text[at] == ' ' && spec.sign != '+'))
        spec.sign = text[at];
      else
        break;
    }
    if (!number(text, at, spec.width)) return;
    if (spec.width < 0) left = true, spec.width = -spec.width;
    if (at < text.size() && text[at] == '.')
      if (!number(text, ++at, spec.precision)) return;
    while (at < text.size() && (text[at] == 'l' || text[at] == 'h' || text[at] == 'L')) ++at;
    if (at >= text.size()) {
      box_.fail("incomplete format");
      return;
    }
    spec.type = text[at++];
    if (spec.type == '%') {
      out_.append("%", true);
      return;
    }
    if (left)
      spec.align = '<';
    else if (zero)
      spec.align = '=', spec.fill = "0";
    if (value.missing()) value = next();
    if (!box_.failed()) convert(value, spec);
  }

  void convert(const Value& value, Spec spec) {
    const bool origin = value.has(Value::kTemplate);
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a':
        if (spec.align == '=') spec.align = '>', spec.fill = " ";
        if (const Value string = spec.type == 's' ? to_string(box_, value) : to_repr(box_, value);
            !box_.failed())
          append_padded(box_, out_, string, spec);
        return;
      case 'c':
        if (spec.align == '=') spec.align = '>', spec.fill = " ";
        return character(value, spec);
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return integer(value, spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (!value.is_number()) {
          box_.fail("must be real number, not " + std::string(type_name(value)));
          return;
        }
        out_.append(format_float(to_double(value), spec), origin);
        return;
      default:
        box_.fail("unsupported format character '" + std::string(1, spec.type) + "'");
    }
  }

  void integer(const Value& value, Spec spec) {
    const bool hexadecimal = spec.type == 'o' || spec.type == 'x' || spec.type == 'X';
    if (!value.is_int() && (hexadecimal || !value.is(Kind::kFloat) || !(std::fabs(value.real) < 1e37))) {
      box_.fail("%" + std::string(1, spec.type) +
                " format: " + (hexadecimal ? "an integer" : "a real number") + " is required, not " +
                std::string(type_name(value)));
      return;
    }
    const Int number = value.is_int() ? to_int(value) : static_cast<Int>(value.real);
    if (!hexadecimal) spec.type = 'd';
    std::string digits = int_digits(number, spec.type);
    if (spec.precision > static_cast<int>(digits.size()))
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    const std::string prefix = spec.alternate && hexadecimal ? std::string("0") + spec.type : "";
    out_.append(pad_number(number < 0, prefix, digits, spec), value.has(Value::kTemplate));
  }

  void character(const Value& value, const Spec& spec) {
    if (value.is_string() && count_code_points(value.str()) == 1)
      return append_padded(box_, out_, value, spec);
    if (!value.is_int() || to_int(value) < 0 || to_int(value) > 0x10FFFF ||
        (to_int(value) >= 0xD800 && to_int(value) < 0xE000)) {
      box_.fail("%c requires int or char");
      return;
    }
    std::string text;
    append_code_point(text, static_cast<char32_t>(to_int(value)));
    append_padded(box_, out_, box_.make_string(text, 0), spec);
  }

  Sandbox& box_;
  const Value format_, values_;
  std::span<const Value> items_;
  size_t used_ = 0;
  bool named_ = false;
  TextBuilder out_;
};

class BraceFormatter {
 public:
  BraceFormatter(Sandbox& box, const Value& format, const Arguments& arguments)
      : box_(box), format_(format), arguments_(arguments) {}

  Value run() {
    const std::string_view text = format_.str();
    if (!box_.step_bytes(text.size())) return {};
    for (size_t at = 0; at < text.size() && !box_.failed();) {
      const size_t brace = std::min(text.find_first_of("{}", at), text.size());
      out_.append_slice(format_, at, brace);
      if (brace == text.size()) break;
      if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
        out_.append_slice(format_, brace, brace + 1);
        at = brace + 2;
      } else if (text[brace] == '}') {
        box_.fail("Single '}' encountered in format string");
      } else {
        at = field(text, brace + 1);
      }
      if (out_.size() > kMaxTextBytes) box_.room_for_text(out_.size());
    }
    return box_.failed() ? Value{} : out_.finish(box_);
  }

 private:
  // A replacement field from behind its brace; returns where it ends.
  size_t field(std::string_view text, size_t begin) {
    size_t end = begin;
    for (int open = 1; end < text.size(); ++end) {
      if (text[end] == '{') ++open;
      if (text[end] == '}' && --open == 0) break;
    }
    if (end >= text.size()) return box_.fail("expected '}' before end of string"), end;
    const std::string_view inside = text.substr(begin, end - begin);
    const size_t name_end = std::min(inside.find_first_of("!:"), inside.size());
    Value value = lookup(inside.substr(0, name_end));
    size_t at = name_end;
    if (at < inside.size() && inside[at] == '!' && !box_.failed()) {
      const char conversion = at + 1 < inside.size() ? inside[at + 1] : '\0';
      if (conversion != 's' && conversion != 'r')
        return box_.fail("conversion !" + std::string(1, conversion) + " is not supported"), end;
      value = conversion == 's' ? to_string(box_, value) : to_repr(box_, value);
      at += 2;
      if (at < inside.size() && inside[at] != ':')
        return box_.fail("expected ':' after conversion specifier"), end;
    }
    const std::string_view spec = at < inside.size() ? inside.substr(at + 1) : std::string_view();
    if (spec.find('{') != std::string_view::npos)
      return box_.fail("nested fields of str.format are not supported"), end;
    if (!box_.failed()) append(value, spec);
    return end + 1;
  }

  Value argument(std::string_view name) {
    const bool digits = name.find_first_not_of("0123456789") == std::string_view::npos;
    if (digits) {
      size_t index = automatic_;
      if (used_ && numbered_ == name.empty())
        return box_.fail("cannot switch between manual field specification and automatic field numbering");
      used_ = true;
      numbered_ = !name.empty();
      if (name.empty())
        ++automatic_;
      else
        std::from_chars(name.data(), name.data() + std::min<size_t>(name.size(), 9), index);
      if (index >= arguments_.positional.size())
        return box_.fail("Replacement index " + std::to_string(index) +
                         " out of range for positional args tuple");
      return arguments_.positional[index];
    }
    for (const Named& named : arguments_.named)
      if (named.name == name) return named.value;
    return box_.fail("KeyError: '" + std::string(name) + "'");
  }

  Value lookup(std::string_view path) {
    size_t at = std::min(path.find_first_of(".["), path.size());
    Value value = argument(path.substr(0, at));
    while (at < path.size() && !box_.failed()) {
      const bool subscript = path[at] == '[';
      const size_t begin = at + 1;
      const size_t end =
          std::min(subscript ? path.find(']', begin) : path.find_first_of(".[", begin), path.size());
      const std::string_view name = path.substr(begin, end - begin);
      Int index = 0;
      bool is_index =
          subscript && !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
      for (const char c : name.substr(0, is_index ? 18 : 0)) index = index * 10 + (c - '0');
      const Value key = is_index ? int_value(static_cast<int64_t>(index)) : string_value(name, 0);
      value = subscript ? get_item(box_, value, key) : get_attribute(box_, value, key);
      at = subscript ? end + 1 : end;
    }
    return value;
  }

  bool parse(std::string_view text, Spec& spec) {
    size_t at = 0;
    const auto is_align = [&](size_t i) {
      return i < text.size() && std::string_view("<>=^").find(text[i]) != std::string_view::npos;
    };
    size_t second = 0;
    if (!text.empty()) next_code_point(text, second);
    if (!text.empty() && is_align(second)) {
      spec.fill = text.substr(0, second);
      spec.align = text[second];
      at = second + 1;
    } else if (is_align(0)) {
      spec.align = text[at++];
    }
    if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
    if (at < text.size() && text[at] == '#') spec.alternate = true, ++at;
    if (at < text.size() && text[at] == '0') {
      if (second == 0 || !is_align(second)) spec.fill = "0";
      if (spec.align == '\0') spec.align = '=';
      ++at;
    }
    if (!read_number(text, at, spec.width)) return false;
    if (at < text.size() && text[at] == ',') spec.grouping = true, ++at;
    if (at < text.size() && text[at] == '.') {
      const size_t digits = ++at;
      if (!read_number(text, at, spec.precision) || at == digits) return false;
    }
    if (at < text.size()) spec.type = text[at++];
    return at == text.size();
  }

  void append(const Value& value, std::string_view text) {
    Spec spec;
    if (value.is_undefined()) {
      if (!text.empty()) box_.fail(undefined_message(value));
      return;
    }
    if (!parse(text, spec)) {
      box_.fail("Invalid format specifier '" + std::string(text) + "'");
      return;
    }
    const bool integer_type =
        spec.type == '\0' || std::string_view("dxXob").find(spec.type) != std::string_view::npos;
    const bool number = value.is_number() && !(value.is(Kind::kBool) && text.empty());
    if (number && spec.align == '\0') spec.align = '>';
    if (number && value.is_int() && integer_type && spec.precision < 0) {
      out_.append(format_int(to_int(value), spec), value.has(Value::kTemplate));
    } else if (number && (is_float_type(spec.type) || (spec.type == '\0' && value.is(Kind::kFloat)))) {
      out_.append(format_float(to_double(value), spec), value.has(Value::kTemplate));
    } else if (!value.is_number() || text.empty()) {
      const bool wrong = (spec.type != '\0' && spec.type != 's') || (!value.is_string() && !text.empty()) ||
                         spec.align == '=';
      if (wrong) {
        box_.fail("unsupported format string '" + std::string(text) + "' for a " +
                  std::string(type_name(value)));
        return;
      }
      if (const Value string = to_string(box_, value); !box_.failed())
        append_padded(box_, out_, string, spec);
    } else {
      box_.fail("Unknown format code '" + std::string(1, spec.type) + "' for object of type '" +
                std::string(type_name(value)) + "'");
    }
  }

  Sandbox& box_;
  const Value format_;
  const Arguments& arguments_;
  size_t automatic_ = 0;
  bool used_ = false, numbered_ = false;  // a positional field was, and spelled its number
  TextBuilder out_;
};

}  // namespace

Value format_percent(Sandbox& box, const Value& format, const Value& values) {
  return PercentFormatter(box, format, values).run();
}

Value format_braces(Sandbox& box, const Value& format, const Arguments& arguments) {
  return BraceFormatter(box, format, arguments).run();
}

}  // namespace ringmaster::tokenizer_worker::jinja
