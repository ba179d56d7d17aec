// Filters, tests, methods and global functions by name, and how their arguments are bound. The tables are
// constant; the functions keep no state and run on any thread, each on its own Sandbox.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "tokenizer-worker/template/ast.h"
#include "tokenizer-worker/template/sandbox.h"

namespace ringmaster::tokenizer_worker::jinja {

inline constexpr size_t kMaxParameters = 7;

struct Named {
  std::string_view name;
  Value value;
};
struct Arguments {
  std::span<const Value> positional;
  std::span<const Named> named;
};
// The parameters in the order of Builtin::parameters; one not given is kMissing.
using Slots = std::array<Value, kMaxParameters>;

struct Builtin {
  static constexpr uint8_t kAny = 255;  // takes whatever comes: the function reads Arguments

  std::string_view name;
  Value (*run)(Sandbox& box, const Value& self, const Slots& slots, const Arguments& all);
  uint8_t required = 0;  // the first so many parameters must be given
  std::array<std::string_view, kMaxParameters> parameters = {};
};

const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_string_method(std::string_view name);
const Builtin* find_list_method(std::string_view name);  // of tuples as well
const Builtin* find_dict_method(std::string_view name);
std::span<const Builtin> global_functions();
MethodsOfName methods_of_name(std::string_view name);
// Methods that would change a list or a dict: there, but refused when called.
bool mutates(const Value& object, std::string_view method);

// REQUIRES: the table is sorted by name (tests/tokenizer-worker/template checks all of them).
const Builtin* find_in(std::span<const Builtin> table, std::string_view name);

Value call_builtin(Sandbox& box, const Builtin& builtin, const Value& self, const Arguments& arguments);

// The tables, for find_* and the tests.
std::span<const Builtin> text_filters();
std::span<const Builtin> sequence_filters();
std::span<const Builtin> selecting_filters();
std::span<const Builtin> number_filters();
std::span<const Builtin> tests();
std::span<const Builtin> string_methods();
std::span<const Builtin> string_tests();
std::span<const Builtin> list_methods();
std::span<const Builtin> dict_methods();

// Arguments as C++ values; each fails with the function's name when the type is another.
bool int_argument(Sandbox& box, const Value& value, int64_t fallback, int64_t& out);
bool text_argument(Sandbox& box, const Value& value, std::string_view what);

}  // namespace ringmaster::tokenizer_worker::jinja
