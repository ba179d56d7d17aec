// Attributes, subscripts, slices and iteration.
#include <algorithm>

#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/text.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

Value bound(Sandbox& box, const Value& self, const Builtin* method) {
  Value value{Kind::kMethod, Value::kTemplate};
  value.method = box.arena.make<Method>(self, method);
  return value;
}

bool is_dunder(std::string_view name) {
  return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

Value number_attribute(Sandbox& box, const Value& number, std::string_view name) {
  const bool is_float = number.is(Kind::kFloat);
  if (name == "real" || (name == "numerator" && !is_float))
    return is_float ? number : make_int(box, to_int(number), number.flags);
  if (name == "imag") return is_float ? float_value(0) : int_value(0);
  if (name == "denominator" && !is_float) return int_value(1);
  return kMissingValue;
}

Value cycler_next(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  Cycler& cycler = *self.cycler;
  const Value item = cycler.items[cycler.at];
  cycler.at = (cycler.at + 1) % cycler.items.size();
  box.step();
  return item;
}
Value cycler_reset(Sandbox&, const Value& self, const Slots&, const Arguments&) {
  self.cycler->at = 0;
  return none_value();
}
constexpr Builtin kCyclerNext{"next", cycler_next, 0, {}};
constexpr Builtin kCyclerReset{"reset", cycler_reset, 0, {}};

// What belongs to the kind of value and not to its contents; kMissing if nothing has that name.
Value own_attribute(Sandbox& box, const Value& object, std::string_view name) {
  switch (object.kind) {
    case Kind::kString:
      if (const Builtin* method = find_string_method(name)) return bound(box, object, method);
      break;
    case Kind::kTuple:
      if (object.has(Value::kGroup) && name == "grouper") return object.items[0];
      if (object.has(Value::kGroup) && name == "list") return object.items[1];
      [[fallthrough]];
    case Kind::kList:
      if (const Builtin* method = find_list_method(name);
          method != nullptr && (object.is(Kind::kList) || name != "copy"))
        return bound(box, object, method);
      break;
    case Kind::kDict:
      if (const Builtin* method = find_dict_method(name)) return bound(box, object, method);
      break;
    case Kind::kNamespace:
      if (const Value* value = object.names->find(name)) return *value;
      break;
    case Kind::kRange:
      if (name == "start") return int_value(object.range->start);
      if (name == "stop") return int_value(object.range->stop);
      if (name == "step") return int_value(object.range->step);
      break;
    case Kind::kCycler:
      if (name == "current") return object.cycler->items[object.cycler->at];
      if (name == "next") return bound(box, object, &kCyclerNext);
      if (name == "reset") return bound(box, object, &kCyclerReset);
      break;
    case Kind::kMacro:
      if (name == "name") return string_value(object.macro->body->name, Value::kTemplate);
      break;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBig:
    case Kind::kFloat:
      return number_attribute(box, object, name);
    default:
      break;
  }
  return kMissingValue;
}

Value index_sequence(Sandbox& box, const Value& object, const Value& key, int64_t size) {
  const Int index = to_int(key) < 0 ? to_int(key) + size : to_int(key);
  if (index < 0 || index >= size) return box.make_undefined(Undefined::kElement, object, key);
  const size_t at = static_cast<size_t>(index);
  if (object.is_sequence()) return object.items[at];
  if (object.is(Kind::kRange))
    return int_value(object.range->start + static_cast<int64_t>(at) * object.range->step);
  const size_t begin = byte_offset(object.str(), at);
  size_t end = begin;
  next_code_point(object.str(), end);
  return slice_bytes(box, object, begin, end);
}

// Python's slice.indices; false for what cannot be an index.
bool slice_bounds(const Value& start, const Value& stop, int64_t step, int64_t size, int64_t& from,
                  int64_t& to) {
  const auto clamp = [&](const Value& index, int64_t if_none, int64_t& out) {
    if (index.is_none()) return out = if_none, true;
    if (!index.is_int()) return false;
    Int i = to_int(index);
    if (i < 0) i += size;
    const Int low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
    out = static_cast<int64_t>(std::clamp(i, low, std::max(low, high)));
    return true;
  };
  return clamp(start, step < 0 ? size - 1 : 0, from) && clamp(stop, step < 0 ? -1 : size, to);
}

Value slice_string(Sandbox& box, const Value& string, int64_t from, int64_t to, int64_t step) {
  const std::string_view text = string.str();
  if (step == 1) {
    const size_t begin = byte_offset(text, static_cast<size_t>(from));
    const size_t end =
        to <= from ? begin : begin + byte_offset(text.substr(begin), static_cast<size_t>(to - from));
    return slice_bytes(box, string, begin, end);
  }
  std::vector<uint32_t> starts;
  for (size_t at = 0; at < text.size(); next_code_point(text, at))
    starts.push_back(static_cast<uint32_t>(at));
  starts.push_back(static_cast<uint32_t>(text.size()));
  if (!box.step(starts.size())) return {};
  TextBuilder out;
  for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
    out.append_slice(string, starts[static_cast<size_t>(i)], starts[static_cast<size_t>(i) + 1]);
  return out.finish(box);
}

int64_t range_size(int64_t start, int64_t stop, int64_t step) {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

Value slice_range(Sandbox& box, const Range& range, int64_t from, int64_t to, int64_t step) {
  Value value{Kind::kRange, Value::kTemplate};
  const int64_t start = range.start + from * range.step;
  value.range = box.arena.make<Range>(start, range.start + to * range.step, range.step * step,
                                      range_size(from, to, step));
  return value;
}

}  // namespace

Value get_attribute(Sandbox& box, const Value& object, const Value& name) {
  if (object.is_undefined()) return box.fail(undefined_message(object));
  const std::string_view text = name.str();
  if (const Value own = own_attribute(box, object, text); !own.missing()) return own;
  if (is_dunder(text) || mutates(object, text)) return box.make_undefined(Undefined::kUnsafe, object, name);
  if (object.is(Kind::kDict)) {
    box.step(1 + (object.dict->by_name.empty() ? object.dict->entries.size() / 16 : 0));
    if (const Value* value = object.dict->find(text)) return *value;
  }
  return box.make_undefined(Undefined::kAttribute, object, name);
}

Value get_item(Sandbox& box, const Value& object, const Value& key) {
  if (object.is_undefined()) return box.fail(undefined_message(object));
  if (object.is(Kind::kDict) && !key.is_sequence() && !key.is(Kind::kDict)) {
    if (const Value* value = find_key(box, *object.dict, key)) return *value;
  } else if (object.is(Kind::kDict) && key.is(Kind::kTuple)) {
    if (const Value* value = find_key(box, *object.dict, key)) return *value;
  } else if (key.is_int()) {
    if (object.is_sequence()) return index_sequence(box, object, key, object.size);
    if (object.is(Kind::kRange)) return index_sequence(box, object, key, object.range->size);
    if (object.is_string() && box.step_bytes(object.size))
      return index_sequence(box, object, key, static_cast<int64_t>(count_code_points(object.str())));
  }
  if (!key.is_string()) return box.make_undefined(Undefined::kElement, object, key);
  if (const Value own = own_attribute(box, object, key.str()); !own.missing()) return own;
  const bool unsafe = is_dunder(key.str()) || mutates(object, key.str());
  return box.make_undefined(unsafe ? Undefined::kUnsafe : Undefined::kAttribute, object, key);
}

Value get_slice(Sandbox& box, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) return box.fail(undefined_message(object));
  int64_t size = object.size;
  if (object.is_string()) {
    if (!box.step_bytes(object.size)) return {};
    size = static_cast<int64_t>(count_code_points(object.str()));
  } else if (object.is(Kind::kRange)) {
    size = object.range->size;
  }
  int64_t from = 0, to = 0, by = 1;
  bool fits = object.is_string() || object.is_sequence() || object.is(Kind::kRange);
  if (!step.is_none()) {
    fits = fits && step.is_int();
    if (fits && to_int(step) == 0) return box.fail("slice step cannot be zero");
    // A step beyond the size takes one item whatever it is.
    if (fits) by = static_cast<int64_t>(std::clamp<Int>(to_int(step), -size - 1, size + 1));
  }
  // Unlike a subscript, a slice that cannot be taken is an error: Jinja leaves it to Python.
  if (!object.is_string() && !object.is_sequence() && !object.is(Kind::kRange))
    return box.fail("'" + std::string(type_name(object)) + "' object is not subscriptable");
  if (!fits || !slice_bounds(start, stop, by, size, from, to))
    return box.fail("slice indices must be integers or None");

  if (object.is_string()) return slice_string(box, object, from, to, by);
  if (object.is(Kind::kRange)) return slice_range(box, *object.range, from, to, by);
  if (by == 1)
    return sequence_value(
        object.kind,
        object.list().subspan(static_cast<size_t>(from), to > from ? static_cast<size_t>(to - from) : 0),
        object.flags & Value::kTemplate);
  if (!box.step(1 + object.size / 8)) return {};
  std::vector<Value> items;
  for (int64_t i = from; by > 0 ? i < to : i > to; i += by)
    items.push_back(object.items[static_cast<size_t>(i)]);
  return box.make_list(items, object.kind, object.flags & Value::kTemplate);
}

