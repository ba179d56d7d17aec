// Filters about numbers.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/literals.h"
#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/print.h"
#include "tokenizer-worker/template/text.h"
#include "tokenizer-worker/template/unicode.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

constexpr const char* kTooWide = "an integer has more than 127 bits, which this evaluator cannot hold";

// As Python's float() reads it.
bool parse_float(std::string_view text, double& value) {
  text = strip_space(text, true, true);
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (text[i] == '_' && i > 0 && digit(i - 1) && digit(i + 1)) continue;
    clean.push_back(text[i]);
  }
  bool minus = false;
  if (!clean.empty() && (clean[0] == '+' || clean[0] == '-')) {
    minus = clean[0] == '-';
    clean.erase(0, 1);
  }
  const std::string name = lower(clean);
  if (name == "inf" || name == "infinity" || name == "nan") {
    value =
        name == "nan" ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else {
    if (clean.empty() || !((clean[0] >= '0' && clean[0] <= '9') || clean[0] == '.')) return false;
    const auto result = std::from_chars(clean.data(), clean.data() + clean.size(), value);
    if (result.ptr != clean.data() + clean.size()) return false;
    if (result.ec == std::errc::result_out_of_range) {
      const size_t e = clean.find_first_of("eE");
      value = e != std::string::npos && e + 1 < clean.size() && clean[e + 1] == '-'
                  ? 0.0
                  : std::numeric_limits<double>::infinity();
    } else if (result.ec != std::errc()) {
      return false;
    }
  }
  if (minus) value = -value;
  return true;
}

// As Python's int() reads it.
bool parse_int(std::string_view text, int base, Int& value) {
  text = strip_space(text, true, true);
  bool minus = false;
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
    minus = text[0] == '-';
    text.remove_prefix(1);
  }
  if (text.size() > 2 && text[0] == '0') {
    const char kind = static_cast<char>(text[1] | 0x20);
    const int prefix = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (prefix != 0 && (base == prefix || base == 0)) {
      base = prefix;
      text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
  }
  if (!parse_digits(text, base == 0 ? 10 : base, value)) return false;
  if (minus) value = -value;
  return true;
}

// What is no number of any size gives the fallback; what only this evaluator cannot hold is an error.
Value int_of_float(Sandbox& box, double real, const Value& fallback, uint8_t flags) {
  if (!std::isfinite(real)) return fallback;
  if (!(std::fabs(real) < 1.7e38)) return box.fail(kTooWide);
  return make_int(box, static_cast<Int>(real), flags);
}

// To the nearest multiple of 10^digits, halves to the even one.
Value round_int(Sandbox& box, const Value& number, int64_t digits) {
  if (digits > 37) return int_value(0, number.flags);
  Int scale = 1;
  for (int64_t i = 0; i < digits; ++i) scale *= 10;
  const Int value = to_int(number), rest = value % scale < 0 ? value % scale + scale : value % scale;
  Int below = 0;
  if (__builtin_sub_overflow(value, rest, &below)) return box.fail(kTooWide);
  const bool up = rest > scale - rest || (rest == scale - rest && (below / scale) % 2 != 0);
  Int rounded = below;
  if (up && __builtin_add_overflow(below, scale, &rounded)) return box.fail(kTooWide);
  return make_int(box, rounded, number.flags);
}

Value abs_filter(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  if (self.is_undefined()) return box.fail(undefined_message(self));
  if (!self.is_number())
    return box.fail("bad operand type for abs(): '" + std::string(type_name(self)) + "'");
  if (self.is(Kind::kFloat)) return float_value(std::fabs(self.real), self.flags);
  return to_int(self) < 0 ? negative(box, self) : positive(box, self);
}

