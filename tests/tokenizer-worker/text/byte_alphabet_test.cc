#include "tokenizer-worker/text/byte_alphabet.h"

#include "tests/tokenizer-worker/text/test_data.h"

namespace ringmaster::tokenizer_worker {
namespace {

TEST(ByteAlphabet, KnownLetters) {
  EXPECT_EQ(byte_to_letter('a'), U'a');
  EXPECT_EQ(byte_to_letter(' '), U'\u0120');
  EXPECT_EQ(byte_to_letter('\n'), U'\u010A');
  EXPECT_EQ(byte_to_letter(0x00), U'\u0100');
  EXPECT_EQ(byte_to_letter(0x7F), U'\u0121');
  EXPECT_EQ(byte_to_letter(0xA0), U'\u0142');
  EXPECT_EQ(byte_to_letter(0xAD), U'\u0143');
  EXPECT_EQ(byte_to_letter(0xFF), U'\u00FF');
}

TEST(ByteAlphabet, EveryByteComesBack) {
  std::string letters;
  std::string expected;
  for (int byte = 0; byte < 256; ++byte) {
    test::append_utf8(letters, byte_to_letter(static_cast<uint8_t>(byte)));
    expected.push_back(static_cast<char>(byte));
  }
  std::string bytes = "before";
  ASSERT_TRUE(letters_to_bytes(letters, bytes));
  EXPECT_EQ(bytes, "before" + expected);
}

TEST(ByteAlphabet, RefusesWhatItDoesNotHold) {
  std::string bytes = "kept";
  for (const char* letters : {"a b", "ab\xC5\x84", "\xE4\xB8\xAD", "a\xFF", "a\xC4", "\xC2\xAD", "a\n"}) {
    EXPECT_FALSE(letters_to_bytes(letters, bytes)) << letters;
    EXPECT_EQ(bytes, "kept");
  }
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
