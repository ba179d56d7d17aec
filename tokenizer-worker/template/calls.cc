#include <algorithm>

#include "tokenizer-worker/template/evaluator.h"
#include "tokenizer-worker/template/print.h"

namespace ringmaster::tokenizer_worker::jinja {

Value Evaluator::eval_call(const CallExpr& call_expr, const MacroStmt* caller) {
  if (call_expr.callee->kind == ExprKind::kAttribute) {
    const auto& expr = static_cast<const AttributeExpr&>(*call_expr.callee);
    const Value object = eval(*expr.object);
    const Builtin* method = nullptr;
    if (object.is_string()) method = expr.methods.of_string;
    if (object.is(Kind::kList)) method = expr.methods.of_list;
    if (object.is(Kind::kDict)) method = expr.methods.of_dict;
    if (method != nullptr && caller == nullptr) {
      const Arguments arguments = eval_arguments(call_expr.arguments, nullptr);
      return box_.failed() ? Value{} : call_builtin(box_, *method, object, arguments);
    }
    if (box_.failed()) return {};
    const Value callee = attribute(object, expr);
    return call(callee, eval_arguments(call_expr.arguments, caller));
  }
  const Value callee = eval(*call_expr.callee);
  return call(callee, eval_arguments(call_expr.arguments, caller));
}

Value Evaluator::call(const Value& callee, const Arguments& arguments) {
  if (box_.failed()) return {};
  switch (callee.kind) {
    case Kind::kFunction:
      return call_builtin(box_, *callee.function, {}, arguments);
    case Kind::kMethod:
      return call_builtin(box_, *callee.method->builtin, callee.method->self, arguments);
    case Kind::kMacro:
      return call_macro(*callee.macro, arguments);
    case Kind::kLoop:
      return call_loop(*callee.loop, arguments);
    case Kind::kJoiner:
      return call_joiner(*callee.joiner);
    case Kind::kUndefined:
      return box_.fail(undefined_message(callee));
    default:
      return box_.fail("'" + std::string(type_name(callee)) + "' object is not callable");
  }
}

Value Evaluator::call_joiner(Joiner& joiner) {
  if (joiner.used) return joiner.separator;
  joiner.used = true;
  return string_value({}, Value::kTemplate);
}

Value Evaluator::call_loop(LoopState& loop, const Arguments& arguments) {
  if (!loop.stmt->recursive)
    return box_.fail("the loop must have the 'recursive' marker to be called recursively");
  if (arguments.positional.size() != 1 || !arguments.named.empty())
    return box_.fail("loop() takes one argument");
  TextBuilder text;
  TextBuilder* out = std::exchange(out_, &text);
  run_for(*loop.stmt, arguments.positional[0], loop.depth + 1, loop.outside);
  out_ = out;
  return box_.failed() ? Value{} : text.finish(box_);
}

Value Evaluator::make_macro(const MacroStmt& stmt) {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent)
    scope->captured = true;
  Value macro{Kind::kMacro, Value::kTemplate};
  macro.macro = box_.arena.make<Macro>(&stmt, scope_);
  return macro;
}

Value Evaluator::call_macro(const Macro& macro, const Arguments& arguments) {
  const MacroStmt& stmt = *macro.body;
  Scope* scope = box_.arena.make<Scope>(macro.scope);
  const size_t given = std::min(arguments.positional.size(), stmt.parameters.size());
  for (size_t i = 0; i < given; ++i) bind(scope, stmt.parameters[i].id, arguments.positional[i]);
  if (arguments.positional.size() > given && !stmt.uses_varargs)
    return box_.fail("macro '" + std::string(stmt.name) + "' takes not more than " +
                     std::to_string(stmt.parameters.size()) + " argument(s)");
  if (stmt.uses_varargs)
    bind(scope, program_.varargs, sequence_value(Kind::kTuple, arguments.positional.subspan(given)));
  if (!bind_named(macro, arguments, scope)) return {};

  Scope* before = std::exchange(scope_, scope);
  for (size_t i = given; i < stmt.parameters.size(); ++i) {
    const Parameter& parameter = stmt.parameters[i];
    bool bound = false;
    for (const Named& named : arguments.named) bound = bound || named.name == parameter.name;
    if (bound) continue;
    const Value hint = string_value(parameter.name, Value::kTemplate);
    bind(scope, parameter.id,
         parameter.fallback != nullptr ? eval(*parameter.fallback)
                                       : box_.make_undefined(Undefined::kName, {}, hint));
  }
  scope_ = before;
  return box_.failed() ? Value{} : capture(stmt.body, scope);
}

