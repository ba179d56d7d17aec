#include <cmath>
#include <limits>

#include "tokenizer-worker/template/format.h"
#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/text.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

uint8_t both(const Value& a, const Value& b) {
  return a.flags & b.flags & Value::kTemplate;
}

Value unsupported(Sandbox& box, std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) return box.fail(undefined_message(a));
  if (b.is_undefined()) return box.fail(undefined_message(b));
  const std::string right(type_name(b));
  if (op == "+" && (a.is_string() || a.is_sequence()))
    return box.fail("can only concatenate " + std::string(type_name(a)) + " (not \"" + right + "\") to " +
                    std::string(type_name(a)));
  return box.fail("unsupported operand type(s) for " + std::string(op) + ": '" + std::string(type_name(a)) +
                  "' and '" + right + "'");
}

Value too_wide(Sandbox& box) {
  return box.fail("an integer has more than 127 bits, which this evaluator cannot hold");
}

Value repeat(Sandbox& box, const Value& sequence, const Value& times) {
  const Int wanted = to_int(times);
  if (times.is(Kind::kBig)) return box.fail("cannot fit 'int' into an index-sized integer");
  const size_t limit = sequence.is_string() ? kMaxTextBytes : kMaxRenderBytes / sizeof(Value);
  if (wanted > 0 && sequence.size > 0 && wanted > static_cast<Int>(limit / sequence.size))
    return box.fail("repeating makes more than " + std::to_string(limit) +
                    (sequence.is_string() ? " bytes" : " items"));
  const size_t count = wanted > 0 && sequence.size > 0 ? static_cast<size_t>(wanted) : 0;
  if (sequence.is_string()) {
    if (!box.room_for_text(count * sequence.size)) return {};
    TextBuilder text;
    for (size_t i = 0; i < count; ++i) text.append(sequence);
    return text.finish(box);
  }
  if (!box.room_for_items(count * sequence.size) || !box.step(count * sequence.size / 8 + 1)) return {};
  std::vector<Value> items;
  items.reserve(count * sequence.size);
  for (size_t i = 0; i < count; ++i)
    items.insert(items.end(), sequence.list().begin(), sequence.list().end());
  return box.make_list(items, sequence.kind, both(sequence, times));
}

