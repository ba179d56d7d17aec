// tojson: json.dumps as transformers calls it.
#include <algorithm>
#include <cmath>

#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/print.h"
#include "tokenizer-worker/template/text.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Sandbox& box, const JsonStyle& style) : box_(box), style_(style) {}

  void write(const Value& value, int depth) {
    if (depth > kMaxValueDepth || out.size() > kMaxTextBytes) {
      box_.fail("values nested too deep or too large for tojson");
      return;
    }
    if (!box_.step_bytes(value.is_string() ? value.size : 1)) return;
    switch (value.kind) {
      case Kind::kString:
        return write_string(value.str());
      case Kind::kList:
      case Kind::kTuple:
        return write_list(value.list(), depth);
      case Kind::kDict:
        return write_dict(value.dict->entries, depth);
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kBig:
      case Kind::kFloat:
        out += scalar(value);
        return;
      default:
        box_.fail("Object of type " + std::string(type_name(value)) + " is not JSON serializable");
    }
  }

  std::string out;

 private:
  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is(Kind::kBool)) return value.boolean ? "true" : "false";
    if (value.is_int()) return int_text(to_int(value));
    if (std::isnan(value.real)) return "NaN";
    if (std::isinf(value.real)) return value.real < 0 ? "-Infinity" : "Infinity";
    return float_text(value.real);
  }

  void new_line(int depth) {
    if (style_.indent < 0) return;
    out += '\n';
    for (int i = 0; i < depth && out.size() <= kMaxTextBytes; ++i) out += style_.indent_text;
    box_.step_bytes(static_cast<size_t>(depth) * style_.indent_text.size());
  }

  void write_list(std::span<const Value> items, int depth) {
    out += '[';
    for (size_t i = 0; i < items.size() && !box_.failed(); ++i) {
      if (i > 0) out += style_.item_separator;
      new_line(depth + 1);
      write(items[i], depth + 1);
    }
    if (!items.empty()) new_line(depth);
    out += ']';
  }

  void write_dict(std::span<const Entry> entries, int depth) {
    std::vector<Entry> sorted;
    if (style_.sort_keys) {
      sorted.assign(entries.begin(), entries.end());
      for (size_t i = 1; i < sorted.size() && !box_.failed(); ++i)
        compare(box_, sorted[i - 1].key, sorted[i].key, "<");
      if (box_.failed()) return;
      std::stable_sort(sorted.begin(), sorted.end(),
                       [&](const Entry& a, const Entry& b) { return compare(box_, a.key, b.key, "<") < 0; });
      entries = sorted;
    }
    out += '{';
    for (size_t i = 0; i < entries.size() && !box_.failed(); ++i) {
      if (i > 0) out += style_.item_separator;
      new_line(depth + 1);
      const Value& key = entries[i].key;
      if (key.is_string())
        write_string(key.str());
      else if (key.is_none() || key.is_number())
        out += '"' + scalar(key) + '"';
      else
        box_.fail("keys must be str, int, float, bool or None, not " + std::string(type_name(key)));
      out += style_.key_separator;
      write(entries[i].value, depth + 1);
    }
    if (!entries.empty()) new_line(depth);
    out += '}';
  }

  void escape(char32_t unit) {
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out.push_back("0123456789abcdef"[unit >> shift & 15]);
  }

  void write_string(std::string_view text) {
    out += '"';
    size_t plain = 0;  // not copied yet
    const auto flush = [&](size_t end) { out += text.substr(plain, end - plain); };
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const unsigned char c = static_cast<unsigned char>(text[at]);
      if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x80 || !style_.ensure_ascii) &&
          (c != 0x7F || !style_.ensure_ascii)) {
        ++at;
        continue;
      }
      flush(begin);
      const char32_t code = next_code_point(text, at);
      plain = at;
      static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f";
      static constexpr std::string_view kTo = "\"\\nrtbf";
      if (const size_t i = code < 0x80 ? kFrom.find(static_cast<char>(code)) : std::string_view::npos;
          i != std::string_view::npos) {
        out += '\\';
        out += kTo[i];
      } else if (code >= 0x10000) {
        escape(0xD800 + ((code - 0x10000) >> 10));
        escape(0xDC00 + ((code - 0x10000) & 0x3FF));
      } else {
        escape(code);
      }
    }
    flush(text.size());
    out += '"';
  }

  Sandbox& box_;
  const JsonStyle& style_;
};

}  // namespace

Value to_json(Sandbox& box, const Value& value, const JsonStyle& style) {
  JsonWriter writer(box, style);
  writer.write(value, 0);
  return box.failed() ? Value{} : box.make_string(writer.out, from_template(value) ? Value::kTemplate : 0);
}

}  // namespace ringmaster::tokenizer_worker::jinja