Value int_filter(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const Value fallback = slots[0].missing() ? int_value(0) : slots[0];
  int64_t base = 10;
  if (!int_argument(box, slots[1], 10, base)) return {};
  if (base != 0 && (base < 2 || base > 36)) return box.fail("int() base must be >= 2 and <= 36, or 0");
  Int value = 0;
  double real = 0;
  if (self.is_int()) return positive(box, self);
  if (self.is_undefined()) return box.fail(undefined_message(self));
  if (self.is(Kind::kFloat)) return int_of_float(box, self.real, fallback, self.flags);
  if (!self.is_string() || !box.step_bytes(self.size)) return fallback;
  if (parse_int(self.str(), static_cast<int>(base), value)) return make_int(box, value, self.flags);
  return parse_float(self.str(), real) ? int_of_float(box, real, fallback, self.flags) : fallback;
}

Value float_filter(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const Value fallback = slots[0].missing() ? float_value(0) : slots[0];
  if (self.is_undefined()) return box.fail(undefined_message(self));
  if (self.is_number()) return float_value(to_double(self), self.flags);
  double real = 0;
  if (!self.is_string() || !box.step_bytes(self.size) || !parse_float(self.str(), real)) return fallback;
  return float_value(real, self.flags & Value::kTemplate);
}

Value round_filter(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t digits = 0;
  if (!int_argument(box, slots[0], 0, digits)) return {};
  const std::string_view method = slots[1].missing() ? "common" : slots[1].is_string() ? slots[1].str() : "";
  if (method != "common" && method != "ceil" && method != "floor")
    return box.fail("method must be common, ceil or floor");
  if (self.is_undefined()) return box.fail(undefined_message(self));
  if (!self.is_number())
    return box.fail("type " + std::string(type_name(self)) + " doesn't define __round__ method");
  const double value = to_double(self);
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(digits));
    return float_value((method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale)) / scale,
                       self.flags);
  }
  if (self.is_int() && digits >= 0) return positive(box, self);
  if (self.is_int()) return round_int(box, self, -digits);
  if (!std::isfinite(value) || digits > 320) return self;
  if (digits < 0) {
    if (digits < -308) return float_value(0, self.flags);
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    return float_value(std::nearbyint(value / scale) * scale, self.flags);
  }
  // The decimal text of a double is rounded half to even on its exact value, as Python's round is.
  char text[700];
  const int size = std::snprintf(text, sizeof text, "%.*f", static_cast<int>(digits), value);
  double rounded = value;
  std::from_chars(text, text + size, rounded);
  return float_value(rounded, self.flags);
}

Value filesizeformat(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const bool binary_units = !slots[0].missing() && truthy(slots[0]);
  double bytes = 0;
  if (self.is_number())
    bytes = to_double(self);
  else if (!self.is_string() || !parse_float(self.str(), bytes))
    return box.fail("filesizeformat of a value that is no number: " + short_repr(self));
  const double base = binary_units ? 1024 : 1000;
  if (bytes == 1) return string_value("1 Byte", Value::kTemplate);
  if (bytes < base)
    return derived(box, int_text(static_cast<Int>(bytes < -1e37 ? 0 : bytes)) + " Bytes", {self});
  static constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
  double unit = base * base;
  size_t i = 0;
  while (bytes >= unit && i + 1 < std::size(kUnits)) unit *= base, ++i;
  std::string suffix = kUnits[i];
  if (binary_units) suffix = std::string(1, i == 0 ? 'K' : suffix[0]) + "iB";
  char text[400];
  std::snprintf(text, sizeof text, "%.1f %s", base * bytes / unit, suffix.c_str());
  return derived(box, text, {self});
}

constexpr Builtin kFilters[] = {
    {"abs", abs_filter, 0, {}},
    {"filesizeformat", filesizeformat, 0, {"binary"}},
    {"float", float_filter, 0, {"default"}},
    {"int", int_filter, 0, {"default", "base"}},
    {"round", round_filter, 0, {"precision", "method"}},
};

}  // namespace

std::span<const Builtin> number_filters() {
  return kFilters;
}

}  // namespace ringmaster::tokenizer_worker::jinja
