// Filters about lists and dicts.
#include <algorithm>
#include <set>

#include "tokenizer-worker/template/attribute_path.h"
#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/operators.h"
#include "tokenizer-worker/template/print.h"
#include "tokenizer-worker/template/text.h"
#include "tokenizer-worker/template/unicode.h"

namespace ringmaster::tokenizer_worker::jinja {

AttributePath::AttributePath(Sandbox& box, const Value& attribute) {
  if (attribute.missing() || attribute.is_none()) return;
  std::vector<Value> keys;
  if (attribute.is_string()) {
    const std::string_view text = attribute.str();
    for (size_t begin = 0; begin <= text.size() && box.step();) {
      const size_t end = std::min(text.find('.', begin), text.size());
      const std::string_view key = text.substr(begin, end - begin);
      const bool number =
          !key.empty() && key.size() < 18 && key.find_first_not_of("0123456789") == std::string_view::npos;
      keys.push_back(number ? int_value(std::stoll(std::string(key))) : string_value(key, origin(attribute)));
      begin = end + 1;
    }
  } else if (attribute.is_int()) {
    keys.push_back(attribute);
  } else {
    box.fail("attribute must be str or int, not " + std::string(type_name(attribute)));
  }
  keys_ = box.arena.copy(keys);
}

Value AttributePath::of(Sandbox& box, Value item, const Value& fallback) const {
  for (const Value& key : keys_) {
    if (box.failed() || !box.step()) return {};
    item = get_item(box, item, key);
    if (item.is_undefined() && !fallback.missing()) item = fallback;
  }
  return item;
}

Value ignore_case(Sandbox& box, const Value& value) {
  if (!value.is_string() || !box.step_bytes(4 * size_t{value.size})) return value;
  return derived(box, lower(value.str()), {value});
}

namespace {

// A generator over items that are there already.
struct ListIterator final : Iterator {
  explicit ListIterator(std::span<const Value> list, const char* type) : items(list) { type_name = type; }
  bool next(Sandbox&, Value& item) override {
    if (at >= items.size()) return false;
    item = items[at++];
    return true;
  }
  std::span<const Value> items;
  size_t at = 0;
};

Value iterate(Sandbox& box, const std::vector<Value>& items, const char* type = "generator") {
  const Value list = box.make_list(items);
  if (box.failed()) return {};
  return iterator_value(new (box.arena.allocate(sizeof(ListIterator), alignof(ListIterator)))
                            ListIterator(list.list(), type));
}

bool flag(const Value& value) {
  return !value.missing() && truthy(value);
}

Value attr(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  if (!text_argument(box, slots[0], "attr: the name")) return {};
  if (self.is(Kind::kDict) && find_dict_method(slots[0].str()) == nullptr)
    return box.make_undefined(Undefined::kAttribute, self, slots[0]);
  return get_attribute(box, self, slots[0]);
}

Value batch(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t count = 0;
  std::vector<Value> items, rows, row;
  if (!int_argument(box, slots[0], 0, count) || !collect(box, self, items)) return {};
  const auto flush = [&] {
    rows.push_back(box.make_list(row));
    row.clear();
  };
  for (const Value& item : items) {
    if (static_cast<int64_t>(row.size()) == count) flush();
    row.push_back(item);
  }
  if (row.empty()) return iterate(box, rows);
  if (!slots[1].missing() && !slots[1].is_none()) {
    const size_t missing =
        count > static_cast<int64_t>(row.size()) ? static_cast<size_t>(count) - row.size() : 0;
    if (!box.room_for_items(missing) || !box.step(1 + missing / 8)) return {};
    row.insert(row.end(), missing, slots[1]);
  }
  flush();
  return iterate(box, rows);
}

Value slice(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  int64_t slices = 0;
  std::vector<Value> items, rows;
  if (!int_argument(box, slots[0], 0, slices) || !collect(box, self, items)) return {};
  if (slices == 0) return box.fail("integer division or modulo by zero");
  if (slices > kMaxRange)
    return box.fail("slice into " + std::to_string(slices) + " parts; allowed: at most " +
                    std::to_string(kMaxRange));
  if (slices < 0) return iterate(box, rows);
  const size_t parts = static_cast<size_t>(slices);
  const size_t each = items.size() / parts, longer = items.size() % parts;
  size_t at = 0;
  for (size_t i = 0; i < parts && box.step(); ++i) {
    const size_t size = each + (i < longer ? 1 : 0);
    std::vector<Value> row(items.begin() + static_cast<ptrdiff_t>(at),
                           items.begin() + static_cast<ptrdiff_t>(at + size));
    if (!slots[1].missing() && !slots[1].is_none() && i >= longer) row.push_back(slots[1]);
    rows.push_back(box.make_list(row));
    at += size;
  }
  return iterate(box, rows);
}

Value length(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  if (self.is_string())
    return box.step_bytes(self.size) ? int_value(static_cast<int64_t>(count_code_points(self.str())))
                                     : Value{};
  const int64_t size = self.is(Kind::kIterator) || !is_iterable(self) ? -1 : Cursor(box, self).remaining();
  if (size < 0) return box.fail("object of type '" + std::string(type_name(self)) + "' has no len()");
  return int_value(size);
}

Value default_filter(Sandbox&, const Value& self, const Slots& slots, const Arguments&) {
  const bool absent = self.is_undefined() || (flag(slots[1]) && !truthy(self));
  if (!absent) return self;
  return slots[0].missing() ? string_value({}, Value::kTemplate) : slots[0];
}

struct Keyed {
  Value key;
  Value item;
};

// Stable. Values without an order fail.
bool sort_keyed(Sandbox& box, std::vector<Keyed>& items, bool reverse) {
  for (size_t i = 1; i < items.size() && !box.failed(); ++i)
    compare(box, items[i].key, items[i - 1].key, "<");
  if (box.failed()) return false;
  const auto before = [&](const Keyed& a, const Keyed& b) {
    if (box.failed()) return false;
    return reverse ? compare(box, b.key, a.key, "<") < 0 : compare(box, a.key, b.key, "<") < 0;
  };
  std::stable_sort(items.begin(), items.end(), before);
  return !box.failed();
}

Value dictsort(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  if (!self.is(Kind::kDict))
    return box.fail("'" + std::string(type_name(self)) + "' object has no attribute 'items'");
  const std::string_view by = slots[1].missing() ? "key" : slots[1].is_string() ? slots[1].str() : "";
  if (by != "key" && by != "value") return box.fail("you can only sort by either 'key' or 'value'");
  std::vector<Keyed> items;
  for (const Entry& entry : self.dict->entries) {
    const Value& key = by == "key" ? entry.key : entry.value;
    items.push_back({flag(slots[0]) ? key : ignore_case(box, key),
                     box.make_list({entry.key, entry.value}, Kind::kTuple)});
  }
  if (!sort_keyed(box, items, flag(slots[2]))) return {};
  std::vector<Value> sorted;
  for (const Keyed& item : items) sorted.push_back(item.item);
  return box.make_list(sorted);
}

Value first(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  Cursor cursor(box, self);
  Value item;
  if (cursor.next(box, item)) return item;
  return box.make_undefined(Undefined::kHint, self,
                            string_value("No first item, sequence was empty.", Value::kTemplate));
}

Value last(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  const Value empty = box.make_undefined(Undefined::kHint, self,
                                         string_value("No last item, sequence was empty.", Value::kTemplate));
  if (self.is(Kind::kIterator)) return box.fail("'generator' object is not reversible");
  if (self.is_sequence()) return self.size == 0 ? empty : self.items[self.size - 1];
  Value item = empty;
  Cursor cursor(box, self);
  while (cursor.next(box, item)) {
  }
  return item;
}

Value groupby(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const AttributePath path(box, slots[0]);
  std::vector<Value> items;
  if (box.failed() || !collect(box, self, items)) return {};
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    const Value key = path.of(box, item, slots[1]);
    keyed.push_back({flag(slots[2]) ? key : ignore_case(box, key), item});
  }
  if (box.failed() || !sort_keyed(box, keyed, false)) return {};
  std::vector<Value> groups;
  for (size_t begin = 0, end = 0; begin < keyed.size() && !box.failed(); begin = end) {
    std::vector<Value> members;
    for (end = begin; end < keyed.size() && equal(box, keyed[begin].key, keyed[end].key); ++end)
      members.push_back(keyed[end].item);
    if (end == begin) return box.fail("groupby: a key that differs from itself");
    // The key as the first member spells it.
    const Value key = path.of(box, keyed[begin].item, slots[1]);
    Value group = box.make_list({key, box.make_list(members)}, Kind::kTuple);
    group.flags |= Value::kGroup;
    groups.push_back(group);
  }
  return box.make_list(groups);
}

Value items_filter(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  std::vector<Value> pairs;
  if (!self.is_undefined()) {
    if (!self.is(Kind::kDict)) return box.fail("Can only get item pairs from a mapping.");
    for (const Entry& entry : self.dict->entries)
      pairs.push_back(box.make_list({entry.key, entry.value}, Kind::kTuple));
  }
  return iterate(box, pairs);
}

Value join(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const Value separator = slots[0].missing() ? string_value({}, Value::kTemplate) : to_string(box, slots[0]);
  const AttributePath path(box, slots[1]);
  Cursor cursor(box, self);
  std::vector<Value> parts;
  size_t size = 0;
  for (Value item; !box.failed() && cursor.next(box, item);) {
    if (!parts.empty()) parts.push_back(separator);
    parts.push_back(to_string(box, path.of(box, item)));
    size += parts.back().size + separator.size;
    if (size > kMaxTextBytes || (parts.size() & 0xFFF) == 0)
      box.room_for_text(size), box.room_for_items(parts.size());
  }
  return box.failed() ? Value{} : concat(box, parts);
}

Value list(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  std::vector<Value> items;
  return collect(box, self, items) ? box.make_list(items, Kind::kList, origin(self)) : Value{};
}

Value extreme(Sandbox& box, const Value& self, const Slots& slots, bool largest) {
  const AttributePath path(box, slots[1]);
  Cursor cursor(box, self);
  Value best = box.make_undefined(Undefined::kHint, self,
                                  string_value("No aggregated item, sequence was empty.", Value::kTemplate));
  Value best_key;
  bool any = false;
  for (Value item; !box.failed() && cursor.next(box, item); any = true) {
    const Value key = flag(slots[0]) ? path.of(box, item) : ignore_case(box, path.of(box, item));
    const bool better =
        !any || (largest ? compare(box, key, best_key, ">") > 0 : compare(box, key, best_key, "<") < 0);
    if (better) best = item, best_key = key;
  }
  return box.failed() ? Value{} : best;
}
Value max_filter(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  return extreme(box, self, slots, true);
}
Value min_filter(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  return extreme(box, self, slots, false);
}

Value reverse(Sandbox& box, const Value& self, const Slots&, const Arguments&) {
  if (self.is_string()) {
    const Value none = none_value();
    return get_slice(box, self, none, none, int_value(-1));
  }
  std::vector<Value> items;
  if (!collect(box, self, items)) return {};
  std::reverse(items.begin(), items.end());
  // Of what Python cannot walk backwards Jinja makes a list.
  if (self.is(Kind::kIterator)) return box.make_list(items);
  return iterate(box, items, self.is(Kind::kList) ? "list_reverseiterator" : "reversed");
}

Value sort(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  // Several attributes are separated by commas.
  std::vector<AttributePath> paths;
  if (slots[2].is_string()) {
    const std::string_view text = slots[2].str();
    for (size_t begin = 0; begin <= text.size() && box.step();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      paths.emplace_back(box, string_value(text.substr(begin, end - begin), origin(slots[2])));
      begin = end + 1;
    }
  } else {
    paths.emplace_back(box, slots[2]);
  }
  std::vector<Value> items;
  if (box.failed() || !collect(box, self, items)) return {};
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    std::vector<Value> keys;
    for (const AttributePath& path : paths) {
      const Value key = path.of(box, item);
      keys.push_back(flag(slots[1]) ? key : ignore_case(box, key));
    }
    if (box.failed()) return {};
    // A list even of one, as in Jinja: equal keys are then never ordered, undefined ones included.
    keyed.push_back({box.make_list(keys), item});
  }
  if (!sort_keyed(box, keyed, flag(slots[0]))) return {};
  for (size_t i = 0; i < items.size(); ++i) items[i] = keyed[i].item;
  return box.make_list(items);
}

