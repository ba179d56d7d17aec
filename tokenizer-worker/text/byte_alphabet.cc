#include "tokenizer-worker/text/byte_alphabet.h"

#include <array>

#include "tokenizer-worker/text/utf8.h"

namespace ringmaster::tokenizer_worker {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;
constexpr uint16_t kNoByte = 256;

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<char32_t, 256> letter{};
  std::array<uint16_t, kAlphabetEnd> byte{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(kNoByte);
  char32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const char32_t letter = stands_for_itself(byte) ? byte : next++;
    alphabet.letter[byte] = letter;
    alphabet.byte[letter] = static_cast<uint16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t byte_to_letter(uint8_t byte) {
  return kAlphabet.letter[byte];
}

bool letters_to_bytes(std::string_view letters, std::string& bytes) {
  const size_t before = bytes.size();
  while (!letters.empty()) {
    const Utf8Char next = first_char(letters);
    const uint16_t byte =
        next.kind == Utf8Char::kWhole && next.code < kAlphabetEnd ? kAlphabet.byte[next.code] : kNoByte;
    if (byte == kNoByte) {
      bytes.resize(before);
      return false;
    }
    bytes.push_back(static_cast<char>(byte));
    letters.remove_prefix(next.size);
  }
  return true;
}

}  // namespace ringmaster::tokenizer_worker
