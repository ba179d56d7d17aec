#include "tokenizer-worker/template/evaluator.h"

#include <algorithm>

#include "tokenizer-worker/template/print.h"

namespace ringmaster::tokenizer_worker::jinja {

Evaluator::Evaluator(const Program& program, Sandbox& box)
    : program_(program), box_(box), globals_(program.names.size(), kMissingValue) {
  for (const Builtin& function : global_functions())
    if (const auto at = program.ids.find(function.name); at != program.ids.end())
      globals_[at->second] = function_value(&function);
  if (const auto at = program.ids.find("self"); at != program.ids.end())
    globals_[at->second] = Value{Kind::kSelf, Value::kTemplate};
}

void Evaluator::run(TextBuilder& out) {
  out_ = &out;
  run_body(program_.body);
}

Evaluator::Flow Evaluator::run_body(Body body) {
  for (const Stmt* stmt : body) {
    line_ = stmt->line;
    const Flow flow = run_stmt(*stmt);
    if (flow != Flow::kNext || box_.failed()) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_stmt(const Stmt& stmt) {
  if (stmt.kind == StmtKind::kText) {
    const std::string_view text = static_cast<const TextStmt&>(stmt).text;
    if (box_.step_bytes(text.size())) emit(string_value(text, Value::kTemplate));
    return Flow::kNext;
  }
  const Depth depth(depth_);
  if (depth_ > kMaxDepth) box_.fail("maximum recursion depth exceeded");
  if (!box_.step()) return Flow::kNext;
  switch (stmt.kind) {
    case StmtKind::kPrint:
      for (const Expr* item : static_cast<const PrintStmt&>(stmt).items) print(*item);
      break;
    case StmtKind::kIf:
      return run_if(static_cast<const IfStmt&>(stmt));
    case StmtKind::kFor: {
      const auto& loop = static_cast<const ForStmt&>(stmt);
      run_for(loop, eval(*loop.iterable), 0, scope_);
      break;
    }
    case StmtKind::kSet: {
      const auto& set = static_cast<const SetStmt&>(stmt);
      assign(set.target, eval(*set.value));
      break;
    }
    case StmtKind::kSetBlock:
      run_set_block(static_cast<const SetBlockStmt&>(stmt));
      break;
    case StmtKind::kMacro: {
      const auto& macro = static_cast<const MacroStmt&>(stmt);
      bind(scope_, macro.id, make_macro(macro));
      break;
    }
    case StmtKind::kCallBlock: {
      const auto& block = static_cast<const CallBlockStmt&>(stmt);
      emit(eval_call(*block.call, block.caller));
      break;
    }
    case StmtKind::kFilterBlock: {
      const auto& block = static_cast<const FilterBlockStmt&>(stmt);
      const Value text = capture(block.body, box_.arena.make<Scope>(scope_));
      emit(apply(static_cast<const ApplyExpr&>(*block.filter), &text));
      break;
    }
    case StmtKind::kWith:
      run_with(static_cast<const WithStmt&>(stmt));
      break;
    case StmtKind::kScope:
      return run_scoped(static_cast<const ScopeStmt&>(stmt));
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
    case StmtKind::kText:
      break;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_if(const IfStmt& stmt) {
  for (const Branch& branch : stmt.branches)
    if (branch.test == nullptr || truthy(eval(*branch.test)))
      return box_.failed() ? Flow::kNext : run_body(branch.body);
  return Flow::kNext;
}

void Evaluator::run_set_block(const SetBlockStmt& stmt) {
  const Value text = capture(stmt.body, box_.arena.make<Scope>(scope_));
  assign(stmt.target,
         stmt.filter == nullptr ? text : apply(static_cast<const ApplyExpr&>(*stmt.filter), &text));
}

void Evaluator::run_with(const WithStmt& stmt) {
  const std::span<Value> values = eval_all(stmt.values);
  Scope* outside = scope_;
  scope_ = box_.arena.make<Scope>(outside);
  for (size_t i = 0; i < values.size(); ++i) assign(stmt.targets[i], values[i]);
  run_body(stmt.body);
  scope_ = outside;
}

Evaluator::Flow Evaluator::run_scoped(const ScopeStmt& stmt) {
  Scope* outside = scope_;
  scope_ = box_.arena.make<Scope>(stmt.sees_outside ? outside : nullptr);
  const Flow flow = run_body(stmt.body);
  scope_ = outside;
  return flow;
}

// Joined strings go to the output piece by piece: most of what a template prints is 'marker' + content +
// 'marker'.
void Evaluator::print(const Expr& expr) {
  if (expr.kind == ExprKind::kConcat) {
    for (const Expr* item : static_cast<const SequenceExpr&>(expr).items) emit(eval(*item));
    return;
  }
  if (expr.kind != ExprKind::kAdd) return emit(eval(expr));
  const std::span<Value> items = eval_all(static_cast<const SequenceExpr&>(expr).items);
  if (box_.failed()) return;
  if (std::all_of(items.begin(), items.end(),
                  [](const Value& v) { return v.is_string() && !v.has(Value::kMarkup); })) {
    for (const Value& item : items) emit(item);
    return;
  }
  Value sum = items[0];
  for (size_t i = 1; i < items.size(); ++i) sum = add(box_, sum, items[i]);
  emit(sum);
}

void Evaluator::emit(const Value& value) {
  if (box_.failed()) return;
  if (value.is_undefined()) return;
  const Value text = to_string(box_, value);
  if (box_.failed() || !box_.step_bytes(text.size)) return;
  if (out_->size() + text.size > kMaxTextBytes) {
    box_.fail("the chat template writes more than " + std::to_string(kMaxTextBytes) + " bytes");
    return;
  }
  out_->append(text);
}

void Evaluator::bind(Scope* scope, NameId name, const Value& value) {
  if (scope == nullptr) {
    globals_[name] = value;
    return;
  }
  for (uint32_t i = 0; i < scope->size; ++i)
    if (scope->bindings[i].name == name) {
      scope->bindings[i].value = value;
      return;
    }
  if (scope->size == scope->capacity) {
    const uint32_t capacity = std::max(4u, scope->capacity * 2);
    Binding* bindings = box_.arena.array<Binding>(capacity);
    std::copy_n(scope->bindings, scope->size, bindings);
    scope->bindings = bindings;
    scope->capacity = capacity;
  }
  scope->bindings[scope->size++] = {name, value};
}

void Evaluator::assign(const Target& target, const Value& value) {
  if (box_.failed()) return;
  if (target.kind == Target::kName) return bind(scope_, target.id, value);
  if (target.kind == Target::kNamespace) {
    const NameExpr name{{ExprKind::kName, line_}, target.id, target.name};
    const Value space = lookup(name);
    if (!space.is(Kind::kNamespace)) {
      box_.fail("cannot assign attribute on non-namespace object");
      return;
    }
    Namespace& names = *space.names;
    if (Value* old = names.find(target.attribute)) {
      *old = value;
      return;
    }
    if (names.size == names.capacity) {
      names.capacity = std::max(4u, names.capacity * 2);
      Entry* entries = box_.arena.array<Entry>(names.capacity);
      std::copy_n(names.entries, names.size, entries);
      names.entries = entries;
    }
    names.entries[names.size++] = {string_value(target.attribute, Value::kTemplate), value};
    return;
  }
  std::vector<Value> items;
  if (value.is_sequence())
    items.assign(value.list().begin(), value.list().end());
  else if (!collect(box_, value, items))
    return;
  if (items.size() != target.items.size()) {
    box_.fail((items.size() < target.items.size() ? "not enough" : "too many") +
              std::string(" values to unpack (expected ") + std::to_string(target.items.size()) + ", got " +
              std::to_string(items.size()) + ")");
    return;
  }
  for (size_t i = 0; i < items.size(); ++i) assign(target.items[i], items[i]);
}

Value Evaluator::capture(Body body, Scope* scope) {
  TextBuilder text;
  TextBuilder* out = std::exchange(out_, &text);
  Scope* outside = std::exchange(scope_, scope);
  run_body(body);
  out_ = out;
  scope_ = outside;
  return box_.failed() ? Value{} : text.finish(box_);
}

}  // namespace ringmaster::tokenizer_worker::jinja
