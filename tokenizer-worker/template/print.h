// Values as text: what {{ }} prints (Python's str), repr, tojson.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tokenizer-worker/template/sandbox.h"

namespace ringmaster::tokenizer_worker::jinja {

// Python's str(); a string is itself.
Value to_string(Sandbox& box, const Value& value);
Value to_repr(Sandbox& box, const Value& value);
// For messages: bounded, never fails.
std::string short_repr(const Value& value);

std::string int_text(Int value);
// The shortest text that reads back as the same number, in Python's form.
std::string float_text(double value);
void append_string_repr(std::string& out, std::string_view text);

// True if everything in it was written by the template.
bool from_template(const Value& value, int depth = 0);

struct JsonStyle {
  int indent = -1;          // negative: one line
  std::string indent_text;  // one level of indentation
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
  bool ensure_ascii = false;
};
// What json.dumps gives; fails as it does for what JSON has not.
Value to_json(Sandbox& box, const Value& value, const JsonStyle& style);

}  // namespace ringmaster::tokenizer_worker::jinja
