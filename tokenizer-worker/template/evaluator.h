// Runs a compiled template once: variables in scopes, control flow, macros, loops. The meaning of operators
// and builtins lies in operators.h and builtins.h. One render, one thread; lives on the stack of
// ChatTemplate::render.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/program.h"
#include "tokenizer-worker/template/text.h"

namespace ringmaster::tokenizer_worker::jinja {

struct Binding {
  NameId name;
  Value value;
};
// The names set in a loop body, a macro, a block... The outermost scope is Evaluator::globals_ instead.
struct Scope {
  Scope* parent = nullptr;
  Binding* bindings = nullptr;
  uint32_t size = 0;
  uint32_t capacity = 0;
  bool captured = false;  // a macro defined inside refers to it
};

struct LoopState {
  const ForStmt* stmt = nullptr;
  Scope* outside = nullptr;  // of the loop
  int depth = 0;
  Cursor cursor;
  int64_t index = -1;  // of the current item
  Value previous, item, peeked;
  bool has_peeked = false;
  Value changed;  // what loop.changed was last asked about
};

class Evaluator {
 public:
  Evaluator(const Program& program, Sandbox& box);
  void set(NameId name, const Value& value) { globals_[name] = value; }
  // What was set last; for expressions of templates that set names for others to read, and for tests.
  const Value& get(NameId name) const { return globals_[name]; }
  void run(TextBuilder& out);
  // Of the statement that ran last: where an error happened.
  uint32_t line() const { return line_; }

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  // evaluator.cc: statements
  Flow run_body(Body body);
  Flow run_stmt(const Stmt& stmt);
  Flow run_if(const IfStmt& stmt);
  void run_set_block(const SetBlockStmt& stmt);
  void run_with(const WithStmt& stmt);
  Flow run_scoped(const ScopeStmt& stmt);
  void print(const Expr& expr);
  void emit(const Value& value);
  void assign(const Target& target, const Value& value);
  void bind(Scope* scope, NameId name, const Value& value);
  Value capture(Body body, Scope* scope);

  // loops.cc
  void run_for(const ForStmt& stmt, const Value& iterable, int depth, Scope* outside);
  bool next_item(LoopState& loop, Value& item);
  bool peek(LoopState& loop);
  bool passes(const LoopState& loop, const Value& item);
  int64_t loop_length(LoopState& loop);
  Value loop_attribute(const Value& loop, const Value& name);

  // calls.cc
  Value eval_call(const CallExpr& call, const MacroStmt* caller = nullptr);
  Value call(const Value& callee, const Arguments& arguments);
  Value call_macro(const Macro& macro, const Arguments& arguments);
  bool bind_named(const Macro& macro, const Arguments& arguments, Scope* scope);
  Value call_loop(LoopState& loop, const Arguments& arguments);
  Value call_joiner(Joiner& joiner);
  Arguments eval_arguments(const CallArguments& arguments, const MacroStmt* caller);
  bool spread(const CallArguments& arguments, std::vector<Value>& positional, std::vector<Named>& named);
  Value make_macro(const MacroStmt& stmt);

  // expressions.cc
  Value eval(const Expr& expr);
  Value eval_operation(const Expr& expr);
  Value lookup(const NameExpr& expr);
  Value attribute(const Value& object, const AttributeExpr& expr);
  Value eval_item(const ItemExpr& expr);
  Value eval_slice(const SliceExpr& expr);
  Value eval_sequence(const SequenceExpr& expr);
  Value eval_dict(const DictExpr& expr);
  Value eval_concat(const SequenceExpr& expr);
  Value eval_add(const SequenceExpr& expr);
  Value eval_compare(const CompareExpr& expr);
  Value eval_conditional(const ConditionalExpr& expr);
  Value apply(const ApplyExpr& expr, const Value* block);
  std::span<Value> eval_all(std::span<Expr* const> items);

  const Program& program_;
  Sandbox& box_;
  std::vector<Value> globals_;  // by NameId
  Scope* scope_ = nullptr;
  TextBuilder* out_ = nullptr;
  int depth_ = 0;
  uint32_t line_ = 0;
};

}  // namespace ringmaster::tokenizer_worker::jinja
