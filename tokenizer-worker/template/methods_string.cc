// Methods of str that make other values; those that ask about its characters are in methods_string_tests.cc.
#include <algorithm>

#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/format.h"
#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/pieces.h"
#include "tokenizer-worker/template/text.h"
#include "tokenizer-worker/template/unicode.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

template <std::string (*map)(std::string_view)>
Value mapped(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  if (!box.step_bytes(8 * size_t{self.size})) return {};
  return derived(box, map(self.str()), {self});
}

template <char align>
Value justified(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t width = 0;
  if (!int_argument(box, slots[0], 0, width)) return {};
  const Value fill = slots[1].missing() ? string_value(" ", Value::kTemplate) : slots[1];
  if (!text_argument(box, fill, "the fill character")) return {};
  if (count_code_points(fill.str()) != 1)
    return box.fail("the fill character must be exactly one character long");
  return pad(box, self, width, fill.str(), align);
}

template <bool left, bool right>
Value stripped(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  return strip(box, self, slots[0], left, right);
}

// The stretch that find, count... look at, in bytes; false if it is empty in the sense of Python.
struct Stretch {
  bool valid = true;
  size_t begin = 0, end = 0;
  int64_t first = 0;  // code points before it
};
Stretch stretch(Sandbox& box, const Value& self, const Value& start, const Value& stop) {
  Stretch s{true, 0, self.size, 0};
  if (!box.step_bytes(self.size)) return s;
  if (start.missing() && stop.missing()) return s;
  const int64_t size = static_cast<int64_t>(count_code_points(self.str()));
  int64_t from = 0, to = size;
  if (!start.is_none() && !int_argument(box, start, 0, from)) return s;
  if (!stop.is_none() && !int_argument(box, stop, size, to)) return s;
  const auto absolute = [&](int64_t i) { return i < 0 ? std::max<int64_t>(0, i + size) : i; };
  from = absolute(from);
  to = std::min(absolute(to), size);
  s.valid = from <= to;
  s.first = std::min(from, size);
  s.begin = byte_offset(self.str(), static_cast<size_t>(s.first));
  s.end = s.valid ? byte_offset(self.str(), static_cast<size_t>(to)) : s.begin;
  return s;
}

int64_t find_at(Sandbox& box, const Value& self, const Slots& slots, bool last) {
  if (!text_argument(box, slots[0], "the text to find")) return -1;
  const Stretch s = stretch(box, self, slots[1], slots[2]);
  if (!s.valid || box.failed()) return -1;
  const std::string_view text = self.str().substr(s.begin, s.end - s.begin);
  const size_t at = last ? text.rfind(slots[0].str()) : text.find(slots[0].str());
  return at == std::string_view::npos ? -1
                                      : s.first + static_cast<int64_t>(count_code_points(text.substr(0, at)));
}
template <bool last>
Value find(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  return int_value(find_at(box, self, slots, last));
}
template <bool last>
Value index(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const int64_t at = find_at(box, self, slots, last);
  return at < 0 ? box.fail("substring not found") : int_value(at);
}

Value count(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  if (!text_argument(box, slots[0], "the text to count")) return {};
  const Stretch s = stretch(box, self, slots[1], slots[2]);
  if (!s.valid || box.failed()) return int_value(0);
  const std::string_view text = self.str().substr(s.begin, s.end - s.begin), what = slots[0].str();
  if (what.empty()) return int_value(static_cast<int64_t>(count_code_points(text)) + 1);
  int64_t found = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + what.size()))
    ++found;
  return int_value(found);
}

template <bool start>
Value starts_or_ends(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const Stretch s = stretch(box, self, slots[1], slots[2]);
  if (box.failed()) return {};
  const std::string_view text = self.str().substr(s.begin, s.end - s.begin);
  const Value* wanted = &slots[0];
  size_t choices = 1;
  if (slots[0].is(Kind::kTuple)) wanted = slots[0].items, choices = slots[0].size;
  for (size_t i = 0; i < choices && box.step(); ++i) {
    if (!text_argument(box, wanted[i], start ? "startswith first arg" : "endswith first arg")) return {};
    const bool found = start ? text.starts_with(wanted[i].str()) : text.ends_with(wanted[i].str());
    if (s.valid && found) return bool_value(true);
  }
  return bool_value(false);
}

