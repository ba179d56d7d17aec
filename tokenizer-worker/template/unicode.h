// Character classes and case mapping as Python 3.11 has them. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace ringmaster::tokenizer_worker::jinja {

bool is_space(char32_t code);      // str.isspace, and \s
bool is_printable(char32_t code);  // what repr shows as it is
bool is_letter(char32_t code);
bool is_decimal(char32_t code);  // category Nd
bool is_digit(char32_t code);    // and superscripts, circled digits...
bool is_numeric(char32_t code);
bool is_upper(char32_t code);
bool is_lower(char32_t code);
bool is_title(char32_t code);
bool is_cased(char32_t code);
bool is_word(char32_t code);  // \w

// str.isupper and str.islower: something has case, and nothing has the other.
bool all_upper(std::string_view text);
bool all_lower(std::string_view text);

std::string_view strip_space(std::string_view text, bool left, bool right);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);  // str.title
std::string capitalize(std::string_view text);
std::string swapcase(std::string_view text);
std::string casefold(std::string_view text);

}  // namespace ringmaster::tokenizer_worker::jinja
