// What map, sort, groupby... look at in each item: an attribute path ("function.name", "0.id"), or the item
// itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tokenizer-worker/template/sandbox.h"

namespace ringmaster::tokenizer_worker::jinja {

class AttributePath {
 public:
  AttributePath() = default;
  // None or kMissing: the item itself. An integer: one subscript.
  AttributePath(Sandbox& box, const Value& attribute);
  // `fallback` kMissing: what is not there stays undefined.
  Value of(Sandbox& box, Value item, const Value& fallback = kMissingValue) const;

 private:
  std::span<const Value> keys_;
};

// The item for comparing without regard to case.
Value ignore_case(Sandbox& box, const Value& value);

}  // namespace ringmaster::tokenizer_worker::jinja
