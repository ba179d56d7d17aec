// Cutting and rebuilding strings, for the methods and filters that share it. Pieces keep who wrote them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "tokenizer-worker/template/sandbox.h"

namespace ringmaster::tokenizer_worker::jinja {

// str.strip and its kin; `characters` kMissing or None: white space.
Value strip(Sandbox& box, const Value& string, const Value& characters, bool left, bool right);
// str.replace; a negative count means all.
Value replace(Sandbox& box, const Value& string, const Value& old, const Value& by, int64_t count);
// str.splitlines
std::vector<Value> split_lines(Sandbox& box, const Value& string, bool keep_ends);
// str.ljust, rjust, center: blanks of `fill` to a width in code points.
Value pad(Sandbox& box, const Value& string, int64_t width, std::string_view fill, char align);
// A part of `string` that str() of it was cut to.
Value part(Sandbox& box, const Value& string, std::string_view text);

}  // namespace ringmaster::tokenizer_worker::jinja
