#include <algorithm>
#include <cmath>

#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/print.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

constexpr const char* kTooDeep = "values nested too deep to be compared";

int sign(std::string_view a, std::string_view b) {
  const int order = a.compare(b);
  return order < 0 ? -1 : order > 0 ? 1 : 0;
}

// As long double, which holds every int64 and every double exactly.
int order_numbers(const Value& a, const Value& b) {
  if (a.is_int() && b.is_int()) {
    const Int x = to_int(a), y = to_int(b);
    return x < y ? -1 : x > y ? 1 : 0;
  }
  const auto wide = [](const Value& v) {
    return v.is(Kind::kFloat) ? static_cast<long double>(v.real) : static_cast<long double>(to_int(v));
  };
  return wide(a) < wide(b) ? -1 : wide(a) > wide(b) ? 1 : 0;
}

bool is_nan(const Value& v) {
  return v.is(Kind::kFloat) && std::isnan(v.real);
}

bool equal_at(Sandbox& box, const Value& a, const Value& b, int depth);

bool equal_dicts(Sandbox& box, const Dict& a, const Dict& b, int depth) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const Entry& entry : a.entries) {
    const Value* other = find_key(box, b, entry.key);
    if (other == nullptr || !equal_at(box, entry.value, *other, depth + 1)) return false;
  }
  return true;
}

// As the sets they are; values() are none.
bool equal_views(Sandbox& box, const View& a, const View& b, int depth) {
  if (a.which != b.which || a.which == View::kValues) return false;
  const Dict &x = *a.dict.dict, &y = *b.dict.dict;
  if (a.which == View::kItems) return equal_dicts(box, x, y, depth);
  return x.entries.size() == y.entries.size() &&
         std::all_of(x.entries.begin(), x.entries.end(),
                     [&](const Entry& e) { return find_key(box, y, e.key) != nullptr; });
}

bool equal_at(Sandbox& box, const Value& a, const Value& b, int depth) {
  if (depth > kMaxValueDepth) return box.fail(kTooDeep), false;
  if (!box.step()) return false;
  if (a.is_number() && b.is_number()) return !is_nan(a) && !is_nan(b) && order_numbers(a, b) == 0;
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kString:
      return a.size == b.size && box.step_bytes(a.size) && a.str() == b.str();
    case Kind::kUndefined:
    case Kind::kNone:
    case Kind::kMissing:
      return true;
    case Kind::kList:
    case Kind::kTuple:
      if (a.size != b.size) return false;
      for (size_t i = 0; i < a.size; ++i)
        if (!equal_at(box, a.items[i], b.items[i], depth + 1)) return false;
      return true;
    case Kind::kDict:
      return equal_dicts(box, *a.dict, *b.dict, depth);
    case Kind::kRange:
      return a.range->size == b.range->size &&
             (a.range->size == 0 ||
              (a.range->start == b.range->start && (a.range->size == 1 || a.range->step == b.range->step)));
    case Kind::kView:
      return a.pointer == b.pointer || equal_views(box, *a.view, *b.view, depth);
    default:
      return a.pointer == b.pointer;
  }
}

int compare_at(Sandbox& box, const Value& a, const Value& b, std::string_view op, int depth) {
  if (depth > kMaxValueDepth) return box.fail(kTooDeep), 0;
  if (!box.step()) return 0;
  if (a.is_number() && b.is_number()) return order_numbers(a, b);
  if (a.is_string() && b.is_string()) return box.step_bytes(std::min(a.size, b.size)), sign(a.str(), b.str());
  if (a.is_sequence() && a.kind == b.kind) {
    for (size_t i = 0; i < std::min(a.size, b.size); ++i)
      if (!equal_at(box, a.items[i], b.items[i], depth + 1))
        return compare_at(box, a.items[i], b.items[i], op, depth + 1);
    return a.size < b.size ? -1 : a.size > b.size ? 1 : 0;
  }
  if (a.is_undefined()) return box.fail(undefined_message(a)), 0;
  if (b.is_undefined()) return box.fail(undefined_message(b)), 0;
  box.fail("'" + std::string(op) + "' not supported between instances of '" + std::string(type_name(a)) +
           "' and '" + std::string(type_name(b)) + "'");
  return 0;
}

std::string_view symbol(Op op) {
  switch (op) {
    case Op::kLess:
      return "<";
    case Op::kLessEqual:
      return "<=";
    case Op::kGreater:
      return ">";
    default:
      return ">=";
  }
}

}  // namespace

