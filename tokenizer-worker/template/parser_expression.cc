#include <algorithm>

#include "tokenizer-worker/template/parser.h"

namespace ringmaster::tokenizer_worker::jinja {

Expr* Parser::const_expr(Value value, uint32_t line) {
  return make<ConstExpr>(Expr{ExprKind::kConst, line}, value);
}

Expr* Parser::name_expr(std::string_view name, uint32_t line) {
  uses_varargs_ |= name == "varargs";
  uses_kwargs_ |= name == "kwargs";
  uses_caller_ |= name == "caller";
  return make<NameExpr>(Expr{ExprKind::kName, line}, program_.id(name), name);
}

Expr* Parser::binary(Op op, Expr* left, Expr* right) {
  return make<BinaryExpr>(Expr{ExprKind::kBinary, left->line}, op, left, right);
}

Expr* Parser::parse_expression(bool conditional) {
  const Depth depth(depth_);
  if (!nest()) return const_expr({}, 0);
  return conditional ? parse_conditional() : parse_or();
}

Expr* Parser::parse_conditional() {
  Expr* expr = parse_or();
  while (skip_name("if")) {
    Expr* test = parse_or();
    Expr* otherwise = skip_name("else") ? parse_expression() : nullptr;
    expr = make<ConditionalExpr>(Expr{ExprKind::kConditional, expr->line}, test, expr, otherwise);
  }
  return expr;
}

Expr* Parser::parse_or() {
  Expr* left = parse_and();
  while (skip_name("or"))
    left = make<BinaryExpr>(Expr{ExprKind::kOr, left->line}, Op::kEqual, left, parse_and());
  return left;
}

Expr* Parser::parse_and() {
  Expr* left = parse_not();
  while (skip_name("and"))
    left = make<BinaryExpr>(Expr{ExprKind::kAnd, left->line}, Op::kEqual, left, parse_not());
  return left;
}

Expr* Parser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Depth depth(depth_);
  if (!nest()) return const_expr({}, 0);
  const uint32_t line = take().line;
  return make<UnaryExpr>(Expr{ExprKind::kNot, line}, parse_not());
}

Expr* Parser::parse_compare() {
  static constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEqual},  {"!=", Op::kNotEqual},
                                                             {"<", Op::kLess},    {"<=", Op::kLessEqual},
                                                             {">", Op::kGreater}, {">=", Op::kGreaterEqual}};
  Expr* first = parse_sum();
  std::vector<Comparison> rest;
  for (;;) {
    const auto op =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return current().is(o.first); });
    if (op != std::end(kOps)) {
      take();
      rest.push_back({op->second, parse_sum()});
    } else if (skip_name("in")) {
      rest.push_back({Op::kIn, parse_sum()});
    } else if (current().is_name("not") && look().is_name("in")) {
      take(), take();
      rest.push_back({Op::kNotIn, parse_sum()});
    } else {
      break;
    }
  }
  if (rest.empty()) return first;
  return make<CompareExpr>(Expr{ExprKind::kCompare, first->line}, first, keep(rest));
}

// A row of + is one node: templates join a dozen strings so, and each would be copied a dozen times.
Expr* Parser::parse_sum() {
  Expr* left = parse_concat();
  while (current().is("+") || current().is("-")) {
    if (skip_op("-")) {
      left = binary(Op::kSubtract, left, parse_concat());
      continue;
    }
    std::vector<Expr*> items{left};
    while (skip_op("+")) items.push_back(parse_concat());
    left = make<SequenceExpr>(Expr{ExprKind::kAdd, left->line}, keep(items));
  }
  return left;
}

Expr* Parser::parse_concat() {
  Expr* first = parse_product();
  if (!current().is("~")) return first;
  std::vector<Expr*> items{first};
  while (skip_op("~")) items.push_back(parse_product());
  return make<SequenceExpr>(Expr{ExprKind::kConcat, first->line}, keep(items));
}

Expr* Parser::parse_product() {
  Expr* left = parse_power();
  for (;;) {
    if (skip_op("*"))
      left = binary(Op::kMultiply, left, parse_power());
    else if (skip_op("/"))
      left = binary(Op::kDivide, left, parse_power());
    else if (skip_op("//"))
      left = binary(Op::kFloorDivide, left, parse_power());
    else if (skip_op("%"))
      left = binary(Op::kModulo, left, parse_power());
    else
      return left;
  }
}

Expr* Parser::parse_power() {
  Expr* left = parse_unary();
  while (skip_op("**")) left = binary(Op::kPower, left, parse_unary());
  return left;
}