Int floor_divide(Int a, Int b) {
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double float_modulo(double a, double b) {
  double modulo = std::fmod(a, b);
  if (modulo != 0) return (b < 0) != (modulo < 0) ? modulo + b : modulo;
  return std::copysign(0.0, b);
}

// CPython's float_floor_div.
double float_floor_divide(double a, double b) {
  const double modulo = std::fmod(a, b);
  double quotient = (a - modulo) / b;
  if (modulo != 0 && (b < 0) != (modulo < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Value integers(Sandbox& box, Op op, const Value& a, const Value& b) {
  const Int x = to_int(a), y = to_int(b);
  Int result = 0;
  bool wide = false;
  if (y == 0 && op == Op::kFloorDivide) return box.fail("integer division or modulo by zero");
  if (y == 0 && op == Op::kModulo) return box.fail("integer modulo by zero");
  if (y == 0 && op == Op::kDivide) return box.fail("division by zero");
  // The one quotient that does not fit; the machine traps on it.
  if (y == -1 && (op == Op::kFloorDivide || op == Op::kModulo)) {
    wide = op == Op::kFloorDivide && __builtin_sub_overflow(Int{0}, x, &result);
    return wide ? too_wide(box) : make_int(box, result, both(a, b));
  }
  switch (op) {
    case Op::kSubtract:
      wide = __builtin_sub_overflow(x, y, &result);
      break;
    case Op::kMultiply:
      wide = __builtin_mul_overflow(x, y, &result);
      break;
    case Op::kFloorDivide:
      result = floor_divide(x, y);
      break;
    case Op::kModulo:
      result = x % y;
      if (result != 0 && (result < 0) != (y < 0)) result += y;
      break;
    default:  // kDivide
      return float_value(static_cast<double>(static_cast<long double>(x) / static_cast<long double>(y)),
                         both(a, b));
  }
  return wide ? too_wide(box) : make_int(box, result, both(a, b));
}

Value floats(Sandbox& box, Op op, double x, double y, uint8_t flags) {
  if (op == Op::kSubtract) return float_value(x - y, flags);
  if (op == Op::kMultiply) return float_value(x * y, flags);
  if (y == 0) {
    if (op == Op::kDivide) return box.fail("float division by zero");
    return box.fail(op == Op::kModulo ? "float modulo" : "float floor division by zero");
  }
  if (op == Op::kDivide) return float_value(x / y, flags);
  return float_value(op == Op::kModulo ? float_modulo(x, y) : float_floor_divide(x, y), flags);
}

std::string_view symbol(Op op) {
  switch (op) {
    case Op::kSubtract:
      return "-";
    case Op::kMultiply:
      return "*";
    case Op::kDivide:
      return "/";
    case Op::kFloorDivide:
      return "//";
    case Op::kModulo:
      return "%";
    default:
      return "** or pow()";
  }
}

}  // namespace

Value make_int(Sandbox& box, Int value, uint8_t flags) {
  if (value == static_cast<int64_t>(value))
    return int_value(static_cast<int64_t>(value), flags & Value::kTemplate);
  Value big{Kind::kBig, static_cast<uint8_t>(flags & Value::kTemplate)};
  big.big = new (box.arena.allocate(sizeof(Int), alignof(Int))) Int(value);
  return big;
}

Value add(Sandbox& box, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    if (!(a.has(Value::kMarkup) || b.has(Value::kMarkup))) return concat(box, std::vector<Value>{a, b});
    Value sum = concat(box, std::vector<Value>{escape_html(box, a), escape_html(box, b)});
    sum.flags |= Value::kMarkup;
    return sum;
  }
  if (a.is_int() && b.is_int()) {
    Int result = 0;
    if (__builtin_add_overflow(to_int(a), to_int(b), &result)) return too_wide(box);
    return make_int(box, result, both(a, b));
  }
  if (a.is_number() && b.is_number()) return float_value(to_double(a) + to_double(b), both(a, b));
  if (a.is_sequence() && a.kind == b.kind) {
    if (!box.room_for_items(size_t{a.size} + b.size) || !box.step((size_t{a.size} + b.size) / 8 + 1))
      return {};
    std::vector<Value> items(a.list().begin(), a.list().end());
    items.insert(items.end(), b.list().begin(), b.list().end());
    return box.make_list(items, a.kind, both(a, b));
  }
  return unsupported(box, "+", a, b);
}

Value binary(Sandbox& box, Op op, const Value& a, const Value& b) {
  if (op == Op::kModulo && a.is_string()) return format_percent(box, a, b);
  if (op == Op::kMultiply) {
    if ((a.is_string() || a.is_sequence()) && b.is_int()) return repeat(box, a, b);
    if ((b.is_string() || b.is_sequence()) && a.is_int()) return repeat(box, b, a);
  }
  if (!a.is_number() || !b.is_number()) return unsupported(box, symbol(op), a, b);
  if (op == Op::kPower) return power(box, a, b);
  if (a.is_int() && b.is_int()) return integers(box, op, a, b);
  return floats(box, op, to_double(a), to_double(b), both(a, b));
}

Value power(Sandbox& box, const Value& a, const Value& b) {
  if (a.is_int() && b.is_int() && to_int(b) >= 0) {
    Int base = to_int(a), result = 1;
    Int exponent = to_int(b);
    if (base == 0 || base == 1 || base == -1) exponent = base == -1 ? exponent % 2 : exponent > 0 ? 1 : 0;
    if (exponent > 127) return too_wide(box);
    for (; exponent > 0; --exponent)
      if (__builtin_mul_overflow(result, base, &result)) return too_wide(box);
    return make_int(box, result, both(a, b));
  }
  const double x = to_double(a), y = to_double(b);
  if (x == 0 && y < 0) return box.fail("0.0 cannot be raised to a negative power");
  const double result = std::pow(x, y);
  if (std::isnan(result) && !std::isnan(x) && !std::isnan(y))
    return box.fail("a power that is a complex number is not supported");
  if (std::isinf(result) && !std::isinf(x) && !std::isinf(y))
    return box.fail("numerical result out of range");
  return float_value(result, both(a, b));
}

Value negative(Sandbox& box, const Value& a) {
  if (a.is(Kind::kFloat)) return float_value(-a.real, a.flags);
  if (a.is_undefined()) return box.fail(undefined_message(a));
  if (!a.is_int()) return box.fail("bad operand type for unary -: '" + std::string(type_name(a)) + "'");
  Int result = 0;
  if (__builtin_sub_overflow(Int{0}, to_int(a), &result)) return too_wide(box);
  return make_int(box, result, a.flags);
}

Value positive(Sandbox& box, const Value& a) {
  if (a.is(Kind::kFloat)) return a;
  if (a.is_undefined()) return box.fail(undefined_message(a));
  if (!a.is_int()) return box.fail("bad operand type for unary +: '" + std::string(type_name(a)) + "'");
  return make_int(box, to_int(a), a.flags);
}

}  // namespace ringmaster::tokenizer_worker::jinja
