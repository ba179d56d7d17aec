// What may stand behind `is`.
#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/print.h"
#include "tokenizer-worker/template/unicode.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

template <bool (*test)(const Value&)>
Value of_value(Sandbox&, const Value& self, const Slots&, const Arguments&) {
  return bool_value(test(self));
}
template <Op op>
Value compared(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  return bool_value(holds(box, op, self, slots[0]));
}

bool is_boolean(const Value& v) {
  return v.is(Kind::kBool);
}
bool is_callable(const Value& v) {
  // An undefined value has the method, though it only raises.
  return v.is(Kind::kMacro) || v.is(Kind::kFunction) || v.is(Kind::kMethod) || v.is(Kind::kJoiner) ||
         v.is(Kind::kLoop) || v.is_undefined();
}
bool is_defined(const Value& v) {
  return !v.is_undefined();
}
bool is_undefined(const Value& v) {
  return v.is_undefined();
}
bool is_escaped(const Value& v) {
  return v.is_string() && v.has(Value::kMarkup);
}
bool is_false(const Value& v) {
  return v.is(Kind::kBool) && !v.boolean;
}
bool is_true(const Value& v) {
  return v.is(Kind::kBool) && v.boolean;
}
bool is_float(const Value& v) {
  return v.is(Kind::kFloat);
}
bool is_integer(const Value& v) {
  return v.is_int() && !v.is(Kind::kBool);
}
bool is_mapping(const Value& v) {
  return v.is(Kind::kDict);
}
bool is_none(const Value& v) {
  return v.is_none();
}
bool is_number(const Value& v) {
  return v.is_number();
}
bool is_string(const Value& v) {
  return v.is_string();
}
bool is_sequence(const Value& v) {
  return v.is_string() || v.is_sequence() || v.is(Kind::kDict) || v.is(Kind::kRange) || v.is_undefined();
}

Value divisibleby(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const Value rest = binary(box, Op::kModulo, self, slots[0]);
  return box.failed() ? Value{} : bool_value(rest.is_number() && to_double(rest) == 0);
}
template <int remainder>
Value parity(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  const Value rest = binary(box, Op::kModulo, self, int_value(2));
  return box.failed() ? Value{} : bool_value(rest.is_number() && to_double(rest) == remainder);
}

Value sameas(Sandbox&, const Value& self, const Slots& slots, const Arguments&) {
  const Value& other = slots[0];
  if (self.kind != other.kind) return bool_value(false);
  if (self.is(Kind::kBool)) return bool_value(self.boolean == other.boolean);
  if (self.is_none()) return bool_value(true);
  return bool_value(self.pointer == other.pointer && self.size == other.size);
}

template <bool (*test)(std::string_view)>
Value of_text(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  const Value string = to_string(box, self);
  if (box.failed() || !box.step_bytes(4 * size_t{string.size})) return {};
  return bool_value(test(string.str()));
}

bool iterable(const Value& v) {
  return is_iterable(v);
}

template <const Builtin* (*find)(std::string_view)>
Value names_one(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  if (std::string text; !key_text(box, self, text)) return {};
  return bool_value(self.is_string() && find(self.str()) != nullptr);
}

constexpr Builtin kTests[] = {
    {"!=", compared<Op::kNotEqual>, 1, {"other"}},
    {"<", compared<Op::kLess>, 1, {"other"}},
    {"<=", compared<Op::kLessEqual>, 1, {"other"}},
    {"==", compared<Op::kEqual>, 1, {"other"}},
    {">", compared<Op::kGreater>, 1, {"other"}},
    {">=", compared<Op::kGreaterEqual>, 1, {"other"}},
    {"boolean", of_value<is_boolean>, 0, {}},
    {"callable", of_value<is_callable>, 0, {}},
    {"defined", of_value<is_defined>, 0, {}},
    {"divisibleby", divisibleby, 1, {"num"}},
    {"eq", compared<Op::kEqual>, 1, {"other"}},
    {"equalto", compared<Op::kEqual>, 1, {"other"}},
    {"escaped", of_value<is_escaped>, 0, {}},
    {"even", parity<0>, 0, {}},
    {"false", of_value<is_false>, 0, {}},
    {"filter", names_one<find_filter>, 0, {}},
    {"float", of_value<is_float>, 0, {}},
    {"ge", compared<Op::kGreaterEqual>, 1, {"other"}},
    {"greaterthan", compared<Op::kGreater>, 1, {"other"}},
    {"gt", compared<Op::kGreater>, 1, {"other"}},
    {"in", compared<Op::kIn>, 1, {"seq"}},
    {"integer", of_value<is_integer>, 0, {}},
    {"iterable", of_value<iterable>, 0, {}},
    {"le", compared<Op::kLessEqual>, 1, {"other"}},
    {"lessthan", compared<Op::kLess>, 1, {"other"}},
    {"lower", of_text<all_lower>, 0, {}},
    {"lt", compared<Op::kLess>, 1, {"other"}},
    {"mapping", of_value<is_mapping>, 0, {}},
    {"ne", compared<Op::kNotEqual>, 1, {"other"}},
    {"none", of_value<is_none>, 0, {}},
    {"number", of_value<is_number>, 0, {}},
    {"odd", parity<1>, 0, {}},
    {"sameas", sameas, 1, {"other"}},
    {"sequence", of_value<is_sequence>, 0, {}},
    {"string", of_value<is_string>, 0, {}},
    {"test", names_one<find_test>, 0, {}},
    {"true", of_value<is_true>, 0, {}},
    {"undefined", of_value<is_undefined>, 0, {}},
    {"upper", of_text<all_upper>, 0, {}},
};

}  // namespace

std::span<const Builtin> tests() {
  return kTests;
}

}  // namespace ringmaster::tokenizer_worker::jinja
