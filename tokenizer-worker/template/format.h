// str % values, the format filter, and str.format with Python's mini-languages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tokenizer-worker/template/builtins.h"

namespace ringmaster::tokenizer_worker::jinja {

// `values`: a tuple, a dict for %(name)s, or the one value.
Value format_percent(Sandbox& box, const Value& format, const Value& values);
Value format_braces(Sandbox& box, const Value& format, const Arguments& arguments);

}  // namespace ringmaster::tokenizer_worker::jinja
