#include "tokenizer-worker/template/lexer.h"

#include <algorithm>
#include <array>

#include "tokenizer-worker/template/literals.h"
#include "tokenizer-worker/template/text.h"
#include "tokenizer-worker/template/unicode.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

constexpr std::array<std::string_view, 26> kOperators = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/",
                                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_byte(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}

class Lexer {
 public:
  Lexer(std::string_view source, Arena& arena) : source_(source), arena_(arena) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size() && error_.empty()) between_tags();
    if (!error_.empty())
      return Error{Code::kMalformed, error_ + " (line " + std::to_string(line()) + " of the chat template)"};
    push(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  bool ahead_is(std::string_view text) const {
    return source_.substr(std::min(at_, source_.size())).starts_with(text);
  }
  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      size_t next = at;
      if (!is_space(next_code_point(source_, next))) break;
      at = next;
    }
    return at;
  }
  uint32_t line() {
    for (; counted_ < std::min(at_, source_.size()); ++counted_)
      if (source_[counted_] == '\n') ++line_;
    return line_;
  }
  void fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    at_ = std::max(at_, size_t{1});
  }
  void push(TokenKind kind, std::string_view text) { tokens_.push_back({kind, line(), text, {}}); }

  struct Tag {
    size_t begin = std::string_view::npos;  // of the braces
    char kind = 0;                          // '{' '%' '#', 'r' for {% raw %}
    char sign = 0;
    size_t end = 0;  // behind the opening
  };

  // `name` between block braces: {%- name -%}. `trims` says whether a newline after it belongs to it.
  bool lone_block(size_t at, std::string_view name, bool trims, Tag& tag) const {
    tag.begin = at;
    at += 2;
    tag.sign = at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at++] : '\0';
    at = skip_space(at);
    if (!source_.substr(at).starts_with(name)) return false;
    at = skip_space(at + name.size());
    const std::string_view rest = source_.substr(at);
    if (rest.starts_with("-%}")) {
      tag.end = skip_space(at + 3);
    } else if (trims && rest.starts_with("+%}")) {
      tag.end = at + 3;
    } else if (rest.starts_with("%}")) {
      tag.end = at + 2;
      if (trims && tag.end < source_.size() && source_[tag.end] == '\n') ++tag.end;
    } else {
      return false;
    }
    return true;
  }

  Tag next_tag() const {
    for (size_t at = source_.find('{', at_); at != std::string_view::npos; at = source_.find('{', at + 1)) {
      if (at + 1 >= source_.size()) break;
      const char kind = source_[at + 1];
      if (kind != '{' && kind != '%' && kind != '#') continue;
      Tag tag;
      if (kind == '%' && lone_block(at, "raw", false, tag)) {
        tag.kind = 'r';
        return tag;
      }
      tag = {at, kind, '\0', at + 2};
      if (tag.end < source_.size() && (source_[tag.end] == '-' || source_[tag.end] == '+'))
        tag.sign = source_[tag.end++];
      return tag;
    }
    return {};
  }

  // Data before a tag, with what the tag's sign or lstrip_blocks takes off its end.
  void data(size_t begin, size_t end, char sign, bool strips_line) {
    std::string_view text = source_.substr(begin, end - begin);
    if (sign == '-') {
      text = strip_space(text, false, true);
    } else if (sign != '+' && strips_line) {
      const size_t newline = text.rfind('\n');
      const size_t from = newline == std::string_view::npos ? 0 : newline + 1;
      const bool at_line_start = from > 0 || begin == 0 || source_[begin - 1] == '\n';
      if (at_line_start && strip_space(text.substr(from), true, false).empty()) text = text.substr(0, from);
    }
    if (!text.empty()) push(TokenKind::kData, text);
  }

  void between_tags() {
    const Tag tag = next_tag();
    if (tag.begin == std::string_view::npos) {
      push(TokenKind::kData, source_.substr(at_));
      at_ = source_.size();
      return;
    }
    data(at_, tag.begin, tag.sign, tag.kind != '{');
    at_ = tag.end;
    if (tag.kind == '#') return comment();
    if (tag.kind == 'r') return raw();
    push(tag.kind == '{' ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, {});
    inside_tag(tag.kind == '{' ? "}}" : "%}", tag.kind == '%');
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) return fail("missing end of comment tag");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    at_ = end + 2;
    if (sign == '-')
      at_ = skip_space(at_);
    else if (sign != '+' && peek() == '\n')
      ++at_;
  }

  void raw() {
    for (size_t at = source_.find("{%", at_); at != std::string_view::npos; at = source_.find("{%", at + 1)) {
      Tag tag;
      if (!lone_block(at, "endraw", true, tag)) continue;
      data(at_, at, tag.sign, true);
      at_ = tag.end;
      return;
    }
    fail("missing end of raw directive");
  }

  bool tag_end(std::string_view close, bool block) {
    size_t at = at_;
    const char sign = peek() == '-' || (block && peek() == '+') ? peek() : '\0';
    if (sign != '\0') ++at;
    if (!source_.substr(at).starts_with(close)) return false;
    at_ = at + 2;
    push(block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, {});
    if (sign == '-')
      at_ = skip_space(at_);
    else if (block && sign != '+' && peek() == '\n')
      ++at_;
    return true;
  }

  void inside_tag(std::string_view close, bool block) {
    std::string open;  // brackets
    while (at_ < source_.size() && error_.empty()) {
      if (open.empty() && tag_end(close, block)) return;
      const size_t space = skip_space(at_);
      if (space != at_) {
        at_ = space;
        continue;
      }
      const char c = peek();
      if (is_digit(c))
        number();
      else if (is_name_byte(c))
        name();
      else if (c == '\'' || c == '"')
        string();
      else
        op(open);
    }
  }

  void name() {
    const size_t begin = at_;
    while (at_ < source_.size() && is_name_byte(source_[at_])) ++at_;
    push(TokenKind::kName, source_.substr(begin, at_ - begin));
  }

  void string() {
    const char quote = peek();
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size())
      return fail("unexpected char '" + std::string(1, quote) + "': the string does not end");
    std::string text;
    if (std::string why = unescape(source_.substr(at_ + 1, end - at_ - 1), text); !why.empty())
      return fail(why);
    push(TokenKind::kString, arena_.copy(text));
    at_ = end + 1;
  }

  void number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    const NumberLiteral literal = number_literal(source_.substr(at_), after_dot);
    if (!literal.error.empty()) return fail(literal.error);
    push(literal.is_float ? TokenKind::kFloat : TokenKind::kInteger, source_.substr(at_, literal.size));
    Value& value = tokens_.back().value;
    if (literal.is_float) {
      value = float_value(literal.real);
    } else if (literal.integer == static_cast<int64_t>(literal.integer)) {
      value = int_value(static_cast<int64_t>(literal.integer));
    } else {
      value = Value{Kind::kBig, Value::kTemplate};
      value.big = new (arena_.allocate(sizeof(Int), alignof(Int))) Int(literal.integer);
    }
    at_ += literal.size;
  }

  void op(std::string& open) {
    const auto found =
        std::find_if(kOperators.begin(), kOperators.end(), [&](std::string_view o) { return ahead_is(o); });
    if (found == kOperators.end()) return fail("unexpected char '" + std::string(1, peek()) + "'");
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) return fail("unexpected '" + std::string(1, c) + "'");
      if (open.back() != c)
        return fail("unexpected '" + std::string(1, c) + "', expected '" + std::string(1, open.back()) + "'");
      open.pop_back();
    }
    push(TokenKind::kOperator, source_.substr(at_, found->size()));
    at_ += found->size();
  }

  std::string_view source_;
  Arena& arena_;
  size_t at_ = 0;
  size_t counted_ = 0;
  uint32_t line_ = 1;
  std::vector<Token> tokens_;
  std::string error_;
};

// All line ends become \n; one at the very end is not part of the text.
std::string normalised(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text.push_back(source[i]);
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source, Arena& arena) {
  if (source.size() > kMaxSourceBytes)
    return Error{Code::kTooLarge, "the chat template has " + std::to_string(source.size()) +
                                      " bytes; allowed: at most " + std::to_string(kMaxSourceBytes)};
  if (!valid_utf8(source)) return Error{Code::kInvalidUtf8, "the chat template is not UTF-8"};
  return Lexer(arena.copy(normalised(source)), arena).run();
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "template text";
    case TokenKind::kPrintBegin:
      return "begin of print statement";
    case TokenKind::kPrintEnd:
      return "end of print statement";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kEnd:
      return "end of template";
    case TokenKind::kString:
      return "a string";
    default:
      return "'" + std::string(token.text) + "'";
  }
}

}  // namespace ringmaster::tokenizer_worker::jinja
