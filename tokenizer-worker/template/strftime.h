// datetime.strftime as templates use it, in the C locale.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>
#include <string>
#include <string_view>

namespace ringmaster::tokenizer_worker::jinja {

// Appends to `text`; false with the reason for a directive it does not know.
bool format_time(std::string_view format, const std::tm& time, std::string& text, std::string& why);

}  // namespace ringmaster::tokenizer_worker::jinja
