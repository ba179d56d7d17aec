// The values of the template language: Python's, as far as templates can make them. A Value is 16 bytes,
// copied as bits; what it points to lies in an Arena, in the compiled template or in the conversation, all
// of which outlive it. Texts, lists and dicts never change once made (the sandbox is the immutable one);
// namespaces, loops and iterators do. Not here: what operations mean (operators.h, text.h, builtins.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer-worker/template/arena.h"

namespace ringmaster::tokenizer_worker::jinja {

class Sandbox;
struct Builtin;
struct MacroStmt;
struct Scope;
struct LoopState;

// Python's integers, as wide as the machine does them exactly; what does not fit is an error.
using Int = __int128;

enum class Kind : uint8_t {
  kMissing,  // no value at all: an argument not given, a name not set
  kUndefined,
  kNone,
  kBool,
  kInt,
  kBig,  // an Int outside int64
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kView,  // dict.keys(), values(), items()
  kRange,
  kIterator,
  kNamespace,
  kLoop,
  kMacro,
  kFunction,
  kMethod,
  kCycler,
  kJoiner,
  kSelf,
};

struct Dict;
struct View;
struct Range;
struct Iterator;
struct Namespace;
struct Macro;
struct Method;
struct Cycler;
struct Joiner;
struct Undefined;
struct MixedText;

struct Value {
  // The template wrote it: literals, what is computed from literals alone, loop counters, the special
  // tokens. Without the flag it counts as conversation.
  static constexpr uint8_t kTemplate = 1;
  static constexpr uint8_t kMixed = 2;   // a string of which parts come from each; then `mixed`
  static constexpr uint8_t kMarkup = 4;  // a string that is escaped already
  static constexpr uint8_t kGroup = 8;   // a tuple made by groupby: has .grouper and .list

  Kind kind = Kind::kUndefined;
  uint8_t flags = 0;
  uint32_t size = 0;  // of a string in bytes, of a list or tuple in items
  union {
    const void* pointer = nullptr;
    bool boolean;
    int64_t integer;
    double real;
    const Int* big;
    const char* text;
    const MixedText* mixed;
    const Value* items;
    const Dict* dict;
    const View* view;
    const Range* range;
    Iterator* iterator;
    Namespace* names;
    LoopState* loop;
    const Macro* macro;
    const Builtin* function;
    const Method* method;
    Cycler* cycler;
    Joiner* joiner;
    const Undefined* undefined;
  };

  bool is(Kind k) const { return kind == k; }
  bool has(uint8_t flag) const { return (flags & flag) != 0; }
  bool missing() const { return kind == Kind::kMissing; }
  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_none() const { return kind == Kind::kNone; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_sequence() const { return kind == Kind::kList || kind == Kind::kTuple; }
  // bool counts, as in Python.
  bool is_int() const { return kind == Kind::kInt || kind == Kind::kBool || kind == Kind::kBig; }
  bool is_number() const { return is_int() || kind == Kind::kFloat; }

  inline std::string_view str() const;                           // REQUIRES: is_string()
  std::span<const Value> list() const { return {items, size}; }  // REQUIRES: is_sequence()
};
static_assert(sizeof(Value) == 16);

// Bytes up to `end` (from the run before) and who wrote them.
struct Run {
  uint32_t end;
  bool from_template;
};
struct MixedText {
  const char* data;
  std::span<const Run> runs;  // at least two, alternating; the last ends with the text
};

inline std::string_view Value::str() const {
  return {has(kMixed) ? mixed->data : text, size};
}

struct Entry {
  Value key;
  Value value;
};
struct Dict {
  std::span<const Entry> entries;  // in the order of insertion
  // Larger ones whose keys are all strings: entries sorted by key; else empty.
  std::span<const uint32_t> by_name;

  const Value* find(std::string_view key) const;
};
struct View {
  enum Which : uint8_t { kKeys, kValues, kItems };
  Value dict;
  Which which;
};
struct Range {
  int64_t start, stop, step, size;
};
// A generator: each item comes once.
struct Iterator {
  virtual bool next(Sandbox& box, Value& item) = 0;
  const char* type_name = "generator";

 protected:
  Iterator() = default;
  Iterator(const Iterator&) = default;
  ~Iterator() = default;
};
struct Namespace {
  Entry* entries = nullptr;
  uint32_t size = 0;
  uint32_t capacity = 0;

  Value* find(std::string_view name);
};
struct Macro {
  const MacroStmt* body;
  Scope* scope;  // where it was defined; names are looked up there when it runs
};
struct Method {
  Value self;
  const Builtin* builtin;
};
struct Cycler {
  std::span<const Value> items;
  size_t at;
};
struct Joiner {
  Value separator;
  bool used;
};
// Why there is nothing: says so when somebody uses it.
struct Undefined {
  enum Why : uint8_t { kName, kAttribute, kElement, kUnsafe, kHint };
  Why why;
  Value owner;
  Value name;
};

inline constexpr Value kMissingValue{Kind::kMissing};

inline Value none_value() {
  return Value{Kind::kNone, Value::kTemplate};
}
inline Value bool_value(bool b) {
  Value v{Kind::kBool, Value::kTemplate};
  v.boolean = b;
  return v;
}
inline Value int_value(int64_t i, uint8_t flags = Value::kTemplate) {
  Value v{Kind::kInt, flags};
  v.integer = i;
  return v;
}
inline Value float_value(double f, uint8_t flags = Value::kTemplate) {
  Value v{Kind::kFloat, flags};
  v.real = f;
  return v;
}
// REQUIRES: the bytes outlive the value; less than 4 GiB.
inline Value string_value(std::string_view text, uint8_t flags) {
  Value v{Kind::kString, flags, static_cast<uint32_t>(text.size())};
  v.text = text.data();
  return v;
}
inline Value sequence_value(Kind kind, std::span<const Value> items, uint8_t flags = 0) {
  Value v{kind, flags, static_cast<uint32_t>(items.size())};
  v.items = items.data();
  return v;
}
inline Value dict_value(const Dict* dict, uint8_t flags = 0) {
  Value v{Kind::kDict, flags};
  v.dict = dict;
  return v;
}
inline Value iterator_value(Iterator* iterator) {
  Value v{Kind::kIterator};
  v.iterator = iterator;
  return v;
}
inline Value function_value(const Builtin* function) {
  Value v{Kind::kFunction, Value::kTemplate};
  v.function = function;
  return v;
}

// REQUIRES: is_int().
Int to_int(const Value& value);
// REQUIRES: is_number().
double to_double(const Value& value);
bool truthy(const Value& value);
// Python's name of the type: "str", "NoneType".
std::string_view type_name(const Value& value);
// As Jinja's messages have it: "'dict object'", "None".
std::string object_name(const Value& value);
std::string undefined_message(const Value& value);

// A dict from entries whose keys differ.
Value make_dict(Arena& arena, const std::vector<Entry>& entries, uint8_t flags);

}  // namespace ringmaster::tokenizer_worker::jinja