template <bool front>
Value remove_affix(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  if (!text_argument(box, slots[0], "the text to remove")) return {};
  const std::string_view what = slots[0].str();
  if (front ? !self.str().starts_with(what) : !self.str().ends_with(what)) return self;
  return front ? slice_bytes(box, self, what.size(), self.size)
               : slice_bytes(box, self, 0, self.size - what.size());
}

template <bool last>
Value partition(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  if (!text_argument(box, slots[0], "the separator") || !box.step_bytes(self.size)) return {};
  const std::string_view what = slots[0].str();
  if (what.empty()) return box.fail("empty separator");
  const size_t at = last ? self.str().rfind(what) : self.str().find(what);
  const Value empty = string_value({}, Value::kTemplate);
  if (at == std::string_view::npos)
    return box.make_list(
        last ? std::vector<Value>{empty, empty, self} : std::vector<Value>{self, empty, empty}, Kind::kTuple);
  return box.make_list(
      {slice_bytes(box, self, 0, at), slots[0], slice_bytes(box, self, at + what.size(), self.size)},
      Kind::kTuple);
}

void split_at(Sandbox& box, const Value& self, std::string_view by, int64_t most, bool from_right,
              std::vector<Value>& parts) {
  const std::string_view text = self.str();
  size_t begin = 0, end = text.size();
  while (most != 0 && box.step()) {
    const size_t at = from_right
                          ? (end < by.size() ? std::string_view::npos : text.rfind(by, end - by.size()))
                          : text.find(by, begin);
    if (at == std::string_view::npos) break;
    if (from_right) {
      parts.push_back(slice_bytes(box, self, at + by.size(), end));
      end = at;
    } else {
      parts.push_back(slice_bytes(box, self, begin, at));
      begin = at + by.size();
    }
    --most;
  }
  parts.push_back(slice_bytes(box, self, begin, end));
  if (from_right) std::reverse(parts.begin(), parts.end());
}

// At runs of white space; none at either end.
void split_words(Sandbox& box, const Value& self, int64_t most, bool from_right, std::vector<Value>& parts) {
  std::string_view text = strip_space(self.str(), true, true);
  std::vector<std::string_view> words;
  for (size_t at = 0, begin = 0; at < text.size();) {
    const size_t here = at;
    const bool space = is_space(next_code_point(text, at));
    if (space) {
      if (here > begin) words.push_back(text.substr(begin, here - begin));
      begin = at;
    } else if (at == text.size()) {
      words.push_back(text.substr(begin));
    }
  }
  if (!box.step(words.size() + 1)) return;
  const size_t kept = most < 0 ? words.size() : std::min<size_t>(words.size(), static_cast<size_t>(most));
  const std::string_view whole = self.str();
  const auto rest = [&](const char* from, const char* to) {
    parts.push_back(
        part(box, self, strip_space({from, static_cast<size_t>(to - from)}, !from_right, from_right)));
  };
  if (from_right && kept < words.size()) {
    const std::string_view last = words[words.size() - kept - 1];
    rest(whole.data(), last.data() + last.size());
  }
  for (size_t i = 0; i < kept; ++i)
    parts.push_back(part(box, self, words[from_right ? words.size() - kept + i : i]));
  if (!from_right && kept < words.size()) rest(words[kept].data(), whole.data() + whole.size());
}

template <bool from_right>
Value split(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t most = -1;
  if (!int_argument(box, slots[1], -1, most) || !box.step_bytes(self.size)) return {};
  std::vector<Value> parts;
  if (slots[0].missing() || slots[0].is_none()) {
    split_words(box, self, most, from_right, parts);
  } else {
    if (!text_argument(box, slots[0], "the separator")) return {};
    if (slots[0].size == 0) return box.fail("empty separator");
    split_at(box, self, slots[0].str(), most, from_right, parts);
  }
  return box.failed() ? Value{} : box.make_list(parts);
}

Value splitlines(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const std::vector<Value> lines = split_lines(box, self, !slots[0].missing() && truthy(slots[0]));
  return box.failed() ? Value{} : box.make_list(lines);
}

Value join(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  Cursor cursor(box, slots[0]);
  std::vector<Value> parts;
  size_t size = 0;
  for (Value item; !box.failed() && cursor.next(box, item);) {
    if (!item.is_string())
      return box.fail("sequence item " + std::to_string((parts.size() + 1) / 2) +
                      ": expected str instance, " + std::string(type_name(item)) + " found");
    if (!parts.empty()) parts.push_back(self);
    parts.push_back(item);
    size += item.size + self.size;
    if (size > kMaxTextBytes || (parts.size() & 0xFFF) == 0)
      box.room_for_text(size), box.room_for_items(parts.size());
  }
  return box.failed() ? Value{} : concat(box, parts);
}

