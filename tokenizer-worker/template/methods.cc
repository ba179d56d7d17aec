// Methods of lists and dicts, and the global functions.
#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/print.h"
#include "tokenizer-worker/template/strftime.h"
#include "tokenizer-worker/template/text.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

Value list_copy(Sandbox&, const Value& self, const Slots&, const Arguments&) {
  return self;
}

Value list_count(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t found = 0;
  for (const Value& item : self.list()) found += equal(box, item, slots[0]) ? 1 : 0;
  return int_value(found);
}

Value list_index(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const int64_t size = self.size;
  int64_t from = 0, to = size;
  if (!int_argument(box, slots[1], 0, from) || !int_argument(box, slots[2], size, to)) return {};
  if (from < 0) from = std::max<int64_t>(0, from + size);
  if (to < 0) to += size;
  for (int64_t i = from; i < std::min(to, size); ++i)
    if (equal(box, self.items[i], slots[0])) return int_value(i);
  return box.fail(short_repr(slots[0]) + " is not in list");
}

template <View::Which which>
Value dict_view(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  Value view{Kind::kView};
  view.view = box.arena.make<View>(self, which);
  return view;
}

Value dict_get(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  if (const Value* value = find_key(box, *self.dict, slots[0])) return *value;
  return slots[1].missing() ? none_value() : slots[1];
}

Value dict_copy(Sandbox&, const Value& self, const Slots&, const Arguments&) {
  return self;
}

constexpr Builtin kListMethods[] = {
    {"copy", list_copy, 0, {}},
    {"count", list_count, 1, {"value"}},
    {"index", list_index, 1, {"value", "start", "stop"}},
};

constexpr Builtin kDictMethods[] = {
    {"copy", dict_copy, 0, {}},
    {"get", dict_get, 1, {"key", "default"}},
    {"items", dict_view<View::kItems>, 0, {}},
    {"keys", dict_view<View::kKeys>, 0, {}},
    {"values", dict_view<View::kValues>, 0, {}},
};

// dict(mapping or pairs, name=value...)
Value dict_function(Sandbox& box, const Value&, const Slots&, const Arguments& all) {
  if (all.positional.size() > 1)
    return box.fail("dict expected at most 1 argument, got " + std::to_string(all.positional.size()));
  DictBuilder dict;
  if (all.positional.size() == 1 && all.positional[0].is(Kind::kDict)) {
    for (const Entry& entry : all.positional[0].dict->entries)
      if (!dict.set(box, entry.key, entry.value)) return {};
  } else if (all.positional.size() == 1) {
    std::vector<Value> pairs;
    if (!collect(box, all.positional[0], pairs)) return {};
    for (const Value& pair : pairs) {
      if (!pair.is_sequence() || pair.size != 2) return box.fail("dict: expected pairs");
      if (!dict.set(box, pair.items[0], pair.items[1])) return {};
    }
  }
  for (const Named& named : all.named)
    if (!dict.set(box, string_value(named.name, Value::kTemplate), named.value)) return {};
  return dict.finish(box, Value::kTemplate);
}

Value namespace_function(Sandbox& box, const Value& self, const Slots& slots, const Arguments& all) {
  const Value dict = dict_function(box, self, slots, all);
  if (box.failed()) return {};
  Namespace* names = box.arena.make<Namespace>();
  const auto entries = dict.dict->entries;
  names->size = names->capacity = static_cast<uint32_t>(entries.size());
  names->entries = box.arena.array<Entry>(entries.size());
  std::copy(entries.begin(), entries.end(), names->entries);
  Value value{Kind::kNamespace};
  value.names = names;
  return value;
}

Value range_function(Sandbox& box, const Value&, const Slots& slots, const Arguments&) {
  int64_t start = 0, stop = 0, step = 1;
  if (slots[1].missing()) {
    if (!int_argument(box, slots[0], 0, stop)) return {};
  } else if (!int_argument(box, slots[0], 0, start) || !int_argument(box, slots[1], 0, stop) ||
             !int_argument(box, slots[2], 1, step)) {
    return {};
  }
  if (step == 0) return box.fail("range() arg 3 must not be zero");
  const Int distance = step > 0 ? Int{stop} - start : Int{start} - stop;
  const Int magnitude = step > 0 ? Int{step} : -Int{step};
  const Int size = distance <= 0 ? 0 : (distance - 1) / magnitude + 1;
  if (size > kMaxRange)
    return box.fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (" +
                    std::to_string(kMaxRange) + ").");
  Value value{Kind::kRange, Value::kTemplate};
  value.range = box.arena.make<Range>(start, stop, step, static_cast<int64_t>(size));
  return value;
}

Value cycler_function(Sandbox& box, const Value&, const Slots&, const Arguments& all) {
  if (all.positional.empty()) return box.fail("at least one item has to be provided");
  Value value{Kind::kCycler};
  value.cycler = box.arena.make<Cycler>(all.positional, size_t{0});
  return value;
}

Value joiner_function(Sandbox& box, const Value&, const Slots& slots, const Arguments&) {
  Value value{Kind::kJoiner};
  value.joiner =
      box.arena.make<Joiner>(slots[0].missing() ? string_value(", ", Value::kTemplate) : slots[0], false);
  return value;
}

Value raise_exception(Sandbox& box, const Value&, const Slots& slots, const Arguments&) {
  const Value message = to_string(box, slots[0]);
  return box.failed() ? Value{} : box.raise(std::string(message.str()));
}

Value strftime_now(Sandbox& box, const Value&, const Slots& slots, const Arguments&) {
  if (!text_argument(box, slots[0], "strftime_now() argument")) return {};
  if (!box.step_bytes(64 * size_t{slots[0].size})) return {};
  std::string text, why;
  if (!format_time(slots[0].str(), box.now, text, why)) return box.fail("strftime_now: " + why);
  return derived(box, text, {slots[0]});
}

constexpr Builtin kFunctions[] = {
    {"cycler", cycler_function, Builtin::kAny, {}},
    {"dict", dict_function, Builtin::kAny, {}},
    {"joiner", joiner_function, 0, {"sep"}},
    {"namespace", namespace_function, Builtin::kAny, {}},
    {"raise_exception", raise_exception, 1, {"message"}},
    {"range", range_function, 1, {"start", "stop", "step"}},
    {"strftime_now", strftime_now, 1, {"format"}},
};

}  // namespace

std::span<const Builtin> list_methods() {
  return kListMethods;
}
std::span<const Builtin> dict_methods() {
  return kDictMethods;
}
std::span<const Builtin> global_functions() {
  return kFunctions;
}

}  // namespace ringmaster::tokenizer_worker::jinja
