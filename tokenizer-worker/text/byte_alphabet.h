// The GPT-2 byte alphabet: each of the 256 bytes is written as one printable character, so that
// vocabularies of byte strings can be stored as text. Printable Latin-1 stands for itself, the other 68
// bytes for U+0100..U+0143 in order. Pure functions, any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ringmaster::tokenizer_worker {

char32_t byte_to_letter(uint8_t byte);

// Appends the bytes that `letters` (UTF-8) spells. False, and `bytes` unchanged, when a character is not in
// the alphabet or `letters` is not UTF-8.
bool letters_to_bytes(std::string_view letters, std::string& bytes);

}  // namespace ringmaster::tokenizer_worker