bool Evaluator::bind_named(const Macro& macro, const Arguments& arguments, Scope* scope) {
  const MacroStmt& stmt = *macro.body;
  DictBuilder rest;
  if (stmt.uses_caller)
    bind(scope, program_.caller,
         box_.make_undefined(Undefined::kHint, {}, string_value("no caller defined", Value::kTemplate)));
  for (const Named& named : arguments.named) {
    const auto at = std::find_if(stmt.parameters.begin(), stmt.parameters.end(),
                                 [&](const Parameter& p) { return p.name == named.name; });
    if (at != stmt.parameters.end()) {
      if (static_cast<size_t>(at - stmt.parameters.begin()) < arguments.positional.size())
        return box_.fail("macro '" + std::string(stmt.name) + "' got two values for '" +
                         std::string(named.name) + "'"),
               false;
      bind(scope, at->id, named.value);
    } else if (named.name == "caller" && stmt.uses_caller) {
      bind(scope, program_.caller, named.value);
    } else if (stmt.uses_kwargs) {
      rest.set(box_, string_value(named.name, Value::kTemplate), named.value);
    } else {
      box_.fail("macro '" + std::string(stmt.name) + "' takes no keyword argument '" +
                std::string(named.name) + "'");
      return false;
    }
  }
  if (stmt.uses_kwargs) bind(scope, program_.kwargs, rest.finish(box_));
  return !box_.failed();
}

Arguments Evaluator::eval_arguments(const CallArguments& arguments, const MacroStmt* caller) {
  if (arguments.empty() && caller == nullptr) return {};
  if (arguments.named.empty() && arguments.star == nullptr && arguments.double_star == nullptr &&
      caller == nullptr)
    return {eval_all(arguments.positional), {}};
  std::vector<Value> positional;
  std::vector<Named> named;
  for (const Expr* expr : arguments.positional) positional.push_back(eval(*expr));
  for (const NamedExpr& expr : arguments.named) named.push_back({expr.name, eval(*expr.value)});
  if (!spread(arguments, positional, named)) return {};
  if (caller != nullptr) named.push_back({"caller", make_macro(*caller)});
  return {box_.arena.copy(positional), box_.arena.copy(named)};
}

bool Evaluator::spread(const CallArguments& arguments, std::vector<Value>& positional,
                       std::vector<Named>& named) {
  if (arguments.star != nullptr && !collect(box_, eval(*arguments.star), positional)) return false;
  if (arguments.double_star == nullptr) return !box_.failed();
  const Value rest = eval(*arguments.double_star);
  if (!rest.is(Kind::kDict))
    return box_.fail("argument after ** must be a mapping, not " + std::string(type_name(rest))), false;
  for (const Entry& entry : rest.dict->entries) {
    if (!entry.key.is_string()) return box_.fail("keywords must be strings"), false;
    const bool twice =
        std::any_of(named.begin(), named.end(), [&](const Named& n) { return n.name == entry.key.str(); });
    if (twice)
      return box_.fail("got multiple values for keyword argument '" + std::string(entry.key.str()) + "'"),
             false;
    if (!box_.step(1 + named.size() / 16)) return false;
    named.push_back({entry.key.str(), entry.value});
  }
  return !box_.failed();
}

}  // namespace ringmaster::tokenizer_worker::jinja
