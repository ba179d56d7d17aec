#include "tokenizer-worker/template/parser.h"

#include <algorithm>

namespace ringmaster::tokenizer_worker::jinja {

Status Parser::run() {
  program_.loop = program_.id("loop");
  program_.caller = program_.id("caller");
  program_.varargs = program_.id("varargs");
  program_.kwargs = program_.id("kwargs");
  program_.body = parse_body({});
  if (!failed() && !at(TokenKind::kEnd)) fail("unexpected " + describe(current()));
  if (!failed() && program_.arena.over_limit()) fail("the chat template is too large", Code::kTooLarge);
  if (failed()) return error_;
  return ok_status();
}

const Token& Parser::take() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::skip_op(std::string_view op) {
  if (!current().is(op)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

bool Parser::expect_op(std::string_view op) {
  if (skip_op(op)) return true;
  fail("expected '" + std::string(op) + "', got " + describe(current()));
  return false;
}

bool Parser::expect(TokenKind kind, std::string_view what) {
  if (at(kind)) return take(), true;
  fail("expected " + std::string(what) + ", got " + describe(current()));
  return false;
}

std::string_view Parser::expect_name(std::string_view what) {
  if (at(TokenKind::kName)) return take().text;
  fail("expected " + std::string(what) + ", got " + describe(current()));
  return "?";
}

void Parser::fail(std::string message, Code code) {
  if (failed()) return;
  error_ = {code, std::move(message) + " (line " + std::to_string(current().line) + " of the chat template)"};
  at_ = tokens_.size() - 1;
}

bool Parser::nest() {
  if (depth_ > kMaxNesting)
    fail("nested deeper than " + std::to_string(kMaxNesting) + " levels", Code::kTooLarge);
  return !failed();
}

bool Parser::is_end_of(Names ends) const {
  return at(TokenKind::kName) && std::find(ends.begin(), ends.end(), current().text) != ends.end();
}

Body Parser::parse_body(Names ends) {
  std::vector<Stmt*> body;
  const Depth depth(depth_);
  if (!nest()) return {};
  while (!at(TokenKind::kEnd)) {
    const Token& token = take();
    if (token.kind == TokenKind::kData) {
      body.push_back(make<TextStmt>(Stmt{StmtKind::kText, token.line}, token.text));
    } else if (token.kind == TokenKind::kPrintBegin) {
      body.push_back(parse_print_tag());
    } else {  // the lexer puts nothing else between tags
      if (is_end_of(ends)) break;
      body.push_back(parse_statement());
      expect(TokenKind::kBlockEnd, "end of statement block");
    }
  }
  if (failed()) return {};
  return keep(body);
}

Body Parser::parse_block(Names ends) {
  skip_op(":");
  expect(TokenKind::kBlockEnd, "end of statement block");
  const Body body = parse_body(ends);
  if (at(TokenKind::kEnd)) {
    std::string names;
    for (const std::string_view name : ends)
      names += (names.empty() ? "'" : " or '") + std::string(name) + "'";
    fail("unexpected end of template; expected " + names);
  }
  return body;
}

Stmt* Parser::parse_print_tag() {
  const uint32_t line = current().line;
  Expr* expr = parse_tuple();
  expect(TokenKind::kPrintEnd, "end of print statement");
  return make<PrintStmt>(Stmt{StmtKind::kPrint, line}, keep(std::vector<Expr*>{expr}));
}

Stmt* Parser::parse_statement() {
  static constexpr std::pair<std::string_view, Stmt* (Parser::*)()> kTags[] = {
      {"if", &Parser::parse_if},
      {"for", &Parser::parse_for},
      {"set", &Parser::parse_set},
      {"macro", &Parser::parse_macro},
      {"call", &Parser::parse_call_block},
      {"filter", &Parser::parse_filter_block},
      {"with", &Parser::parse_with},
      {"block", &Parser::parse_named_block},
      {"generation", &Parser::parse_generation},
      {"print", &Parser::parse_print},
      {"break", &Parser::parse_loop_control},
      {"continue", &Parser::parse_loop_control},
  };
  if (at(TokenKind::kName)) {
    const std::string_view name = current().text;
    for (const auto& [tag, parse] : kTags)
      if (tag == name) return (this->*parse)();
    for (const std::string_view other : {"include", "import", "from", "extends", "autoescape"})
      if (other == name)
        fail("tag '" + std::string(name) + "' is not supported in chat templates", Code::kUnsupported);
    fail("unknown tag '" + std::string(name) + "'", Code::kUnsupported);
  }
  fail("expected a tag's name, got " + describe(current()));
  return make<Stmt>(StmtKind::kText, current().line);
}

Stmt* Parser::parse_if() {
  const uint32_t line = take().line;
  std::vector<Branch> branches;
  Expr* test = parse_tuple(false);
  for (;;) {
    branches.push_back({test, parse_block({"elif", "else", "endif"})});
    if (skip_name("elif")) {
      test = parse_tuple(false);
    } else if (skip_name("else")) {
      branches.push_back({nullptr, parse_block({"endif"})});
      take();
      break;
    } else {
      take();
      break;
    }
  }
  return make<IfStmt>(Stmt{StmtKind::kIf, line}, keep(branches));
}

Stmt* Parser::parse_for() {
  ForStmt* loop = make<ForStmt>(Stmt{StmtKind::kFor, take().line});
  loop->target = parse_target({"in"});
  if (loop->target.name == "loop") fail("cannot assign to the special loop variable");
  if (!skip_name("in")) fail("expected 'in', got " + describe(current()));
  loop->iterable = parse_tuple(false, {"recursive"});
  loop->filter = skip_name("if") ? parse_expression() : nullptr;
  loop->recursive = skip_name("recursive");
  ++loops_;
  loop->body = parse_block({"endfor", "else"});
  --loops_;
  if (take().is_name("else")) {
    loop->otherwise = parse_block({"endfor"});
    take();
  }
  return loop;
}

Stmt* Parser::parse_set() {
  const uint32_t line = take().line;
  const Target target = parse_target();
  if (skip_op("=")) return make<SetStmt>(Stmt{StmtKind::kSet, line}, target, parse_tuple());
  Expr* filter = nullptr;
  while (skip_op("|")) filter = parse_filter(filter);
  const Body body = parse_block({"endset"});
  take();
  return make<SetBlockStmt>(Stmt{StmtKind::kSetBlock, line}, target, filter, body);
}

Target Parser::parse_single_target() {
  Target target{Target::kName};
  target.name = expect_name("a name to assign to");
  for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"})
    if (target.name == reserved) fail("cannot assign to '" + std::string(reserved) + "'");
  target.id = program_.id(target.name);
  if (skip_op(".")) {
    target.kind = Target::kNamespace;
    target.attribute = expect_name("an attribute's name");
  }
  return target;
}

Target Parser::parse_target(Names ends) {
  const Depth depth(depth_);
  if (!nest()) return {Target::kName};
  std::vector<Target> items;
  bool is_tuple = false;
  for (;;) {
    if (at_tuple_end(ends)) break;
    if (skip_op("(")) {
      items.push_back(parse_target());
      expect_op(")");
    } else {
      items.push_back(parse_single_target());
    }
    if (failed() || !skip_op(",")) break;
    is_tuple = true;
  }
  if (items.empty()) fail("expected a name to assign to, got " + describe(current()));
  if (!is_tuple) return items.empty() ? Target{Target::kName} : items[0];
  Target target{Target::kTuple};
  target.items = keep(items);
  return target;
}

std::vector<Parameter> Parser::parse_signature() {
  std::vector<Parameter> parameters;
  expect_op("(");
  while (!current().is(")") && !failed()) {
    if (!parameters.empty()) expect_op(",");
    const std::string_view name = expect_name("a parameter's name");
    Expr* fallback = nullptr;
    if (skip_op("="))
      fallback = parse_expression();
    else if (!parameters.empty() && parameters.back().fallback != nullptr)
      fail("non-default argument follows default argument");
    parameters.push_back({program_.id(name), name, fallback});
  }
  expect_op(")");
  return parameters;
}

template <typename F>
MacroStmt* Parser::parse_macro_body(std::string_view name, std::vector<Parameter> parameters, F parse_body) {
  MacroStmt* macro =
      make<MacroStmt>(Stmt{StmtKind::kMacro, current().line}, program_.id(name), name, keep(parameters));
  const bool outer[] = {uses_varargs_, uses_kwargs_, uses_caller_};
  const int outer_loops = loops_;
  uses_varargs_ = uses_kwargs_ = uses_caller_ = false;
  loops_ = 0;
  macro->body = parse_body();
  macro->uses_varargs = uses_varargs_;
  macro->uses_kwargs = uses_kwargs_;
  macro->uses_caller = uses_caller_;
  uses_varargs_ = outer[0], uses_kwargs_ = outer[1], uses_caller_ = outer[2];
  loops_ = outer_loops;
  return macro;
}

Stmt* Parser::parse_macro() {
  take();
  const std::string_view name = expect_name("a macro's name");
  std::vector<Parameter> parameters = parse_signature();
  MacroStmt* macro = parse_macro_body(name, std::move(parameters), [&] { return parse_block({"endmacro"}); });
  take();
  return macro;
}

Stmt* Parser::parse_call_block() {
  const uint32_t line = take().line;
  std::vector<Parameter> parameters;
  if (current().is("(")) parameters = parse_signature();
  Expr* call = parse_expression();
  if (call->kind != ExprKind::kCall) fail("expected a call behind 'call'");
  MacroStmt* caller =
      parse_macro_body("caller", std::move(parameters), [&] { return parse_block({"endcall"}); });
  take();
  return make<CallBlockStmt>(Stmt{StmtKind::kCallBlock, line},
                             failed() ? nullptr : static_cast<CallExpr*>(call), caller);
}

Stmt* Parser::parse_filter_block() {
  const uint32_t line = take().line;
  Expr* filter = parse_filter(nullptr);
  while (skip_op("|")) filter = parse_filter(filter);
  const Body body = parse_block({"endfilter"});
  take();
  return make<FilterBlockStmt>(Stmt{StmtKind::kFilterBlock, line}, filter, body);
}

Stmt* Parser::parse_with() {
  const uint32_t line = take().line;
  std::vector<Target> targets;
  std::vector<Expr*> values;
  while (!at(TokenKind::kBlockEnd) && !failed()) {
    if (!targets.empty()) expect_op(",");
    targets.push_back(parse_target());
    expect_op("=");
    values.push_back(parse_expression());
  }
  const Body body = parse_block({"endwith"});
  take();
  return make<WithStmt>(Stmt{StmtKind::kWith, line}, keep(targets), keep(values), body);
}

Stmt* Parser::parse_named_block() {
  const uint32_t line = take().line;
  const std::string_view name = expect_name("a block's name");
  for (const std::string_view other : blocks_)
    if (other == name) fail("block '" + std::string(name) + "' defined twice");
  blocks_.push_back(name);
  const bool scoped = skip_name("scoped");
  if (skip_name("required"))
    fail("a required block needs template inheritance, which is not supported", Code::kUnsupported);
  const int outer_loops = loops_;
  loops_ = 0;
  const Body body = parse_block({"endblock"});
  loops_ = outer_loops;
  take();
  skip_name(name);
  return make<ScopeStmt>(Stmt{StmtKind::kScope, line}, body, scoped);
}

Stmt* Parser::parse_generation() {
  const uint32_t line = take().line;
  const int outer_loops = loops_;
  loops_ = 0;
  const Body body = parse_block({"endgeneration"});
  loops_ = outer_loops;
  take();
  return make<ScopeStmt>(Stmt{StmtKind::kScope, line}, body, true);
}

Stmt* Parser::parse_print() {
  const uint32_t line = take().line;
  std::vector<Expr*> items;
  while (!at(TokenKind::kBlockEnd) && !failed()) {
    if (!items.empty()) expect_op(",");
    items.push_back(parse_expression());
  }
  return make<PrintStmt>(Stmt{StmtKind::kPrint, line}, keep(items));
}

Stmt* Parser::parse_loop_control() {
  const Token& token = take();
  if (loops_ == 0) fail("'" + std::string(token.text) + "' outside of a loop");
  return make<Stmt>(token.text == "break" ? StmtKind::kBreak : StmtKind::kContinue, token.line);
}

Result<Program> parse(std::string_view source) {
  Program program;
  auto tokens = tokenize(source, program.arena);
  if (!tokens) return std::move(tokens).error();
  if (auto ok = Parser(program, std::move(tokens).value()).run(); !ok) return std::move(ok).error();
  return program;
}

}  // namespace ringmaster::tokenizer_worker::jinja