bool equal(Sandbox& box, const Value& a, const Value& b) {
  return equal_at(box, a, b, 0);
}

int compare(Sandbox& box, const Value& a, const Value& b, std::string_view op) {
  return compare_at(box, a, b, op, 0);
}

bool holds(Sandbox& box, Op op, const Value& a, const Value& b) {
  switch (op) {
    case Op::kEqual:
      return equal(box, a, b);
    case Op::kNotEqual:
      return !equal(box, a, b);
    case Op::kIn:
      return contains(box, b, a);
    case Op::kNotIn:
      return !contains(box, b, a);
    default:
      break;
  }
  const int order = compare(box, a, b, symbol(op));
  if (is_nan(a) || is_nan(b)) return false;
  if (op == Op::kLess) return order < 0;
  if (op == Op::kLessEqual) return order <= 0;
  return op == Op::kGreater ? order > 0 : order >= 0;
}

bool contains(Sandbox& box, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string())
      return box.fail("'in <string>' requires string as left operand, not " + std::string(type_name(item))),
             false;
    return box.step_bytes(container.size) && container.str().find(item.str()) != std::string_view::npos;
  }
  if (container.is(Kind::kDict)) return find_key(box, *container.dict, item) != nullptr;
  if (!is_iterable(container))
    return box.fail("argument of type '" + std::string(type_name(container)) + "' is not iterable"), false;
  Cursor cursor(box, container);
  for (Value other; cursor.next(box, other);)
    if (equal(box, item, other)) return true;
  return false;
}

const Value* find_key(Sandbox& box, const Dict& dict, const Value& key) {
  if (key.is_string()) {
    box.step(dict.by_name.empty() ? 1 + dict.entries.size() / 16 : 1);
    return dict.find(key.str());
  }
  if (std::string text; !key_text(box, key, text)) return nullptr;
  for (const Entry& entry : dict.entries)
    if (!entry.key.is_string() && equal(box, entry.key, key)) return &entry.value;
  return nullptr;
}

bool key_text(Sandbox& box, const Value& key, std::string& text, int depth) {
  if (depth > kMaxValueDepth) return box.fail(kTooDeep), false;
  if (!box.step_bytes(key.is_string() ? key.size : 1)) return false;
  if (key.is_string()) {
    text += 's' + std::to_string(key.size) + ':';
    text += key.str();
  } else if (key.is_int()) {
    text += 'n' + int_text(to_int(key)) + ';';
  } else if (key.is(Kind::kFloat)) {
    const bool whole = std::floor(key.real) == key.real && std::fabs(key.real) < 1e37;
    text += 'n' + (whole ? int_text(static_cast<Int>(key.real)) : float_text(key.real)) + ';';
  } else if (key.is(Kind::kTuple)) {
    text += 't' + std::to_string(key.size) + ':';
    for (const Value& item : key.list())
      if (!key_text(box, item, text, depth + 1)) return false;
  } else if (key.is(Kind::kList) || key.is(Kind::kDict) || key.is(Kind::kView)) {
    box.fail("unhashable type: '" + std::string(type_name(key)) + "'");
    return false;
  } else if (key.is_none()) {
    text += '0';
  } else if (key.is_undefined()) {
    text += 'u';
  } else {
    text += 'p' + std::to_string(reinterpret_cast<uintptr_t>(key.pointer)) + ';';
  }
  return true;
}

bool DictBuilder::set(Sandbox& box, const Value& key, const Value& value) {
  std::string text;
  if (!key_text(box, key, text)) return false;
  const auto at = std::lower_bound(sorted_.begin(), sorted_.end(), text,
                                   [](const auto& e, const std::string& t) { return e.first < t; });
  if (at != sorted_.end() && at->first == text) {
    entries_[at->second].value = value;
    return true;
  }
  if (!box.step(1 + sorted_.size() / 64)) return false;
  sorted_.insert(at, {std::move(text), static_cast<uint32_t>(entries_.size())});
  entries_.push_back({key, value});
  return true;
}

Value DictBuilder::finish(Sandbox& box, uint8_t flags) {
  if (!box.room_for_items(entries_.size())) return {};
  return make_dict(box.arena, entries_, flags);
}

}  // namespace ringmaster::tokenizer_worker::jinja
