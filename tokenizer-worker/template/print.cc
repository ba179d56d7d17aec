#include "tokenizer-worker/template/print.h"

#include <charconv>
#include <cmath>

#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/text.h"
#include "tokenizer-worker/template/unicode.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

void append_hex(std::string& out, uint32_t value, int digits) {
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4)
    out.push_back("0123456789abcdef"[value >> shift & 15]);
}

class ReprWriter {
 public:
  explicit ReprWriter(Sandbox* box) : box_(box) {}

  // False when it got too long or too deep.
  bool write(const Value& value, int depth) {
    if (box_ != nullptr && !box_->step_bytes(value.is_string() ? value.size : 1)) return false;
    if (depth > kMaxValueDepth || out.size() > kMaxTextBytes) {
      if (box_ != nullptr) box_->fail("values nested too deep or too large to be printed");
      return false;
    }
    switch (value.kind) {
      case Kind::kString:
        if (value.has(Value::kMarkup)) out += "Markup(";
        append_string_repr(out, value.str());
        if (value.has(Value::kMarkup)) out += ")";
        return true;
      case Kind::kList:
        return write_items(value.list(), '[', ']', false, depth);
      case Kind::kTuple:
        return write_items(value.list(), '(', ')', value.size == 1, depth);
      case Kind::kDict:
        return write_entries(value.dict->entries, depth);
      case Kind::kView:
        return write_view(*value.view, depth);
      case Kind::kNamespace:
        out += "<Namespace ";
        if (!write_entries({value.names->entries, value.names->size}, depth)) return false;
        out += '>';
        return true;
      default:
        out += plain(value);
        return true;
    }
  }

  std::string out;

 private:
  static std::string plain(const Value& value) {
    switch (value.kind) {
      case Kind::kUndefined:
      case Kind::kMissing:
        return "Undefined";
      case Kind::kNone:
        return "None";
      case Kind::kBool:
        return value.boolean ? "True" : "False";
      case Kind::kInt:
      case Kind::kBig:
        return int_text(to_int(value));
      case Kind::kFloat:
        return float_text(value.real);
      case Kind::kRange: {
        const Range& range = *value.range;
        const std::string bounds = std::to_string(range.start) + ", " + std::to_string(range.stop);
        return "range(" + bounds + (range.step != 1 ? ", " + std::to_string(range.step) : "") + ")";
      }
      case Kind::kMacro:
        return "<Macro '" + std::string(value.macro->body->name) + "'>";
      case Kind::kFunction:
        return "<function " + std::string(value.function->name) + ">";
      case Kind::kMethod:
        return "<built-in method " + std::string(value.method->builtin->name) + ">";
      default:
        return "<" + std::string(type_name(value)) + " object>";
    }
  }

  bool write_items(std::span<const Value> items, char open, char close, bool comma, int depth) {
    out += open;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += ", ";
      if (!write(items[i], depth + 1)) return false;
    }
    if (comma) out += ',';
    out += close;
    return true;
  }

  bool write_entries(std::span<const Entry> entries, int depth) {
    out += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out += ", ";
      if (!write(entries[i].key, depth + 1)) return false;
      out += ": ";
      if (!write(entries[i].value, depth + 1)) return false;
    }
    out += '}';
    return true;
  }

  bool write_view(const View& view, int depth) {
    Value self{Kind::kView};
    self.view = &view;
    out += std::string(type_name(self)) + "([";
    const auto entries = view.dict.dict->entries;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out += ", ";
      const Value pair[] = {entries[i].key, entries[i].value};
      const bool ok = view.which == View::kItems
                          ? write_items(pair, '(', ')', false, depth + 1)
                          : write(view.which == View::kKeys ? pair[0] : pair[1], depth + 1);
      if (!ok) return false;
    }
    out += "])";
    return true;
  }

  Sandbox* box_;
};

}  // namespace

std::string int_text(Int value) {
  if (value == 0) return "0";
  unsigned __int128 rest =
      value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  char digits[40];
  char* first = std::end(digits);
  for (; rest != 0; rest /= 10) *--first = static_cast<char>('0' + static_cast<int>(rest % 10));
  if (value < 0) *--first = '-';
  return std::string(first, std::end(digits));
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, std::end(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), end, exponent);
  // Python writes an exponent below 1e-4 and from 1e16 on.
  if (exponent < -4 || exponent >= 16) return std::string(text);
  std::string fixed(buffer, std::to_chars(buffer, std::end(buffer), value, std::chars_format::fixed).ptr);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

void append_string_repr(std::string& out, std::string_view text) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  out += quote;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t code = next_code_point(text, at);
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_printable(code)) {
      out += text.substr(begin, at - begin);
    } else {
      out += code < 0x100 ? "\\x" : code < 0x10000 ? "\\u" : "\\U";
      append_hex(out, static_cast<uint32_t>(code), code < 0x100 ? 2 : code < 0x10000 ? 4 : 8);
    }
  }
  out += quote;
}

bool from_template(const Value& value, int depth) {
  if (depth > kMaxValueDepth) return false;
  if (value.is_sequence()) {
    if (value.size == 0) return value.has(Value::kTemplate);
    for (const Value& item : value.list())
      if (!from_template(item, depth + 1)) return false;
    return true;
  }
  if (value.is(Kind::kDict)) {
    if (value.dict->entries.empty()) return value.has(Value::kTemplate);
    for (const Entry& entry : value.dict->entries)
      if (!from_template(entry.key, depth + 1) || !from_template(entry.value, depth + 1)) return false;
    return true;
  }
  return value.has(Value::kTemplate);
}

Value to_repr(Sandbox& box, const Value& value) {
  ReprWriter writer(&box);
  if (!writer.write(value, 0)) return {};
  return box.make_string(writer.out, from_template(value) ? Value::kTemplate : 0);
}

Value to_string(Sandbox& box, const Value& value) {
  const uint8_t flags = value.flags & Value::kTemplate;
  switch (value.kind) {
    case Kind::kString:
      return value;
    case Kind::kUndefined:
      return string_value({}, Value::kTemplate);
    case Kind::kNone:
      return string_value("None", Value::kTemplate);
    case Kind::kBool:
      return string_value(value.boolean ? "True" : "False", flags);
    default:
      return to_repr(box, value);
  }
}

std::string short_repr(const Value& value) {
  constexpr size_t kShown = 60;
  Value shown = value;
  if (shown.is_string() && shown.size > kShown) shown = string_value(shown.str().substr(0, kShown), 0);
  if (shown.is_sequence() || shown.is(Kind::kDict) || shown.is(Kind::kView) || shown.is(Kind::kNamespace))
    return "a " + std::string(type_name(value));
  ReprWriter writer(nullptr);
  writer.write(shown, 0);
  return writer.out;
}

}  // namespace ringmaster::tokenizer_worker::jinja
