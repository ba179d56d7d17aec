#include "tokenizer-worker/template/builtins.h"

#include <algorithm>

namespace ringmaster::tokenizer_worker::jinja {

const Builtin* find_in(std::span<const Builtin> table, std::string_view name) {
  const auto at = std::lower_bound(table.begin(), table.end(), name,
                                   [](const Builtin& b, std::string_view n) { return b.name < n; });
  return at != table.end() && at->name == name ? &*at : nullptr;
}

namespace {
const Builtin* find_in_each(std::initializer_list<std::span<const Builtin>> tables, std::string_view name) {
  for (const auto table : tables)
    if (const Builtin* found = find_in(table, name)) return found;
  return nullptr;
}
}  // namespace

const Builtin* find_filter(std::string_view name) {
  return find_in_each({text_filters(), sequence_filters(), selecting_filters(), number_filters()}, name);
}
const Builtin* find_test(std::string_view name) {
  return find_in(tests(), name);
}
const Builtin* find_string_method(std::string_view name) {
  return find_in_each({string_methods(), string_tests()}, name);
}
const Builtin* find_list_method(std::string_view name) {
  return find_in(list_methods(), name);
}
const Builtin* find_dict_method(std::string_view name) {
  return find_in(dict_methods(), name);
}

MethodsOfName methods_of_name(std::string_view name) {
  return {find_string_method(name), find_list_method(name), find_dict_method(name)};
}

bool mutates(const Value& object, std::string_view method) {
  static constexpr std::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                               "pop",    "remove", "reverse", "sort"};
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto among = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), method) != std::end(names);
  };
  return (object.is(Kind::kList) && among(kList)) || (object.is(Kind::kDict) && among(kDict));
}

namespace {

bool bind(Sandbox& box, const Builtin& builtin, const Arguments& arguments, Slots& slots) {
  size_t known = 0;
  while (known < kMaxParameters && !builtin.parameters[known].empty()) ++known;
  if (arguments.positional.size() > known)
    return box.fail(std::string(builtin.name) + "() takes at most " + std::to_string(known) + " arguments (" +
                    std::to_string(arguments.positional.size()) + " given)"),
           false;
  std::copy(arguments.positional.begin(), arguments.positional.end(), slots.begin());
  for (const Named& named : arguments.named) {
    const auto at = std::find(builtin.parameters.begin(),
                              builtin.parameters.begin() + static_cast<ptrdiff_t>(known), named.name);
    const size_t i = static_cast<size_t>(at - builtin.parameters.begin());
    if (i == known)
      return box.fail(std::string(builtin.name) + "() got an unexpected keyword argument '" +
                      std::string(named.name) + "'"),
             false;
    if (!slots[i].missing())
      return box.fail(std::string(builtin.name) + "() got multiple values for argument '" +
                      std::string(named.name) + "'"),
             false;
    slots[i] = named.value;
  }
  for (size_t i = 0; i < builtin.required; ++i)
    if (slots[i].missing())
      return box.fail(std::string(builtin.name) + "() misses the required argument '" +
                      std::string(builtin.parameters[i]) + "'"),
             false;
  return true;
}

}  // namespace

Value call_builtin(Sandbox& box, const Builtin& builtin, const Value& self, const Arguments& arguments) {
  if (!box.step()) return {};
  Slots slots;
  if (builtin.required != Builtin::kAny) {
    slots.fill(kMissingValue);
    if (!bind(box, builtin, arguments, slots)) return {};
  }
  return builtin.run(box, self, slots, arguments);
}

bool int_argument(Sandbox& box, const Value& value, int64_t fallback, int64_t& out) {
  out = fallback;
  if (value.missing()) return true;
  if (!value.is_int() || value.is(Kind::kBig))
    return box.fail("'" + std::string(type_name(value)) + "' object cannot be interpreted as an integer"),
           false;
  out = static_cast<int64_t>(to_int(value));
  return true;
}

bool text_argument(Sandbox& box, const Value& value, std::string_view what) {
  if (value.is_string()) return true;
  if (value.is_undefined()) return box.fail(undefined_message(value)), false;
  return box.fail(std::string(what) + " must be str, not " + std::string(type_name(value))), false;
}

}  // namespace ringmaster::tokenizer_worker::jinja
