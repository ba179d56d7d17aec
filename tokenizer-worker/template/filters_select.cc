// map, select, reject, selectattr, rejectattr: generators, as in Jinja. Nothing is computed before an item is
// asked for.
#include "tokenizer-worker/template/attribute_path.h"
#include "tokenizer-worker/template/builtins.h"
#include "tokenizer-worker/template/operators.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

struct MapIterator final : Iterator {
  bool next(Sandbox& box, Value& item) override {
    if (!source.next(box, item)) return false;
    item = filter != nullptr ? call_builtin(box, *filter, item, arguments) : path.of(box, item, fallback);
    return !box.failed();
  }
  Cursor source;
  const Builtin* filter = nullptr;  // null: the path
  Arguments arguments;
  AttributePath path;
  Value fallback = kMissingValue;
};

struct SelectIterator final : Iterator {
  bool next(Sandbox& box, Value& item) override {
    while (source.next(box, item) && !box.failed()) {
      const Value looked_at = path.of(box, item);
      if (box.failed()) return false;
      const bool pass = truthy(test != nullptr ? call_builtin(box, *test, looked_at, arguments) : looked_at);
      if (pass == wanted && !box.failed()) return true;
    }
    return false;
  }
  Cursor source;
  const Builtin* test = nullptr;  // null: truth
  Arguments arguments;
  AttributePath path;
  bool wanted = true;
};

template <typename T>
T* make_iterator(Sandbox& box) {
  return new (box.arena.allocate(sizeof(T), alignof(T))) T();
}

Value map(Sandbox& box, const Value& self, const Slots&, const Arguments& all) {
  MapIterator* iterator = make_iterator<MapIterator>(box);
  if (!truthy(self)) return iterator_value(iterator);  // nothing is looked at, as in Jinja
  iterator->source = Cursor(box, self);
  if (all.positional.empty()) {
    Value attribute = kMissingValue;
    for (const Named& named : all.named) {
      if (named.name == "attribute")
        attribute = named.value;
      else if (named.name == "default")
        iterator->fallback = named.value;
      else
        return box.fail("map: unexpected keyword argument '" + std::string(named.name) + "'");
    }
    if (attribute.missing()) return box.fail("map requires a filter argument");
    iterator->path = AttributePath(box, attribute);
    return iterator_value(iterator);
  }
  const Value& name = all.positional[0];
  if (!text_argument(box, name, "map: the filter's name")) return {};
  iterator->filter = find_filter(name.str());
  if (iterator->filter == nullptr) return box.fail("No filter named '" + std::string(name.str()) + "'.");
  iterator->arguments = {all.positional.subspan(1), all.named};
  return iterator_value(iterator);
}

Value select_items(Sandbox& box, const Value& self, const Arguments& all, bool wanted, bool by_attribute) {
  SelectIterator* iterator = make_iterator<SelectIterator>(box);
  if (!truthy(self)) return iterator_value(iterator);
  iterator->source = Cursor(box, self);
  iterator->wanted = wanted;
  std::span<const Value> rest = all.positional;
  if (by_attribute) {
    if (rest.empty()) return box.fail("Missing parameter for attribute name");
    iterator->path = AttributePath(box, rest[0]);
    rest = rest.subspan(1);
  }
  if (rest.empty()) return iterator_value(iterator);
  if (!text_argument(box, rest[0], "the test's name")) return {};
  iterator->test = find_test(rest[0].str());
  if (iterator->test == nullptr) return box.fail("No test named '" + std::string(rest[0].str()) + "'.");
  iterator->arguments = {rest.subspan(1), all.named};
  return iterator_value(iterator);
}

Value select(Sandbox& box, const Value& self, const Slots&, const Arguments& all) {
  return select_items(box, self, all, true, false);
}
Value reject(Sandbox& box, const Value& self, const Slots&, const Arguments& all) {
  return select_items(box, self, all, false, false);
}
Value selectattr(Sandbox& box, const Value& self, const Slots&, const Arguments& all) {
  return select_items(box, self, all, true, true);
}
Value rejectattr(Sandbox& box, const Value& self, const Slots&, const Arguments& all) {
  return select_items(box, self, all, false, true);
}

constexpr Builtin kFilters[] = {
    {"map", map, Builtin::kAny, {}},
    {"reject", reject, Builtin::kAny, {}},
    {"rejectattr", rejectattr, Builtin::kAny, {}},
    {"select", select, Builtin::kAny, {}},
    {"selectattr", selectattr, Builtin::kAny, {}},
};

}  // namespace

std::span<const Builtin> selecting_filters() {
  return kFilters;
}

}  // namespace ringmaster::tokenizer_worker::jinja