Value sum(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const AttributePath path(box, slots[0]);
  Value total = slots[1].missing() ? int_value(0) : slots[1];
  if (total.is_string()) return box.fail("sum() can't sum strings [use ''.join(seq) instead]");
  Cursor cursor(box, self);
  for (Value item; !box.failed() && cursor.next(box, item);) total = add(box, total, path.of(box, item));
  return box.failed() ? Value{} : total;
}

Value unique(Sandbox& box, const Value& self, const Slots& slots, const Arguments&) {
  const AttributePath path(box, slots[1]);
  std::set<std::string> seen;
  std::vector<Value> kept;
  Cursor cursor(box, self);
  for (Value item; !box.failed() && cursor.next(box, item);) {
    const Value key = flag(slots[0]) ? path.of(box, item) : ignore_case(box, path.of(box, item));
    std::string text;
    if (!box.failed() && key_text(box, key, text) && seen.insert(std::move(text)).second)
      kept.push_back(item);
  }
  return box.failed() ? Value{} : iterate(box, kept);
}

constexpr Builtin kFilters[] = {
    {"attr", attr, 1, {"name"}},
    {"batch", batch, 1, {"linecount", "fill_with"}},
    {"count", length, 0, {}},
    {"d", default_filter, 0, {"default_value", "boolean"}},
    {"default", default_filter, 0, {"default_value", "boolean"}},
    {"dictsort", dictsort, 0, {"case_sensitive", "by", "reverse"}},
    {"first", first, 0, {}},
    {"groupby", groupby, 1, {"attribute", "default", "case_sensitive"}},
    {"items", items_filter, 0, {}},
    {"join", join, 0, {"d", "attribute"}},
    {"last", last, 0, {}},
    {"length", length, 0, {}},
    {"list", list, 0, {}},
    {"max", max_filter, 0, {"case_sensitive", "attribute"}},
    {"min", min_filter, 0, {"case_sensitive", "attribute"}},
    {"reverse", reverse, 0, {}},
    {"slice", slice, 1, {"slices", "fill_with"}},
    {"sort", sort, 0, {"reverse", "case_sensitive", "attribute"}},
    {"sum", sum, 0, {"attribute", "start"}},
    {"unique", unique, 0, {"case_sensitive", "attribute"}},
};

}  // namespace

std::span<const Builtin> sequence_filters() {
  return kFilters;
}

}  // namespace ringmaster::tokenizer_worker::jinja
