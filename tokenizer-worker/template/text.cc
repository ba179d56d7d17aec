#include "tokenizer-worker/template/text.h"

#include <algorithm>
#include <cstring>

namespace ringmaster::tokenizer_worker::jinja {

void TextBuilder::append(std::string_view text, bool from_template) {
  if (text.empty()) return;
  text_ += text;
  if (!runs_.empty() && runs_.back().from_template == from_template)
    runs_.back().end = static_cast<uint32_t>(text_.size());
  else
    runs_.push_back({static_cast<uint32_t>(text_.size()), from_template});
}

void TextBuilder::append(const Value& string) {
  append_slice(string, 0, string.size);
}

void TextBuilder::append_slice(const Value& string, size_t begin, size_t end) {
  const std::string_view text = string.str();
  if (!string.has(Value::kMixed))
    return append(text.substr(begin, end - begin), string.has(Value::kTemplate));
  for (const Run& run : string.mixed->runs) {
    if (begin >= end) break;
    if (run.end <= begin) continue;
    const size_t stop = std::min<size_t>(run.end, end);
    append(text.substr(begin, stop - begin), run.from_template);
    begin = stop;
  }
}

void TextBuilder::clear() {
  text_.clear();
  runs_.clear();
}

namespace {

Value with_runs(Sandbox& box, std::string_view text, const std::vector<Run>& runs) {
  if (runs.size() < 2)
    return string_value(text, runs.empty() || runs[0].from_template ? Value::kTemplate : 0);
  if (!box.room_for_items(runs.size())) return {};
  Value value{Kind::kString, Value::kMixed, static_cast<uint32_t>(text.size())};
  value.mixed = box.arena.make<MixedText>(text.data(), box.arena.copy(runs));
  return value;
}

void add_run(std::vector<Run>& runs, size_t end, bool from_template) {
  if (!runs.empty() && runs.back().from_template == from_template)
    runs.back().end = static_cast<uint32_t>(end);
  else
    runs.push_back({static_cast<uint32_t>(end), from_template});
}

}  // namespace

Value TextBuilder::finish(Sandbox& box) const {
  if (!box.room_for_text(text_.size())) return {};
  return with_runs(box, box.arena.copy(text_), runs_);
}

Value slice_bytes(Sandbox& box, const Value& string, size_t begin, size_t end) {
  const std::string_view text = string.str().substr(begin, end - begin);
  if (!string.has(Value::kMixed)) return string_value(text, string.flags);
  std::vector<Run> runs;
  for (const Run& run : string.mixed->runs) {
    if (run.end <= begin) continue;
    if (text.empty()) break;
    add_run(runs, std::min<size_t>(run.end, end) - begin, run.from_template);
    if (run.end >= end) break;
  }
  return with_runs(box, text, runs);
}

Value concat(Sandbox& box, std::span<const Value> strings) {
  size_t size = 0;
  bool uniform = true;
  const Value* first = nullptr;  // that is not empty
  for (const Value& string : strings) {
    size += string.size;
    if (string.size == 0) continue;
    if (first == nullptr) first = &string;
    if (string.has(Value::kMixed) || origin(string) != origin(*first)) uniform = false;
  }
  if (first == nullptr) return string_value({}, Value::kTemplate);
  if (size == first->size) return *first;
  if (!box.room_for_text_of(size)) return {};
  char* bytes = box.arena.text_after(first->str(), size);
  // Text that was extended where it stood was not copied.
  if (!box.step_bytes(bytes == first->str().data() ? size - first->size : size)) return {};
  size_t at = first->size;
  for (const Value* string = first + 1; string != strings.data() + strings.size(); ++string) {
    if (string->size != 0) std::memcpy(bytes + at, string->str().data(), string->size);
    at += string->size;
  }
  if (uniform) return string_value({bytes, size}, origin(*first));
  std::vector<Run> runs;
  at = 0;
  for (const Value& string : strings) {
    if (string.has(Value::kMixed)) {
      for (const Run& run : string.mixed->runs) add_run(runs, at + run.end, run.from_template);
    } else if (string.size != 0) {
      add_run(runs, at + string.size, string.has(Value::kTemplate));
    }
    at += string.size;
  }
  return with_runs(box, {bytes, size}, runs);
}

Value derived(Sandbox& box, std::string_view text, std::initializer_list<Value> from) {
  uint8_t flags = Value::kTemplate;
  for (const Value& value : from) flags &= value.flags;
  return box.make_string(text, flags);
}

namespace {

size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  if (lead >= 0xF0 && lead < 0xF5) return 4;
  return 0;
}

// Length of the valid sequence at `at`, 0 if there is none.
size_t valid_sequence(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const size_t length = sequence_length(byte(0));
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  if (length == 3 && ((byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xED && byte(1) >= 0xA0))) return 0;
  if (length == 4 && ((byte(0) == 0xF0 && byte(1) < 0x90) || (byte(0) == 0xF4 && byte(1) >= 0x90))) return 0;
  return length;
}

}  // namespace

char32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return ++at, lead;
  const size_t length = valid_sequence(text, at);
  if (length == 0) return ++at, char32_t{0xFFFD};
  char32_t code = lead & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) code = code << 6 | (byte(i) & 0x3F);
  at += length;
  return code;
}

void append_code_point(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)),
        put(0x80 | (code & 0x3F));
  }
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) next_code_point(text, at);
  return count;
}

size_t byte_offset(std::string_view text, size_t code_points) {
  size_t at = 0;
  for (; code_points > 0 && at < text.size(); --code_points) next_code_point(text, at);
  return at;
}

bool valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = valid_sequence(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

}  // namespace ringmaster::tokenizer_worker::jinja
