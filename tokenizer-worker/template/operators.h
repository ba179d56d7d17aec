// What operators, subscripts, attributes and iteration mean, as Python and Jinja's sandbox define them.
// Functions of values; they fail through the Sandbox.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tokenizer-worker/template/ast.h"
#include "tokenizer-worker/template/sandbox.h"

namespace ringmaster::tokenizer_worker::jinja {

// An integer of any size a Value can hold.
Value make_int(Sandbox& box, Int value, uint8_t flags);

Value add(Sandbox& box, const Value& a, const Value& b);
Value binary(Sandbox& box, Op op, const Value& a, const Value& b);  // kSubtract to kPower
Value negative(Sandbox& box, const Value& a);
Value positive(Sandbox& box, const Value& a);
Value power(Sandbox& box, const Value& a, const Value& b);
Value escape_html(Sandbox& box, const Value& value);

bool equal(Sandbox& box, const Value& a, const Value& b);
// Negative, zero, positive; `op` is for the message of values that have no order.
int compare(Sandbox& box, const Value& a, const Value& b, std::string_view op);
bool contains(Sandbox& box, const Value& container, const Value& item);
bool holds(Sandbox& box, Op op, const Value& a, const Value& b);  // kEqual to kNotIn

// object.name, object[key], object[start:stop:step]; what is not there is undefined.
Value get_attribute(Sandbox& box, const Value& object, const Value& name);
Value get_item(Sandbox& box, const Value& object, const Value& key);
Value get_slice(Sandbox& box, const Value& object, const Value& start, const Value& stop, const Value& step);
const Value* find_key(Sandbox& box, const Dict& dict, const Value& key);

// Walks over anything iterable; fails for anything else.
class Cursor {
 public:
  Cursor() = default;
  Cursor(Sandbox& box, const Value& iterable);
  bool next(Sandbox& box, Value& item);
  // Items still to come, or -1 where only walking tells.
  int64_t remaining() const;

 private:
  Value source_;
  size_t at_ = 0;
};

bool is_iterable(const Value& value);
bool collect(Sandbox& box, const Value& iterable, std::vector<Value>& items);

// The same text for equal keys of a dict or set, another for others; false (and failed) for what cannot be a
// key.
bool key_text(Sandbox& box, const Value& key, std::string& text, int depth = 0);

// Entries in order of insertion, where a repeated key keeps its place and takes the new value.
class DictBuilder {
 public:
  bool set(Sandbox& box, const Value& key, const Value& value);
  Value finish(Sandbox& box, uint8_t flags = 0);

 private:
  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, uint32_t>> sorted_;  // key_text to entry
};

}  // namespace ringmaster::tokenizer_worker::jinja
