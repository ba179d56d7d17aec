// Numbers and escape sequences as template source spells them. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tokenizer-worker/template/value.h"

namespace ringmaster::tokenizer_worker::jinja {

struct NumberLiteral {
  size_t size = 0;  // bytes of source
  bool is_float = false;
  Int integer = 0;
  double real = 0;
  std::string error;  // empty: none
};
// REQUIRES: begins with a digit. `after_dot`: l.0.1 is two subscripts, not a float.
NumberLiteral number_literal(std::string_view source, bool after_dot);

// Decimal, hexadecimal... digits (one underscore between two is fine) to a number; false if there is
// anything else or it does not fit.
bool parse_digits(std::string_view digits, int base, Int& value);

// Python's escapes; returns what is wrong, or nothing.
std::string unescape(std::string_view quoted, std::string& text);

}  // namespace ringmaster::tokenizer_worker::jinja
