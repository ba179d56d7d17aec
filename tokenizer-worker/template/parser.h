// Tokens to tree, by the grammar of Jinja 3.1 with loop controls and {% generation %}. The first error stops
// it: the rest of the tokens is skipped, so that every loop ends. Only parser*.cc include this.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/lexer.h"
#include "tokenizer-worker/template/program.h"

namespace ringmaster::tokenizer_worker::jinja {

class Parser {
 public:
  Parser(Program& program, std::vector<Token> tokens) : program_(program), tokens_(std::move(tokens)) {}
  Status run();

 private:
  // Tokens
  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool at(TokenKind kind) const { return current().kind == kind; }
  const Token& take();
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  bool expect_op(std::string_view op);
  bool expect(TokenKind kind, std::string_view what);
  std::string_view expect_name(std::string_view what);
  void fail(std::string message, Code code = Code::kMalformed);
  bool failed() const { return !error_.message.empty(); }
  // Deeper than the limit fails.
  bool nest();

  // Statements
  using Names = std::initializer_list<std::string_view>;
  Body parse_body(Names ends);
  Body parse_block(Names ends);  // behind the block's head, up to one of these names, which is current then
  Stmt* parse_statement();
  Stmt* parse_print_tag();
  Stmt* parse_if();
  Stmt* parse_for();
  Stmt* parse_set();
  Stmt* parse_macro();
  Stmt* parse_call_block();
  Stmt* parse_filter_block();
  Stmt* parse_with();
  Stmt* parse_named_block();
  Stmt* parse_generation();
  Stmt* parse_print();
  Stmt* parse_loop_control();
  bool is_end_of(Names ends) const;
  Target parse_target(Names ends = {});
  Target parse_single_target();
  std::vector<Parameter> parse_signature();
  template <typename F>
  MacroStmt* parse_macro_body(std::string_view name, std::vector<Parameter> parameters, F parse_body);

  // Expressions
  Expr* parse_expression(bool conditional = true);
  Expr* parse_conditional();
  Expr* parse_or();
  Expr* parse_and();
  Expr* parse_not();
  Expr* parse_compare();
  Expr* parse_sum();
  Expr* parse_concat();
  Expr* parse_product();
  Expr* parse_power();
  Expr* parse_unary(bool with_filter = true);
  Expr* parse_primary();
  Expr* parse_tuple(bool conditional = true, Names ends = {}, bool parentheses = false);
  Expr* parse_list();
  Expr* parse_dict();
  Expr* parse_postfix(Expr* expr);
  Expr* parse_filters(Expr* expr);
  Expr* parse_filter(Expr* input);
  Expr* parse_test(Expr* input);
  Expr* parse_subscript(Expr* object);
  Expr* parse_attribute(Expr* object);
  Expr* parse_call(Expr* callee);
  CallArguments parse_arguments();
  bool at_tuple_end(Names ends) const;
  Expr* name_expr(std::string_view name, uint32_t line);
  Expr* const_expr(Value value, uint32_t line);
  Expr* binary(Op op, Expr* left, Expr* right);

  template <typename T, typename... Args>
  T* make(Args&&... args) {
    return program_.arena.make<T>(std::forward<Args>(args)...);
  }
  template <typename T>
  std::span<T> keep(const std::vector<T>& items) {
    return program_.arena.copy(items);
  }

  Program& program_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  std::vector<std::string_view> blocks_;
  int loops_ = 0;  // around the statement, in the same macro
  bool uses_varargs_ = false, uses_kwargs_ = false, uses_caller_ = false;  // of the macro being parsed
  Error error_{Code::kMalformed, ""};
};

}  // namespace ringmaster::tokenizer_worker::jinja