Value replace_method(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t most = -1;
  if (!text_argument(box, slots[0], "replace() argument 1") ||
      !text_argument(box, slots[1], "replace() argument 2") || !int_argument(box, slots[2], -1, most))
    return {};
  return replace(box, self, slots[0], slots[1], most);
}

Value zfill(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t width = 0;
  if (!int_argument(box, slots[0], 0, width)) return {};
  const bool is_signed = self.size > 0 && (self.str()[0] == '+' || self.str()[0] == '-');
  if (!is_signed) return pad(box, self, width, "0", '>');
  const Value padded = pad(box, slice_bytes(box, self, 1, self.size), width - 1, "0", '>');
  return box.failed() ? Value{} : concat(box, std::vector<Value>{slice_bytes(box, self, 0, 1), padded});
}

Value expandtabs(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t size = 8, column = 0;
  if (!int_argument(box, slots[0], 8, size) || !box.step_bytes(self.size)) return {};
  if (size > 1000)
    return box.fail("expandtabs: tabsize is " + std::to_string(size) + "; allowed: at most 1000");
  TextBuilder out;
  for (size_t at = 0; at < self.size && out.size() <= kMaxTextBytes;) {
    const size_t begin = at;
    const char32_t code = next_code_point(self.str(), at);
    if (code == '\t') {
      const int64_t blanks = size > 0 ? size - column % size : 0;
      out.append(std::string(static_cast<size_t>(blanks), ' '), self.has(Value::kTemplate));
      column += blanks;
    } else {
      out.append_slice(self, begin, at);
      column = code == '\n' || code == '\r' ? 0 : column + 1;
    }
  }
  return out.finish(box);
}

Value format_method(Sandbox& box, const Value& self, const Slots&, const Arguments& all) {
  return format_braces(box, self, all);
}

constexpr Builtin kMethods[] = {
    {"capitalize", mapped<capitalize>, 0, {}},
    {"casefold", mapped<casefold>, 0, {}},
    {"center", justified<'^'>, 1, {"width", "fillchar"}},
    {"count", count, 1, {"sub", "start", "end"}},
    {"endswith", starts_or_ends<false>, 1, {"suffix", "start", "end"}},
    {"expandtabs", expandtabs, 0, {"tabsize"}},
    {"find", find<false>, 1, {"sub", "start", "end"}},
    {"format", format_method, Builtin::kAny, {}},
    {"index", index<false>, 1, {"sub", "start", "end"}},
    {"join", join, 1, {"iterable"}},
    {"ljust", justified<'<'>, 1, {"width", "fillchar"}},
    {"lower", mapped<lower>, 0, {}},
    {"lstrip", stripped<true, false>, 0, {"chars"}},
    {"partition", partition<false>, 1, {"sep"}},
    {"removeprefix", remove_affix<true>, 1, {"prefix"}},
    {"removesuffix", remove_affix<false>, 1, {"suffix"}},
    {"replace", replace_method, 2, {"old", "new", "count"}},
    {"rfind", find<true>, 1, {"sub", "start", "end"}},
    {"rindex", index<true>, 1, {"sub", "start", "end"}},
    {"rjust", justified<'>'>, 1, {"width", "fillchar"}},
    {"rpartition", partition<true>, 1, {"sep"}},
    {"rsplit", split<true>, 0, {"sep", "maxsplit"}},
    {"rstrip", stripped<false, true>, 0, {"chars"}},
    {"split", split<false>, 0, {"sep", "maxsplit"}},
    {"splitlines", splitlines, 0, {"keepends"}},
    {"startswith", starts_or_ends<true>, 1, {"prefix", "start", "end"}},
    {"strip", stripped<true, true>, 0, {"chars"}},
    {"swapcase", mapped<swapcase>, 0, {}},
    {"title", mapped<title>, 0, {}},
    {"upper", mapped<upper>, 0, {}},
    {"zfill", zfill, 1, {"width"}},
};

}  // namespace

std::span<const Builtin> string_methods() {
  return kMethods;
}

}  // namespace ringmaster::tokenizer_worker::jinja
