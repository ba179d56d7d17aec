#include "tokenizer-worker/template/unicode.h"

#include <utf8proc.h>

#include <algorithm>

#include "tokenizer-worker/template/case_tables.h"
#include "tokenizer-worker/template/text.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool in(std::span<const CodeRange> ranges, char32_t code) {
  const auto at = std::upper_bound(ranges.begin(), ranges.end(), code,
                                   [](char32_t c, const CodeRange& r) { return c < r.first; });
  return at != ranges.begin() && code <= std::prev(at)->last;
}

void append_mapped(std::string& out, char32_t code, std::span<const CaseMapping> specials,
                   utf8proc_int32_t (*simple)(utf8proc_int32_t)) {
  if (code >= 0x80) {
    const auto at = std::lower_bound(specials.begin(), specials.end(), code,
                                     [](const CaseMapping& m, char32_t c) { return m.from < c; });
    if (at != specials.end() && at->from == code) {
      for (const char32_t to : at->to)
        if (to != 0) append_code_point(out, to);
      return;
    }
  }
  append_code_point(out, static_cast<char32_t>(simple(static_cast<utf8proc_int32_t>(code))));
}

void append_upper(std::string& out, char32_t code) {
  append_mapped(out, code, upper_specials(), utf8proc_toupper);
}
void append_title(std::string& out, char32_t code) {
  append_mapped(out, code, title_specials(), utf8proc_totitle);
}

// Unicode's Case_Ignorable, as far as categories tell it.
bool is_case_ignorable(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return std::u32string_view(
                 U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A")
                 .find(code) != std::u32string_view::npos;
  }
}

constexpr char32_t kSigma = 0x3A3;

void append_lower(std::string& out, char32_t code) {
  if (code == 0x130) {  // the one character whose small form is two
    append_code_point(out, 'i');
    append_code_point(out, 0x307);
    return;
  }
  append_code_point(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

// A capital sigma looks at its neighbours: walking back for each would make a text of sigmas cost its square.
class LowerMapper {
 public:
  explicit LowerMapper(std::string_view text) : text_(text) {}
  void append(std::string& out, char32_t code, size_t end) {
    if (code == kSigma)
      append_code_point(out, cased_before_ && !cased_after(end) ? 0x3C2 : 0x3C3);
    else
      append_lower(out, code);
    saw(code);
  }
  void saw(char32_t code) {
    if (code < 0x80 ? !((code | 0x20) >= 'a' && (code | 0x20) <= 'z') &&
                          (code == '\'' || code == '.' || code == ':' || code == '^' || code == '`')
                    : is_case_ignorable(code))
      return;
    cased_before_ = is_cased(code);
  }

 private:
  bool cased_after(size_t at) {
    if (at <= known_until_ && at >= known_from_) return known_;
    known_from_ = at;
    known_ = false;
    while (at < text_.size()) {
      const char32_t code = next_code_point(text_, at);
      if (is_case_ignorable(code)) continue;
      known_ = is_cased(code);
      break;
    }
    known_until_ = at;
    return known_;
  }

  std::string_view text_;
  bool cased_before_ = false;
  // What cased_after found for the stretch of ignorable characters it walked.
  size_t known_from_ = 1, known_until_ = 0;
  bool known_ = false;
};

}  // namespace

bool is_space(char32_t code) {
  if (code < 0x80) return (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x20);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_printable(char32_t code) {
  if (code < 0x7F) return code >= 0x20;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_letter(char32_t code) {
  const auto c = category(code);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_ND;
}
bool is_digit(char32_t code) {
  return is_decimal(code) || in(digits_beyond_decimal(), code);
}
bool is_numeric(char32_t code) {
  const auto c = category(code);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO ||
         in(numeric_letters(), code);
}
bool is_upper(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LU || in(other_upper(), code);
}
bool is_lower(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LL || in(other_lower(), code);
}
bool is_title(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LT;
}
bool is_cased(char32_t code) {
  return is_upper(code) || is_lower(code) || is_title(code);
}
bool is_word(char32_t code) {
  return code == '_' || is_letter(code) || is_numeric(code);
}

namespace {
bool all_cased(std::string_view text, bool (*wanted)(char32_t), bool (*other)(char32_t)) {
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t code = next_code_point(text, at);
    if (is_title(code) || other(code)) return false;
    any = any || wanted(code);
  }
  return any;
}
}  // namespace

bool all_upper(std::string_view text) {
  return all_cased(text, is_upper, is_lower);
}
bool all_lower(std::string_view text) {
  return all_cased(text, is_lower, is_upper);
}

std::string_view strip_space(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    size_t next = 0;
    if (!is_space(next_code_point(text, next))) break;
    text.remove_prefix(next);
  }
  while (right && !text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && text.size() - last < 4 && (text[last] & 0xC0) == 0x80) --last;
    size_t end = last;
    if (!is_space(next_code_point(text, end)) || end != text.size()) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

std::string upper(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) append_upper(out, next_code_point(text, at));
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  LowerMapper mapper(text);
  for (size_t at = 0; at < text.size();) {
    const char32_t code = next_code_point(text, at);
    mapper.append(out, code, at);
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  LowerMapper mapper(text);
  bool after_cased = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t code = next_code_point(text, at);
    if (after_cased)
      mapper.append(out, code, at);
    else
      append_title(out, code), mapper.saw(code);
    after_cased = is_cased(code);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  LowerMapper mapper(text);
  for (size_t at = 0; at < text.size();) {
    const bool first = at == 0;
    const char32_t code = next_code_point(text, at);
    if (first)
      append_title(out, code), mapper.saw(code);
    else
      mapper.append(out, code, at);
  }
  return out;
}

std::string swapcase(std::string_view text) {
  std::string out;
  LowerMapper mapper(text);
  for (size_t at = 0; at < text.size();) {
    const char32_t code = next_code_point(text, at);
    if (is_upper(code)) {
      mapper.append(out, code, at);
      continue;
    }
    if (is_lower(code))
      append_upper(out, code);
    else
      append_code_point(out, code);
    mapper.saw(code);
  }
  return out;
}

std::string casefold(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char32_t code = next_code_point(text, at);
    append_mapped(out, code, fold_specials(), [](utf8proc_int32_t c) {
      if (c == 0x3C2) return utf8proc_int32_t{0x3C3};
      return utf8proc_tolower(c);
    });
  }
  return out;
}

}  // namespace ringmaster::tokenizer_worker::jinja
