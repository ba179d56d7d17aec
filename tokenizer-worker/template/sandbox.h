// What every operation of one render shares: its memory, its budget of steps and its first error. An
// operation that fails says so here and returns an undefined value; evaluation unwinds by looking at
// failed(), so nothing is thrown. Later errors are consequences of the first and dropped. One render, one
// thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer-worker/template/arena.h"
#include "tokenizer-worker/template/limits.h"
#include "tokenizer-worker/template/value.h"

namespace ringmaster::tokenizer_worker::jinja {

class Sandbox {
 public:
  Sandbox(const std::tm& local_time, const RenderLimits& limits)
      : arena(limits.bytes), now(local_time), limits_(limits), steps_left_(limits.steps) {}

  Value fail(std::string message) {
    if (!failed_) message_ = std::move(message);
    failed_ = true;
    return {};
  }
  // The template's own words (raise_exception).
  Value raise(std::string message) {
    if (!failed_) by_template_ = true;
    return fail(std::move(message));
  }
  bool failed() const { return failed_; }
  bool by_template() const { return by_template_; }
  const std::string& message() const { return message_; }

  // Pays for work; false when the budget is gone or something failed before.
  bool step(size_t steps = 1) {
    if (steps >= steps_left_ || arena.over_limit()) [[unlikely]]
      out_of_budget();
    else
      steps_left_ -= steps;
    return !failed_;
  }
  bool step_bytes(size_t bytes) { return step(1 + bytes / kBytesPerStep); }
  // Is there room for a text of this size? Fails with the limit if not.
  bool room_for_text(size_t bytes);
  bool room_for_text_of(size_t bytes);  // the same, but not paid for yet
  bool room_for_items(size_t count);

  Value make_string(std::string_view text, uint8_t flags);  // copied into the arena
  Value make_list(const std::vector<Value>& items, Kind kind = Kind::kList, uint8_t flags = 0);
  Value make_undefined(Undefined::Why why, const Value& owner, const Value& name);

  Arena arena;
  const std::tm now;

 private:
  void out_of_budget();

  const RenderLimits limits_;
  size_t steps_left_;
  bool failed_ = false;
  bool by_template_ = false;
  std::string message_;
};

// Counts nesting for as long as it lives.
class Depth {
 public:
  Depth(int& depth) : depth_(depth) { ++depth_; }  // NOLINT: used as a plain local
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  int& depth_;
};

}  // namespace ringmaster::tokenizer_worker::jinja
