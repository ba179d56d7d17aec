// What one template may cost. Templates come from model files and conversations from users, so both are
// hostile: reaching a limit is an error of that render, never a crash and never a long wait. No function, no
// state.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringmaster::tokenizer_worker::jinja {

// The largest published template has 30 KB.
inline constexpr size_t kMaxSourceBytes = 1 << 20;
// CPython's limit on nested parentheses; templates are written for it.
inline constexpr int kMaxNesting = 200;
// One step is one expression, one statement or 64 bytes of text work; 10^7 take about half a second.
inline constexpr size_t kMaxSteps = 10'000'000;
inline constexpr size_t kBytesPerStep = 64;
// Nested expressions and statements under evaluation, macro bodies included: about 150 nested macro calls.
// At most 1 KB of stack each, 4 KB in a build with AddressSanitizer, of the 8 MiB a thread has.
inline constexpr int kMaxDepth = 1'500;
// Lists in lists: Python's own limit is about 1,000.
inline constexpr int kMaxValueDepth = 500;
// Jinja's MAX_RANGE.
inline constexpr int64_t kMaxRange = 100'000;
// Four times the largest prompt.
inline constexpr size_t kMaxTextBytes = 64u << 20;
// Everything one render holds; texts copied a few times.
inline constexpr size_t kMaxRenderBytes = 256u << 20;

// Of one render; never above the two constants. Fuzzing lowers them.
struct RenderLimits {
  size_t steps = kMaxSteps;
  size_t bytes = kMaxRenderBytes;
};

}  // namespace ringmaster::tokenizer_worker::jinja
