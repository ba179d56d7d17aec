// Filters that make text of text.
#include <algorithm>

#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/format.h"
#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/pieces.h"
#include "tokenizer-worker/template/print.h"
#include "tokenizer-worker/template/text.h"
#include "tokenizer-worker/template/unicode.h"
#include "tokenizer-worker/template/wrap.h"

namespace ringmaster::tokenizer_worker::jinja {

Value escape_html(Sandbox& box, const Value& value) {
  if (value.is_string() && value.has(Value::kMarkup)) return value;
  const Value string = to_string(box, value);
  if (box.failed()) return {};
  TextBuilder out;
  const std::string_view text = string.str();
  for (size_t at = 0; at < text.size();) {
    const size_t special = std::min(text.find_first_of("&<>'\"", at), text.size());
    out.append_slice(string, at, special);
    at = special + 1;
    if (special == text.size()) break;
    const char c = text[special];
    const std::string_view by = c == '&'    ? "&amp;"
                                : c == '<'  ? "&lt;"
                                : c == '>'  ? "&gt;"
                                : c == '\'' ? "&#39;"
                                            : "&#34;";
    out.append(by, false);
    if (out.size() > kMaxTextBytes || !box.step()) break;
  }
  Value escaped = out.finish(box);
  escaped.flags |= Value::kMarkup;
  return escaped;
}

namespace {

template <std::string (*map)(std::string_view)>
Value mapped(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  const Value string = to_string(box, self);
  if (box.failed() || !box.step_bytes(8 * size_t{string.size})) return {};
  return derived(box, map(string.str()), {string});
}

// Jinja's title: words begin behind blanks, hyphens and opening brackets only.
std::string title_words(std::string_view text) {
  std::string out;
  size_t begin = 0;
  const auto word = [&](size_t end) {
    if (begin == end) return;
    size_t rest = begin;
    next_code_point(text, rest);
    out += upper(text.substr(begin, rest - begin));
    out += lower(text.substr(rest, end - rest));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t code = next_code_point(text, at);
    if (!is_space(code) && std::u32string_view(U"-([{<").find(code) == std::u32string_view::npos) continue;
    word(here);
    out += text.substr(here, at - here);
    begin = at;
  }
  word(text.size());
  return out;
}

Value center(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t width = 0;
  const Value string = to_string(box, self);
  if (box.failed() || !int_argument(box, slots[0], 80, width)) return {};
  return pad(box, string, width, " ", '^');
}

Value escape(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  return escape_html(box, self);
}
Value forceescape(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  Value plain = to_string(box, self);
  plain.flags &= static_cast<uint8_t>(~Value::kMarkup);
  return escape_html(box, plain);
}
Value safe(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  Value string = to_string(box, self);
  string.flags |= Value::kMarkup;
  return string;
}

Value format_filter(Sandbox& box, const Value& self, const Slots&, const Arguments& all) {
  const Value string = to_string(box, self);
  if (box.failed()) return {};
  if (!all.named.empty() && !all.positional.empty())
    return box.fail("can't handle positional and keyword arguments at the same time");
  if (all.named.empty()) return format_percent(box, string, sequence_value(Kind::kTuple, all.positional));
  DictBuilder names;
  for (const Named& named : all.named)
    names.set(box, string_value(named.name, Value::kTemplate), named.value);
  return format_percent(box, string, names.finish(box));
}

Value indent(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  if (self.is_undefined()) return box.fail(undefined_message(self));
  if (!text_argument(box, self, "indent of a value that is no string: it")) return {};
  Value width = slots[0];
  if (!width.is_string()) {
    int64_t blanks = 0;
    if (!int_argument(box, width, 4, blanks)) return {};
    width = pad(box, string_value({}, Value::kTemplate), blanks, " ", '<');
  }
  const bool first = !slots[1].missing() && truthy(slots[1]);
  const bool blank = !slots[2].missing() && truthy(slots[2]);
  // As Jinja does, a newline more makes the last line end like the others.
  const Value ended = concat(box, std::vector<Value>{self, string_value("\n", Value::kTemplate)});
  if (box.failed()) return {};
  const std::vector<Value> lines = split_lines(box, ended, false);
  TextBuilder out;
  for (size_t i = 0; i < lines.size() && !box.failed(); ++i) {
    if (i > 0) out.append("\n", true);
    if ((i > 0 && (blank || lines[i].size > 0)) || (i == 0 && first)) out.append(width);
    out.append(lines[i]);
    if (out.size() > kMaxTextBytes || !box.step_bytes(width.size)) box.room_for_text(out.size());
  }
  return box.failed() ? Value{} : out.finish(box);
}

// Python's pprint sorts and breaks lines; where it would, this does not pretend to.
Value pprint(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  constexpr size_t kLine = 80;
  const Value text = to_repr(box, self);
  if (box.failed() || !(self.is_sequence() || self.is(Kind::kDict))) return text;
  if (text.size < kLine && text.str().find('{') == std::string_view::npos) return text;
  return box.fail("pprint of dicts and of what is longer than a line is not supported; use tojson(indent=2)");
}

Value replace_filter(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const Value string = to_string(box, self), old = to_string(box, slots[0]), by = to_string(box, slots[1]);
  int64_t count = -1;
  if (box.failed() || !int_argument(box, slots[2].is_none() ? kMissingValue : slots[2], -1, count)) return {};
  return replace(box, string, old, by, count);
}

Value string_filter(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  return to_string(box, self);
}

Value striptags(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  const Value string = to_string(box, self);
  if (box.failed() || !box.step_bytes(4 * size_t{string.size})) return {};
  return derived(box, without_tags(string.str()), {string});
}

Value tojson(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  JsonStyle style;
  style.ensure_ascii = !slots[0].missing() && truthy(slots[0]);
  const Value &indent_by = slots[1], &separators = slots[2];
  if (!indent_by.missing() && !indent_by.is_none()) {
    if (indent_by.is_string()) {
      style.indent_text = indent_by.str();
    } else {
      int64_t blanks = 0;
      if (!int_argument(box, indent_by, 0, blanks)) return {};
      if (blanks > 1000)
        return box.fail("tojson: indent is " + std::to_string(blanks) + "; allowed: at most 1000");
      style.indent_text = std::string(static_cast<size_t>(std::max<int64_t>(0, blanks)), ' ');
    }
    style.indent = 0;
    style.item_separator = ",";
  }
  if (!separators.missing() && !separators.is_none()) {
    const bool pair = separators.is_sequence() && separators.size == 2 && separators.items[0].is_string() &&
                      separators.items[1].is_string();
    if (!pair) return box.fail("tojson: separators must be two strings");
    style.item_separator = separators.items[0].str();
    style.key_separator = separators.items[1].str();
  }
  style.sort_keys = !slots[3].missing() && truthy(slots[3]);
  return to_json(box, self, style);
}

Value trim(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const Value string = to_string(box, self);
  return box.failed() ? Value{} : strip(box, string, slots[0], true, true);
}

Value truncate(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t length = 255, leeway = 5;
  if (!int_argument(box, slots[0], 255, length)) return {};
  if (!int_argument(box, slots[3].is_none() ? kMissingValue : slots[3], 5, leeway)) return {};
  const bool words = slots[1].missing() || !truthy(slots[1]);
  const Value end = slots[2].missing() ? string_value("...", Value::kTemplate) : slots[2];
  if (!text_argument(box, end, "end") || !box.step_bytes(self.size)) return {};
  const int64_t kept = length - static_cast<int64_t>(count_code_points(end.str()));
  if (kept < 0)
    return box.fail("truncate: expected length >= the length of '" + std::string(end.str()) + "', got " +
                    std::to_string(length));
  if (leeway < 0) return box.fail("truncate: expected leeway >= 0, got " + std::to_string(leeway));
  const int64_t size =
      self.is_string() ? static_cast<int64_t>(count_code_points(self.str())) : Cursor(box, self).remaining();
  if (size - leeway <= length && size >= 0) return self;
  if (!text_argument(box, self, "truncate of a value that is no string: it")) return {};
  size_t cut = byte_offset(self.str(), static_cast<size_t>(kept));
  if (const size_t blank = self.str().substr(0, cut).rfind(' '); words && blank != std::string_view::npos)
    cut = blank;
  return concat(box, std::vector<Value>{slice_bytes(box, self, 0, cut), end});
}

// urllib's quote, or for forms its quote_plus.
void append_quoted(std::string& out, std::string_view text, bool form) {
  constexpr std::string_view kKept = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~";
  for (const char c : text) {
    if (kKept.find(c) != std::string_view::npos || (c == '/' && !form)) {
      out.push_back(c);
      continue;
    }
    if (c == ' ' && form) {
      out.push_back('+');
      continue;
    }
    const unsigned char byte = static_cast<unsigned char>(c);
    out.push_back('%');
    out.push_back("0123456789ABCDEF"[byte >> 4]);
    out.push_back("0123456789ABCDEF"[byte & 15]);
  }
}

Value urlencode(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  std::string out;
  if (self.is_string() || !is_iterable(self)) {
    const Value string = to_string(box, self);
    if (box.failed() || !box.step_bytes(4 * size_t{string.size})) return {};
    append_quoted(out, string.str(), false);
    return box.make_string(out, 0);
  }
  std::vector<Value> pairs;
  if (self.is(Kind::kDict)) {
    for (const Entry& entry : self.dict->entries) pairs.push_back(entry.key), pairs.push_back(entry.value);
  } else {
    std::vector<Value> items;
    if (!collect(box, self, items)) return {};
    for (const Value& item : items) {
      if (!item.is_sequence() || item.size != 2) return box.fail("urlencode: expected pairs");
      pairs.insert(pairs.end(), item.list().begin(), item.list().end());
    }
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Value string = to_string(box, pairs[i]);
    if (box.failed() || !box.step_bytes(4 * size_t{string.size}) || out.size() > kMaxTextBytes)
      return box.room_for_text(out.size()), Value{};
    if (i > 0) out += i % 2 == 0 ? '&' : '=';
    append_quoted(out, string.str(), true);
  }
  return box.make_string(out, 0);
}

Value wordcount(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  const Value string = to_string(box, self);
  if (box.failed() || !box.step_bytes(4 * size_t{string.size})) return {};
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < string.size;) {
    const bool word = is_word(next_code_point(string.str(), at));
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return int_value(words);
}

Value wordwrap(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t width = 79;
  if (!text_argument(box, self, "wordwrap of a value that is no string: it") ||
      !int_argument(box, slots[0], 79, width))
    return {};
  const bool break_words = slots[1].missing() || truthy(slots[1]);
  const bool break_hyphens = slots[3].missing() || truthy(slots[3]);
  const Value joint =
      slots[2].missing() || slots[2].is_none() ? string_value("\n", Value::kTemplate) : slots[2];
  if (!text_argument(box, joint, "wrapstring")) return {};
  if (width <= 0) return box.fail("invalid width " + std::to_string(width) + " (must be > 0)");
  return wrap_words(box, self, width, break_words, joint, break_hyphens);
}

Value xmlattr(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  if (!self.is(Kind::kDict))
    return box.fail("'" + std::string(type_name(self)) + "' object has no attribute 'items'");
  TextBuilder out;
  for (const Entry& entry : self.dict->entries) {
    if (entry.value.is_none() || entry.value.is_undefined()) continue;
    const Value key = escape_html(box, entry.key), value = escape_html(box, entry.value);
    if (box.failed()) return {};
    if (!entry.key.is_string() || entry.key.str().find_first_of(" \t\n\f\r\v/>=") != std::string_view::npos)
      return box.fail("invalid character in attribute name");
    if (out.size() > 0) out.append(" ", true);
    out.append(key);
    out.append("=\"", true);
    out.append(value);
    out.append("\"", true);
    if (out.size() > kMaxTextBytes || !box.step()) return box.room_for_text(out.size()), Value{};
  }
  const bool space = slots[0].missing() || truthy(slots[0]);
  const Value text = out.finish(box);
  return space && text.size > 0 ? concat(box, std::vector<Value>{string_value(" ", Value::kTemplate), text})
                                : text;
}

constexpr Builtin kFilters[] = {
    {"capitalize", mapped<capitalize>, 0, {}},
    {"center", center, 0, {"width"}},
    {"e", escape, 0, {}},
    {"escape", escape, 0, {}},
    {"forceescape", forceescape, 0, {}},
    {"format", format_filter, Builtin::kAny, {}},
    {"indent", indent, 0, {"width", "first", "blank"}},
    {"lower", mapped<lower>, 0, {}},
    {"pprint", pprint, 0, {}},
    {"replace", replace_filter, 2, {"old", "new", "count"}},
    {"safe", safe, 0, {}},
    {"string", string_filter, 0, {}},
    {"striptags", striptags, 0, {}},
    {"title", mapped<title_words>, 0, {}},
    {"tojson", tojson, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", trim, 0, {"chars"}},
    {"truncate", truncate, 0, {"length", "killwords", "end", "leeway"}},
    {"upper", mapped<upper>, 0, {}},
    {"urlencode", urlencode, 0, {}},
    {"wordcount", wordcount, 0, {}},
    {"wordwrap", wordwrap, 0, {"width", "break_long_words", "wrapstring", "break_on_hyphens"}},
    {"xmlattr", xmlattr, 0, {"autospace"}},
};

}  // namespace

std::span<const Builtin> text_filters() {
  return kFilters;
}

}  // namespace ringmaster::tokenizer_worker::jinja
