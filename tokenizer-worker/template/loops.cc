#include "tokenizer-worker/template/evaluator.h"

namespace ringmaster::tokenizer_worker::jinja {

void Evaluator::run_for(const ForStmt& stmt, const Value& iterable, int depth, Scope* outside) {
  if (box_.failed()) return;
  LoopState* loop = box_.arena.make<LoopState>();
  loop->stmt = &stmt;
  loop->outside = outside;
  loop->depth = depth;
  loop->cursor = Cursor(box_, iterable);
  Value self{Kind::kLoop, Value::kTemplate};
  self.loop = loop;
  Scope* before = scope_;
  Scope* inside = box_.arena.make<Scope>(outside);
  for (Value item; next_item(*loop, item);) {
    if (inside->captured) inside = box_.arena.make<Scope>(outside);
    inside->size = 0;
    scope_ = inside;
    bind(inside, program_.loop, self);
    assign(stmt.target, item);
    if (box_.failed() || run_body(stmt.body) == Flow::kBreak || box_.failed()) break;
  }
  scope_ = outside;
  if (loop->index < 0 && !box_.failed() && !stmt.otherwise.empty()) {
    scope_ = box_.arena.make<Scope>(outside);
    run_body(stmt.otherwise);
  }
  scope_ = before;
}

bool Evaluator::passes(const LoopState& loop, const Value& item) {
  if (loop.stmt->filter == nullptr) return true;
  Scope* before = std::exchange(scope_, box_.arena.make<Scope>(loop.outside));
  assign(loop.stmt->target, item);
  const bool pass = truthy(eval(*loop.stmt->filter));
  scope_ = before;
  return pass && !box_.failed();
}

bool Evaluator::peek(LoopState& loop) {
  while (!loop.has_peeked && loop.cursor.next(box_, loop.peeked)) loop.has_peeked = passes(loop, loop.peeked);
  return loop.has_peeked;
}

bool Evaluator::next_item(LoopState& loop, Value& item) {
  if (!peek(loop) || box_.failed()) return false;
  loop.has_peeked = false;
  loop.previous = loop.item;
  loop.item = item = loop.peeked;
  ++loop.index;
  return true;
}

// Items in all. Where only walking tells, the rest is walked now and kept.
int64_t Evaluator::loop_length(LoopState& loop) {
  const int64_t known = loop.index + 1 + (loop.has_peeked ? 1 : 0);
  if (loop.stmt->filter == nullptr && loop.cursor.remaining() >= 0) return known + loop.cursor.remaining();
  std::vector<Value> rest;
  for (Value item; loop.cursor.next(box_, item) && box_.room_for_items(rest.size());)
    if (passes(loop, item)) rest.push_back(item);
  // What is left has passed the filter already, so it is handed out through `kept`.
  if (loop.has_peeked) rest.insert(rest.begin(), loop.peeked);
  loop.has_peeked = false;
  ForStmt* kept = box_.arena.make<ForStmt>(*loop.stmt);
  kept->filter = nullptr;
  loop.stmt = kept;
  const Value list = box_.make_list(rest);
  loop.cursor = Cursor(box_, list);
  return loop.index + 1 + static_cast<int64_t>(rest.size());
}

namespace {

Value cycle(Sandbox& box, const Value& self, const Slots&, const Arguments& all) {
  if (all.positional.empty()) return box.fail("no items for cycling given");
  return all.positional[static_cast<size_t>(self.loop->index) % all.positional.size()];
}

Value changed(Sandbox& box, const Value& self, const Slots&, const Arguments& all) {
  const Value now =
      box.make_list(std::vector<Value>(all.positional.begin(), all.positional.end()), Kind::kTuple);
  const bool first = !self.loop->changed.is(Kind::kTuple);
  const bool differs = first || !equal(box, self.loop->changed, now);
  if (differs) self.loop->changed = now;
  return bool_value(differs);
}

constexpr Builtin kCycle{"cycle", cycle, Builtin::kAny, {}};
constexpr Builtin kChanged{"changed", changed, Builtin::kAny, {}};

}  // namespace

Value Evaluator::loop_attribute(const Value& value, const Value& name) {
  LoopState& loop = *value.loop;
  const std::string_view text = name.str();
  const auto hint = [&](std::string_view why) {
    return box_.make_undefined(Undefined::kHint, value, string_value(why, Value::kTemplate));
  };
  if (text == "index") return int_value(loop.index + 1);
  if (text == "index0") return int_value(loop.index);
  if (text == "first") return bool_value(loop.index == 0);
  if (text == "last") return bool_value(!peek(loop));
  if (text == "length") return int_value(loop_length(loop));
  if (text == "revindex") return int_value(loop_length(loop) - loop.index);
  if (text == "revindex0") return int_value(loop_length(loop) - loop.index - 1);
  if (text == "depth") return int_value(loop.depth + 1);
  if (text == "depth0") return int_value(loop.depth);
  if (text == "previtem") return loop.index > 0 ? loop.previous : hint("there is no previous item");
  if (text == "nextitem") return peek(loop) ? loop.peeked : hint("there is no next item");
  if (text == "cycle" || text == "changed") {
    Value method{Kind::kMethod, Value::kTemplate};
    method.method = box_.arena.make<Method>(value, text == "cycle" ? &kCycle : &kChanged);
    return method;
  }
  return get_attribute(box_, value, name);
}

}  // namespace ringmaster::tokenizer_worker::jinja