bool is_iterable(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kView:
    case Kind::kRange:
    case Kind::kIterator:
      return true;
    default:
      return false;
  }
}

Cursor::Cursor(Sandbox& box, const Value& iterable) : source_(iterable) {
  if (is_iterable(iterable)) return;
  box.fail("'" + std::string(type_name(iterable)) + "' object is not iterable");
  source_ = {};
}

bool Cursor::next(Sandbox& box, Value& item) {
  if (!box.step()) return false;
  switch (source_.kind) {
    case Kind::kList:
    case Kind::kTuple:
      if (at_ >= source_.size) return false;
      item = source_.items[at_++];
      return true;
    case Kind::kString: {
      if (at_ >= source_.size) return false;
      const size_t begin = at_;
      next_code_point(source_.str(), at_);
      item = slice_bytes(box, source_, begin, at_);
      return true;
    }
    case Kind::kDict:
      if (at_ >= source_.dict->entries.size()) return false;
      item = source_.dict->entries[at_++].key;
      return true;
    case Kind::kView: {
      const auto entries = source_.view->dict.dict->entries;
      if (at_ >= entries.size()) return false;
      const Entry& entry = entries[at_++];
      if (source_.view->which == View::kItems) {
        Value* pair = box.arena.array<Value>(2);
        pair[0] = entry.key, pair[1] = entry.value;
        item = sequence_value(Kind::kTuple, {pair, 2});
      } else {
        item = source_.view->which == View::kKeys ? entry.key : entry.value;
      }
      return true;
    }
    case Kind::kRange:
      if (at_ >= static_cast<size_t>(source_.range->size)) return false;
      item = int_value(source_.range->start + static_cast<int64_t>(at_++) * source_.range->step);
      return true;
    case Kind::kIterator:
      return source_.iterator->next(box, item) && !box.failed();
    default:
      return false;
  }
}

int64_t Cursor::remaining() const {
  const auto left = [&](size_t size) { return static_cast<int64_t>(size - std::min(size, at_)); };
  switch (source_.kind) {
    case Kind::kUndefined:
      return 0;
    case Kind::kList:
    case Kind::kTuple:
      return left(source_.size);
    case Kind::kDict:
      return left(source_.dict->entries.size());
    case Kind::kView:
      return left(source_.view->dict.dict->entries.size());
    case Kind::kRange:
      return left(static_cast<size_t>(source_.range->size));
    default:
      return -1;
  }
}

bool collect(Sandbox& box, const Value& iterable, std::vector<Value>& items) {
  Cursor cursor(box, iterable);
  for (Value item; cursor.next(box, item);) {
    items.push_back(item);
    if ((items.size() & 0xFFF) == 0 && !box.room_for_items(items.size())) return false;
  }
  return !box.failed();
}

}  // namespace ringmaster::tokenizer_worker::jinja
