#include "tokenizer-worker/template/sandbox.h"

namespace ringmaster::tokenizer_worker::jinja {

void Sandbox::out_of_budget() {
  if (arena.over_limit())
    fail("the chat template needs more than " + std::to_string(limits_.bytes) + " bytes of memory");
  else
    fail("the chat template takes more than " + std::to_string(limits_.steps) + " steps");
}

bool Sandbox::room_for_text_of(size_t bytes) {
  if (bytes > kMaxTextBytes) {
    fail("the chat template makes a text of " + std::to_string(bytes) + " bytes; allowed: at most " +
         std::to_string(kMaxTextBytes));
  } else if (!arena.fits(bytes)) {
    fail("the chat template needs more than " + std::to_string(limits_.bytes) + " bytes of memory");
  }
  return !failed_;
}

bool Sandbox::room_for_text(size_t bytes) {
  return room_for_text_of(bytes) && step_bytes(bytes);
}

bool Sandbox::room_for_items(size_t count) {
  if (!arena.fits(count > limits_.bytes ? count : count * sizeof(Entry)))
    fail("the chat template makes a list of " + std::to_string(count) + " items, more than its memory of " +
         std::to_string(limits_.bytes) + " bytes holds");
  return !failed_;
}

Value Sandbox::make_string(std::string_view text, uint8_t flags) {
  if (!room_for_text(text.size())) return {};
  return string_value(arena.copy(text), flags);
}

Value Sandbox::make_list(const std::vector<Value>& items, Kind kind, uint8_t flags) {
  if (!room_for_items(items.size())) return {};
  return sequence_value(kind, arena.copy(items), flags);
}

Value Sandbox::make_undefined(Undefined::Why why, const Value& owner, const Value& name) {
  Value value;
  value.undefined = arena.make<Undefined>(why, owner, name);
  return value;
}

}  // namespace ringmaster::tokenizer_worker::jinja
