// The two filters that lay text out: wordwrap and striptags.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tokenizer-worker/template/sandbox.h"

namespace ringmaster::tokenizer_worker::jinja {

// Without <!-- comments --> and <tags>, entities of the five markup characters resolved, white space folded.
std::string without_tags(std::string_view text);

// Lines of at most `width` code points, cut at blanks (and behind hyphens), joined by `joint`. REQUIRES:
// width > 0.
Value wrap_words(Sandbox& box, const Value& string, int64_t width, bool break_words, const Value& joint,
                 bool break_hyphens);

}  // namespace ringmaster::tokenizer_worker::jinja
