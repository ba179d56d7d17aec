#include "tokenizer-worker/template/pieces.h"

#include <algorithm>

#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/text.h"
#include "tokenizer-worker/template/unicode.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

bool has_code_point(std::string_view set, char32_t code) {
  for (size_t at = 0; at < set.size();)
    if (next_code_point(set, at) == code) return true;
  return false;
}

bool is_line_end(char32_t code) {
  return (code >= 10 && code <= 13) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

}  // namespace

Value part(Sandbox& box, const Value& string, std::string_view text) {
  const size_t begin = text.empty() ? 0 : static_cast<size_t>(text.data() - string.str().data());
  return slice_bytes(box, string, begin, begin + text.size());
}

Value strip(Sandbox& box, const Value& string, const Value& characters, bool left, bool right) {
  std::string_view text = string.str();
  if (!box.step_bytes(text.size())) return {};
  if (characters.missing() || characters.is_none()) return part(box, string, strip_space(text, left, right));
  if (!text_argument(box, characters, "strip arg")) return {};
  const std::string_view set = characters.str();
  while (left && !text.empty()) {
    size_t next = 0;
    if (!has_code_point(set, next_code_point(text, next)) || !box.step_bytes(set.size())) break;
    text.remove_prefix(next);
  }
  while (right && !text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (text[last] & 0xC0) == 0x80 && text.size() - last < 4) --last;
    size_t end = last;
    if (!has_code_point(set, next_code_point(text, end)) || !box.step_bytes(set.size())) break;
    text.remove_suffix(text.size() - last);
  }
  return part(box, string, text);
}

Value replace(Sandbox& box, const Value& string, const Value& old, const Value& by, int64_t count) {
  const std::string_view text = string.str(), from = old.str();
  if (!box.step_bytes(text.size())) return {};
  TextBuilder out;
  size_t at = 0;
  if (from.empty()) {
    while (count != 0) {
      out.append(by);
      --count;
      if (at >= text.size()) break;
      const size_t begin = at;
      next_code_point(text, at);
      out.append_slice(string, begin, at);
      if (out.size() > kMaxTextBytes || !box.step_bytes(by.size)) break;
    }
  } else {
    for (; count != 0; --count) {
      const size_t found = text.find(from, at);
      if (found == std::string_view::npos) break;
      if (out.size() > kMaxTextBytes || !box.step_bytes(by.size)) break;
      out.append_slice(string, at, found);
      out.append(by);
      at = found + from.size();
    }
    if (at == 0) return string;
  }
  out.append_slice(string, at, text.size());
  return out.finish(box);
}

std::vector<Value> split_lines(Sandbox& box, const Value& string, bool keep_ends) {
  const std::string_view text = string.str();
  std::vector<Value> lines;
  if (!box.step_bytes(text.size())) return lines;
  for (size_t at = 0, begin = 0; at < text.size();) {
    const size_t end = at;
    const char32_t code = next_code_point(text, at);
    if (!is_line_end(code)) {
      if (at == text.size()) lines.push_back(slice_bytes(box, string, begin, at));
      continue;
    }
    if (code == '\r' && at < text.size() && text[at] == '\n') ++at;
    if (!box.step()) break;
    lines.push_back(slice_bytes(box, string, begin, keep_ends ? at : end));
    begin = at;
  }
  return lines;
}

Value pad(Sandbox& box, const Value& string, int64_t width, std::string_view fill, char align) {
  const int64_t size = static_cast<int64_t>(count_code_points(string.str()));
  const int64_t missing = width - size;
  if (missing <= 0) return string;
  if (!box.room_for_text(string.size + static_cast<uint64_t>(missing) * fill.size())) return {};
  // CPython's str.center puts the odd blank to the left of an odd width.
  const int64_t left = align == '<' ? 0 : align == '>' ? missing : missing / 2 + (missing & width & 1);
  TextBuilder out;
  for (int64_t i = 0; i < left; ++i) out.append(fill, true);
  out.append(string);
  for (int64_t i = left; i < missing; ++i) out.append(fill, true);
  return out.finish(box);
}

}  // namespace ringmaster::tokenizer_worker::jinja
