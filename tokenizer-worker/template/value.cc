#include "tokenizer-worker/template/value.h"

#include <algorithm>
#include <cmath>

#include "tokenizer-worker/template/print.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {
// Below this a row of comparisons of lengths beats a search.
constexpr size_t kSearchedFrom = 12;
}  // namespace

const Value* Dict::find(std::string_view key) const {
  if (by_name.empty()) {
    for (const Entry& entry : entries)
      if (entry.key.is_string() && entry.key.str() == key) return &entry.value;
    return nullptr;
  }
  const auto at = std::lower_bound(by_name.begin(), by_name.end(), key,
                                   [&](uint32_t i, std::string_view k) { return entries[i].key.str() < k; });
  if (at == by_name.end() || entries[*at].key.str() != key) return nullptr;
  return &entries[*at].value;
}

Value* Namespace::find(std::string_view name) {
  for (uint32_t i = 0; i < size; ++i)
    if (entries[i].key.is_string() && entries[i].key.str() == name) return &entries[i].value;
  return nullptr;
}

Int to_int(const Value& value) {
  if (value.is(Kind::kBool)) return value.boolean ? 1 : 0;
  return value.is(Kind::kBig) ? *value.big : value.integer;
}

double to_double(const Value& value) {
  return value.is(Kind::kFloat) ? value.real : static_cast<double>(to_int(value));
}

bool truthy(const Value& value) {
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean;
    case Kind::kInt:
      return value.integer != 0;
    case Kind::kFloat:
      return value.real != 0;
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
      return value.size != 0;
    case Kind::kDict:
      return !value.dict->entries.empty();
    case Kind::kView:
      return !value.view->dict.dict->entries.empty();
    case Kind::kRange:
      return value.range->size != 0;
    default:
      return true;
  }
}

std::string_view type_name(const Value& value) {
  static constexpr std::string_view kNames[] = {"missing",
                                                "Undefined",
                                                "NoneType",
                                                "bool",
                                                "int",
                                                "int",
                                                "float",
                                                "str",
                                                "list",
                                                "tuple",
                                                "dict",
                                                "dict_items",
                                                "range",
                                                "generator",
                                                "Namespace",
                                                "LoopContext",
                                                "Macro",
                                                "function",
                                                "builtin_function_or_method",
                                                "Cycler",
                                                "Joiner",
                                                "TemplateReference"};
  if (value.is(Kind::kView)) {
    static constexpr std::string_view kViews[] = {"dict_keys", "dict_values", "dict_items"};
    return kViews[value.view->which];
  }
  if (value.is(Kind::kIterator)) return value.iterator->type_name;
  return kNames[static_cast<size_t>(value.kind)];
}

std::string object_name(const Value& value) {
  if (value.is_none()) return "None";
  return std::string(type_name(value)) + " object";
}

std::string undefined_message(const Value& value) {
  if (!value.is_undefined() || value.undefined == nullptr) return "value is undefined";
  const Undefined& info = *value.undefined;
  const std::string name =
      info.name.is_string() ? "'" + std::string(info.name.str()) + "'" : short_repr(info.name);
  switch (info.why) {
    case Undefined::kName:
      return name + " is undefined";
    case Undefined::kAttribute:
      return "'" + object_name(info.owner) + "' has no attribute " + name;
    case Undefined::kElement:
      return object_name(info.owner) + " has no element " + name;
    case Undefined::kUnsafe:
      return "access to attribute " + name + " of '" + std::string(type_name(info.owner)) +
             "' object is unsafe.";
    case Undefined::kHint:
      break;
  }
  return std::string(info.name.str());
}

Value make_dict(Arena& arena, const std::vector<Entry>& entries, uint8_t flags) {
  Dict* dict = arena.make<Dict>();
  dict->entries = arena.copy(entries);
  const bool names =
      entries.size() >= kSearchedFrom &&
      std::all_of(entries.begin(), entries.end(), [](const Entry& e) { return e.key.is_string(); });
  if (names) {
    std::vector<uint32_t> order(entries.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return entries[a].key.str() < entries[b].key.str(); });
    dict->by_name = arena.copy(order);
  }
  return dict_value(dict, flags);
}

}  // namespace ringmaster::tokenizer_worker::jinja
