// Template source to tokens, by the rules of Jinja 3.1 with trim_blocks and lstrip_blocks on and
// keep_trailing_newline off, as transformers sets them. Runs once, at load.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer-worker/template/value.h"

namespace ringmaster::tokenizer_worker::jinja {

enum class TokenKind : uint8_t {
  kData,  // text between tags, whitespace control applied
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  uint32_t line = 1;
  std::string_view text;  // data, name, operator; of a string its value
  Value value;            // of a number

  bool is(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

// The last token is kEnd. Texts lie in `arena`.
Result<std::vector<Token>> tokenize(std::string_view source, Arena& arena);

// As messages show it: "'endif'", "end of print statement".
std::string describe(const Token& token);

}  // namespace ringmaster::tokenizer_worker::jinja
