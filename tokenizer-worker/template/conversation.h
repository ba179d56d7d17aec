// A request's JSON as template values. Strings are not copied: the JSON outlives the render. All of it
// counts as conversation, but for the role of a message, which templates write between the halves of a
// control token.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "tokenizer-worker/template/sandbox.h"

namespace ringmaster::tokenizer_worker::jinja {

Value from_json(Sandbox& box, const nlohmann::ordered_json& json);
// The list under "messages".
Value messages_from_json(Sandbox& box, const nlohmann::ordered_json& json);

}  // namespace ringmaster::tokenizer_worker::jinja