Expr* Parser::parse_unary(bool with_filter) {
  const Depth depth(depth_);
  if (!nest()) return const_expr({}, 0);
  Expr* expr;
  const uint32_t line = current().line;
  if (skip_op("-"))
    expr = make<UnaryExpr>(Expr{ExprKind::kNegative, line}, parse_unary(false));
  else if (skip_op("+"))
    expr = make<UnaryExpr>(Expr{ExprKind::kPositive, line}, parse_unary(false));
  else
    expr = parse_primary();
  expr = parse_postfix(expr);
  return with_filter ? parse_filters(expr) : expr;
}

Expr* Parser::parse_primary() {
  const Token& token = current();
  const uint32_t line = token.line;
  switch (token.kind) {
    case TokenKind::kName: {
      const std::string_view name = take().text;
      if (name == "true" || name == "True") return const_expr(bool_value(true), line);
      if (name == "false" || name == "False") return const_expr(bool_value(false), line);
      if (name == "none" || name == "None") return const_expr(none_value(), line);
      return name_expr(name, line);
    }
    case TokenKind::kString: {
      std::string text;
      size_t pieces = 0;
      std::string_view only = token.text;
      for (; at(TokenKind::kString); ++pieces) text += take().text;
      if (pieces > 1) only = program_.arena.copy(text);
      return const_expr(string_value(only, Value::kTemplate), line);
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return const_expr(take().value, line);
    default:
      break;
  }
  if (skip_op("(")) {
    Expr* expr = parse_tuple(true, {}, true);
    expect_op(")");
    return expr;
  }
  if (token.is("[")) return parse_list();
  if (token.is("{")) return parse_dict();
  fail(at(TokenKind::kPrintEnd) || at(TokenKind::kBlockEnd) ? "expected an expression, got " + describe(token)
                                                            : "unexpected " + describe(token));
  return const_expr({}, line);
}

bool Parser::at_tuple_end(Names ends) const {
  if (at(TokenKind::kPrintEnd) || at(TokenKind::kBlockEnd) || current().is(")")) return true;
  return at(TokenKind::kName) && std::find(ends.begin(), ends.end(), current().text) != ends.end();
}

Expr* Parser::parse_tuple(bool conditional, Names ends, bool parentheses) {
  const uint32_t line = current().line;
  std::vector<Expr*> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect_op(",");
    if (at_tuple_end(ends) || failed()) break;
    items.push_back(parse_expression(conditional));
    if (!current().is(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return items[0];
    if (!parentheses) fail("expected an expression, got " + describe(current()));
  }
  return make<SequenceExpr>(Expr{ExprKind::kTuple, line}, keep(items));
}

Expr* Parser::parse_list() {
  const uint32_t line = take().line;
  std::vector<Expr*> items;
  while (!current().is("]") && !failed()) {
    if (!items.empty()) expect_op(",");
    if (current().is("]")) break;
    items.push_back(parse_expression());
  }
  expect_op("]");
  return make<SequenceExpr>(Expr{ExprKind::kList, line}, keep(items));
}

Expr* Parser::parse_dict() {
  const uint32_t line = take().line;
  std::vector<Expr*> keys, values;
  while (!current().is("}") && !failed()) {
    if (!keys.empty()) expect_op(",");
    if (current().is("}")) break;
    keys.push_back(parse_expression());
    expect_op(":");
    values.push_back(parse_expression());
  }
  expect_op("}");
  return make<DictExpr>(Expr{ExprKind::kDict, line}, keep(keys), keep(values));
}

Expr* Parser::parse_postfix(Expr* expr) {
  for (;;) {
    if (skip_op("."))
      expr = parse_attribute(expr);
    else if (skip_op("["))
      expr = parse_subscript(expr);
    else if (current().is("("))
      expr = parse_call(expr);
    else
      return expr;
  }
}

Expr* Parser::parse_attribute(Expr* object) {
  const Token& token = take();
  if (token.kind == TokenKind::kName)
    return make<AttributeExpr>(Expr{ExprKind::kAttribute, token.line}, object,
                               string_value(token.text, Value::kTemplate), methods_of_name(token.text));
  if (token.kind != TokenKind::kInteger) fail("expected name or number, got " + describe(token));
  return make<ItemExpr>(Expr{ExprKind::kItem, token.line}, object, const_expr(token.value, token.line));
}

Expr* Parser::parse_subscript(Expr* object) {
  const uint32_t line = current().line;
  Expr* parts[3] = {nullptr, nullptr, nullptr};
  int colons = 0;
  std::vector<Expr*> indices;
  while (!current().is("]") && !failed()) {
    if (!indices.empty()) expect_op(",");
    if (!current().is(":")) parts[0] = parse_expression();
    while (colons < 2 && skip_op(":")) {
      ++colons;
      if (!current().is(":") && !current().is("]") && !current().is(",")) parts[colons] = parse_expression();
    }
    if (colons > 0) break;
    indices.push_back(parts[0]);
  }
  if (colons > 0 && (current().is(",") || !indices.empty()))
    fail("a slice among several subscripts is not supported", Code::kUnsupported);
  expect_op("]");
  if (colons > 0) return make<SliceExpr>(Expr{ExprKind::kSlice, line}, object, parts[0], parts[1], parts[2]);
  Expr* index =
      indices.size() == 1 ? indices[0] : make<SequenceExpr>(Expr{ExprKind::kTuple, line}, keep(indices));
  return make<ItemExpr>(Expr{ExprKind::kItem, line}, object, index);
}

Expr* Parser::parse_call(Expr* callee) {
  const uint32_t line = current().line;
  return make<CallExpr>(Expr{ExprKind::kCall, line}, callee, parse_arguments());
}

CallArguments Parser::parse_arguments() {
  CallArguments arguments;
  std::vector<Expr*> positional;
  std::vector<NamedExpr> named;
  expect_op("(");
  for (bool first = true; !current().is(")") && !failed(); first = false) {
    if (!first) expect_op(",");
    if (current().is(")")) break;
    bool in_order = arguments.double_star == nullptr;
    if (skip_op("*")) {
      in_order = in_order && arguments.star == nullptr;
      arguments.star = parse_expression();
    } else if (skip_op("**")) {
      arguments.double_star = parse_expression();
    } else if (at(TokenKind::kName) && look().is("=")) {
      const std::string_view name = take().text;
      take();
      for (const NamedExpr& other : named)
        if (other.name == name) fail("keyword argument repeated: " + std::string(name));
      named.push_back({name, parse_expression()});
    } else {
      in_order = in_order && arguments.star == nullptr && named.empty();
      positional.push_back(parse_expression());
    }
    if (!in_order) fail("invalid syntax for function call expression");
  }
  expect_op(")");
  arguments.positional = keep(positional);
  arguments.named = keep(named);
  return arguments;
}

Expr* Parser::parse_filters(Expr* expr) {
  for (;;) {
    if (skip_op("|"))
      expr = parse_filter(expr);
    else if (skip_name("is"))
      expr = parse_test(expr);
    else if (current().is("("))
      expr = parse_call(expr);
    else
      return expr;
  }
}

Expr* Parser::parse_filter(Expr* input) {
  const uint32_t line = current().line;
  std::string name(expect_name("a filter's name"));
  while (skip_op(".")) name += "." + std::string(expect_name("a filter's name"));
  const Builtin* filter = find_filter(name);
  if (filter == nullptr) fail("no filter named '" + name + "'", Code::kUnsupported);
  CallArguments arguments;
  if (current().is("(")) arguments = parse_arguments();
  return make<ApplyExpr>(Expr{ExprKind::kFilter, line}, input, filter, arguments);
}

Expr* Parser::parse_test(Expr* input) {
  const uint32_t line = current().line;
  const bool negated = skip_name("not");
  std::string name(expect_name("a test's name"));
  while (skip_op(".")) name += "." + std::string(expect_name("a test's name"));
  const Builtin* test = find_test(name);
  if (test == nullptr) fail("no test named '" + name + "'", Code::kUnsupported);
  CallArguments arguments;
  const Token& next = current();
  const bool operand = next.kind == TokenKind::kName || next.kind == TokenKind::kString ||
                       next.kind == TokenKind::kInteger || next.kind == TokenKind::kFloat || next.is("[") ||
                       next.is("{");
  if (next.is("(")) {
    arguments = parse_arguments();
  } else if (operand && !next.is_name("else") && !next.is_name("or") && !next.is_name("and")) {
    if (next.is_name("is")) fail("you cannot chain multiple tests with is");
    arguments.positional = keep(std::vector<Expr*>{parse_postfix(parse_primary())});
  }
  Expr* expr = make<ApplyExpr>(Expr{ExprKind::kTest, line}, input, test, arguments);
  return negated ? make<UnaryExpr>(Expr{ExprKind::kNot, line}, expr) : expr;
}

}  // namespace ringmaster::tokenizer_worker::jinja
