#include <algorithm>

#include "tokenizer-worker/template/evaluator.h"
#include "tokenizer-worker/template/print.h"

namespace ringmaster::tokenizer_worker::jinja {

Value Evaluator::eval(const Expr& expr) {
  if (expr.kind == ExprKind::kConst) return static_cast<const ConstExpr&>(expr).value;
  if (!box_.step()) return {};
  if (expr.kind == ExprKind::kName) return lookup(static_cast<const NameExpr&>(expr));
  const Depth depth(depth_);
  if (depth_ > kMaxDepth) return box_.fail("maximum recursion depth exceeded");
  return eval_operation(expr);
}

Value Evaluator::eval_operation(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kAttribute: {
      const auto& attribute_expr = static_cast<const AttributeExpr&>(expr);
      const Value object = eval(*attribute_expr.object);
      return box_.failed() ? Value{} : attribute(object, attribute_expr);
    }
    case ExprKind::kItem:
      return eval_item(static_cast<const ItemExpr&>(expr));
    case ExprKind::kSlice:
      return eval_slice(static_cast<const SliceExpr&>(expr));
    case ExprKind::kCall:
      return eval_call(static_cast<const CallExpr&>(expr));
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return apply(static_cast<const ApplyExpr&>(expr), nullptr);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return eval_sequence(static_cast<const SequenceExpr&>(expr));
    case ExprKind::kDict:
      return eval_dict(static_cast<const DictExpr&>(expr));
    case ExprKind::kNot:
      return bool_value(!truthy(eval(*static_cast<const UnaryExpr&>(expr).operand)));
    case ExprKind::kNegative:
      return negative(box_, eval(*static_cast<const UnaryExpr&>(expr).operand));
    case ExprKind::kPositive:
      return positive(box_, eval(*static_cast<const UnaryExpr&>(expr).operand));
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      const auto& logic = static_cast<const BinaryExpr&>(expr);
      const Value left = eval(*logic.left);
      return truthy(left) == (expr.kind == ExprKind::kAnd) && !box_.failed() ? eval(*logic.right) : left;
    }
    case ExprKind::kConditional:
      return eval_conditional(static_cast<const ConditionalExpr&>(expr));
    case ExprKind::kCompare:
      return eval_compare(static_cast<const CompareExpr&>(expr));
    case ExprKind::kConcat:
      return eval_concat(static_cast<const SequenceExpr&>(expr));
    case ExprKind::kAdd:
      return eval_add(static_cast<const SequenceExpr&>(expr));
    case ExprKind::kBinary: {
      const auto& operation = static_cast<const BinaryExpr&>(expr);
      const Value left = eval(*operation.left);
      const Value right = eval(*operation.right);
      return box_.failed() ? Value{} : binary(box_, operation.op, left, right);
    }
    case ExprKind::kConst:
    case ExprKind::kName:
      break;
  }
  return {};
}

Value Evaluator::lookup(const NameExpr& expr) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent)
    for (uint32_t i = 0; i < scope->size; ++i)
      if (scope->bindings[i].name == expr.id) return scope->bindings[i].value;
  const Value& global = globals_[expr.id];
  if (!global.missing()) return global;
  return box_.make_undefined(Undefined::kName, {}, string_value(expr.name, Value::kTemplate));
}

Value Evaluator::attribute(const Value& object, const AttributeExpr& expr) {
  // The usual case first: a key of a dict that is no method's name.
  if (object.is(Kind::kDict) && expr.methods.of_dict == nullptr && object.dict->by_name.empty() &&
      object.dict->entries.size() <= 16)
    if (const Value* value = object.dict->find(expr.name.str());
        value != nullptr && !expr.name.str().starts_with("__")) {
      if (!mutates(object, expr.name.str())) return *value;
    }
  if (object.is(Kind::kLoop)) return loop_attribute(object, expr.name);
  return get_attribute(box_, object, expr.name);
}

Value Evaluator::eval_item(const ItemExpr& expr) {
  const Value object = eval(*expr.object);
  const Value key = eval(*expr.index);
  if (box_.failed()) return {};
  if (object.is(Kind::kLoop) && key.is_string()) return loop_attribute(object, key);
  return get_item(box_, object, key);
}

Value Evaluator::eval_slice(const SliceExpr& expr) {
  const Value object = eval(*expr.object);
  const auto bound = [&](const Expr* index) { return index == nullptr ? none_value() : eval(*index); };
  const Value start = bound(expr.start), stop = bound(expr.stop), step = bound(expr.step);
  return box_.failed() ? Value{} : get_slice(box_, object, start, stop, step);
}

std::span<Value> Evaluator::eval_all(std::span<Expr* const> items) {
  Value* values = box_.arena.array<Value>(items.size());
  for (size_t i = 0; i < items.size() && !box_.failed(); ++i) values[i] = eval(*items[i]);
  return {values, items.size()};
}

Value Evaluator::eval_sequence(const SequenceExpr& expr) {
  const Kind kind = expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple;
  return sequence_value(kind, eval_all(expr.items), Value::kTemplate);
}

Value Evaluator::eval_dict(const DictExpr& expr) {
  DictBuilder dict;
  for (size_t i = 0; i < expr.keys.size() && !box_.failed(); ++i) {
    const Value key = eval(*expr.keys[i]);
    dict.set(box_, key, eval(*expr.values[i]));
  }
  return box_.failed() ? Value{} : dict.finish(box_, Value::kTemplate);
}

Value Evaluator::eval_concat(const SequenceExpr& expr) {
  const std::span<Value> items = eval_all(expr.items);
  for (Value& item : items)
    if (!box_.failed()) item = to_string(box_, item);
  return box_.failed() ? Value{} : concat(box_, items);
}

Value Evaluator::eval_add(const SequenceExpr& expr) {
  const std::span<Value> items = eval_all(expr.items);
  if (box_.failed()) return {};
  if (std::all_of(items.begin(), items.end(),
                  [](const Value& v) { return v.is_string() && !v.has(Value::kMarkup); }))
    return concat(box_, items);
  Value sum = items[0];
  for (size_t i = 1; i < items.size() && !box_.failed(); ++i) sum = add(box_, sum, items[i]);
  return sum;
}

Value Evaluator::eval_compare(const CompareExpr& expr) {
  Value left = eval(*expr.first);
  for (const Comparison& comparison : expr.rest) {
    const Value right = eval(*comparison.right);
    if (box_.failed()) return {};
    if (!holds(box_, comparison.op, left, right)) return bool_value(false);
    left = right;
  }
  return bool_value(true);
}

Value Evaluator::eval_conditional(const ConditionalExpr& expr) {
  const bool test = truthy(eval(*expr.test));
  if (box_.failed()) return {};
  if (test) return eval(*expr.then);
  if (expr.otherwise != nullptr) return eval(*expr.otherwise);
  constexpr std::string_view kWhy =
      "the inline if-expression evaluated to false and no else section was defined";
  return box_.make_undefined(Undefined::kHint, {}, string_value(kWhy, Value::kTemplate));
}

Value Evaluator::apply(const ApplyExpr& expr, const Value* block) {
  const Depth depth(depth_);
  if (depth_ > kMaxDepth) return box_.fail("maximum recursion depth exceeded");
  const Value input =
      expr.input != nullptr
          ? (block != nullptr ? apply(static_cast<const ApplyExpr&>(*expr.input), block) : eval(*expr.input))
          : *block;
  const Arguments arguments = eval_arguments(expr.arguments, nullptr);
  return box_.failed() ? Value{} : call_builtin(box_, *expr.builtin, input, arguments);
}

}  // namespace ringmaster::tokenizer_worker::jinja
