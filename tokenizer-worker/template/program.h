// A compiled template: its tree, the memory it lies in and its variable names by number. Immutable once
// parsed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "tokenizer-worker/template/ast.h"

namespace ringmaster::tokenizer_worker::jinja {

struct Program {
  Arena arena{64 * kArenaUnit};
  Body body;
  std::vector<std::string_view> names;  // by NameId
  std::unordered_map<std::string_view, NameId> ids;

  // Names that the evaluator itself sets.
  NameId loop = 0, caller = 0, varargs = 0, kwargs = 0;

  // `name` outlives the program or lies in its arena.
  NameId id(std::string_view name) {
    const auto [at, added] = ids.try_emplace(name, static_cast<NameId>(names.size()));
    if (added) names.push_back(name);
    return at->second;
  }

 private:
  static constexpr size_t kArenaUnit = 1 << 20;
};

// Refuses by name what the evaluator cannot do: kMalformed for what is no template, kUnsupported for what is
// one elsewhere.
Result<Program> parse(std::string_view source);

}  // namespace ringmaster::tokenizer_worker::jinja
