// Strings that remember who wrote which bytes, and their pieces: cutting, joining, building, walking by code
// point. Whatever cannot tell counts as conversation. Bytes that are not UTF-8 are walked one by one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer-worker/template/sandbox.h"
#include "tokenizer-worker/template/value.h"

namespace ringmaster::tokenizer_worker::jinja {

class TextBuilder {
 public:
  void append(std::string_view text, bool from_template);
  void append(const Value& string);  // REQUIRES: is_string()
  // [begin, end) in bytes of a string
  void append_slice(const Value& string, size_t begin, size_t end);
  void clear();
  size_t size() const { return text_.size(); }
  const std::string& text() const { return text_; }
  const std::vector<Run>& runs() const { return runs_; }
  Value finish(Sandbox& box) const;

 private:
  std::string text_;
  std::vector<Run> runs_;
};

// The bytes [begin, end) of a string; no bytes are copied.
Value slice_bytes(Sandbox& box, const Value& string, size_t begin, size_t end);
Value concat(Sandbox& box, std::span<const Value> strings);
// `text` computed from these strings: the template's only if all of them are.
Value derived(Sandbox& box, std::string_view text, std::initializer_list<Value> from);
inline uint8_t origin(const Value& value) {
  return value.flags & Value::kTemplate;
}

// Code points. `at` < text.size(); moves `at` behind the code point.
char32_t next_code_point(std::string_view text, size_t& at);
void append_code_point(std::string& text, char32_t code);
size_t count_code_points(std::string_view text);
// Byte offset of the code point with this number; the size if there are fewer.
size_t byte_offset(std::string_view text, size_t code_points);
bool valid_utf8(std::string_view text);

}  // namespace ringmaster::tokenizer_worker::jinja
