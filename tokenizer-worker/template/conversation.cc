#include "tokenizer-worker/template/conversation.h"

#include <algorithm>

namespace ringmaster::tokenizer_worker::jinja {
namespace {

constexpr size_t kLongestRole = 64;

bool is_role_name(std::string_view role) {
  return !role.empty() && role.size() <= kLongestRole && std::all_of(role.begin(), role.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

Value convert(Sandbox& box, const nlohmann::ordered_json& json, int depth, bool is_message);

Value convert_list(Sandbox& box, const nlohmann::ordered_json& json, int depth, bool of_messages) {
  if (!box.room_for_items(json.size())) return {};
  Value* items = box.arena.array<Value>(json.size());
  size_t i = 0;
  for (const auto& item : json) items[i++] = convert(box, item, depth + 1, of_messages);
  return sequence_value(Kind::kList, {items, json.size()});
}

Value convert_dict(Sandbox& box, const nlohmann::ordered_json& json, int depth, bool is_message) {
  std::vector<Entry> entries;
  entries.reserve(json.size());
  for (const auto& [key, item] : json.get_ref<const nlohmann::ordered_json::object_t&>()) {
    Value value = convert(box, item, depth + 1, false);
    if (is_message && key == "role" && value.is_string() && is_role_name(value.str()))
      value.flags |= Value::kTemplate;
    entries.push_back({string_value(key, 0), value});
  }
  if (!box.room_for_items(entries.size())) return {};
  return make_dict(box.arena, entries, 0);
}

Value convert(Sandbox& box, const nlohmann::ordered_json& json, int depth, bool is_message) {
  if (depth > kMaxValueDepth)
    return box.fail("the conversation nests deeper than " + std::to_string(kMaxValueDepth) + " levels");
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::null:
    case Type::discarded:
      return none_value();
    case Type::boolean: {
      Value value = bool_value(json.get<bool>());
      value.flags = 0;
      return value;
    }
    case Type::number_integer:
      return int_value(json.get<int64_t>(), 0);
    case Type::number_unsigned: {
      const uint64_t number = json.get<uint64_t>();
      if (number <= static_cast<uint64_t>(INT64_MAX)) return int_value(static_cast<int64_t>(number), 0);
      Value big{Kind::kBig};
      big.big = new (box.arena.allocate(sizeof(Int), alignof(Int))) Int(number);
      return big;
    }
    case Type::number_float:
      return float_value(json.get<double>(), 0);
    case Type::string: {
      const std::string& text = json.get_ref<const std::string&>();
      if (text.size() > kMaxTextBytes) return box.room_for_text(text.size()), Value{};
      return string_value(text, 0);
    }
    case Type::array:
      return convert_list(box, json, depth, false);
    case Type::object:
      return convert_dict(box, json, depth, is_message);
    case Type::binary:
      return box.fail("the conversation holds binary data");
  }
  return {};
}

}  // namespace

Value from_json(Sandbox& box, const nlohmann::ordered_json& json) {
  return convert(box, json, 0, false);
}

Value messages_from_json(Sandbox& box, const nlohmann::ordered_json& json) {
  return json.is_array() ? convert_list(box, json, 0, true) : from_json(box, json);
}

}  // namespace ringmaster::tokenizer_worker::jinja
