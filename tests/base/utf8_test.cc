#include "base/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace ringmaster {
namespace {

// The definition, byte by byte and slow: decode, then refuse what has a shorter form, surrogates and what is
// too large.
size_t slow_prefix(std::string_view s) {
  size_t i = 0;
  while (i < s.size()) {
    const auto byte = [&](size_t k) { return static_cast<uint32_t>(static_cast<unsigned char>(s[i + k])); };
    const uint32_t lead = byte(0);
    const size_t length = lead < 0x80             ? 1
                          : (lead & 0xE0) == 0xC0 ? 2
                          : (lead & 0xF0) == 0xE0 ? 3
                          : (lead & 0xF8) == 0xF0 ? 4
                                                  : 0;
    if (length == 0 || s.size() - i < length) return i;
    uint32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
    for (size_t k = 1; k < length; ++k) {
      if ((byte(k) & 0xC0) != 0x80) return i;
      code = code << 6 | (byte(k) & 0x3F);
    }
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return i;
    i += length;
  }
  return i;
}

TEST(Utf8, WorkedExamples) {
  EXPECT_TRUE(is_valid_utf8(""));
  EXPECT_TRUE(is_valid_utf8(std::string_view("\0", 1)));
  EXPECT_TRUE(
      is_valid_utf8("\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"));
  EXPECT_EQ(valid_utf8_prefix("abc\xC0\xAF"), 3u);           // overlong
  EXPECT_EQ(valid_utf8_prefix("abc\xE0\x9F\xBF"), 3u);       // overlong
  EXPECT_EQ(valid_utf8_prefix("abc\xED\xA0\x80"), 3u);       // surrogate
  EXPECT_EQ(valid_utf8_prefix("abc\xF4\x90\x80\x80"), 3u);   // above U+10FFFF
  EXPECT_EQ(valid_utf8_prefix("12345678abc\xE2\x82"), 11u);  // cut off
  EXPECT_EQ(valid_utf8_prefix("\x80"), 0u);
}

TEST(Utf8, AllShortSequencesAgreeWithTheDefinition) {
  std::string s(3, '\0');
  for (uint32_t lead = 0; lead < 256; ++lead)
    for (uint32_t second = 0; second < 256; ++second)
      for (const uint32_t third : {0x00u, 0x7Fu, 0x80u, 0xBFu, 0xC0u, 0xFFu}) {
        s = {static_cast<char>(lead), static_cast<char>(second), static_cast<char>(third)};
        ASSERT_EQ(valid_utf8_prefix(s), slow_prefix(s)) << lead << " " << second << " " << third;
        s += '\x80';
        ASSERT_EQ(valid_utf8_prefix(s), slow_prefix(s)) << lead << " " << second << " " << third;
      }
}

TEST(Utf8, RandomBytesAtEveryOffsetAgreeWithTheDefinition) {
  std::mt19937 random(7);
  const std::string_view alphabet[] = {"a",    "bcdefghij", "\xC3\xA9",    "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                       "\xFF", "\xE2\x82",  "\xED\xA0\x80"};
  for (int round = 0; round < 20'000; ++round) {
    std::string s;
    while (random() % 8) s += alphabet[random() % (round % 2 ? 5 : 8)];
    ASSERT_EQ(valid_utf8_prefix(s), slow_prefix(s));
  }
}

TEST(Utf8, TheErrorNamesTheThingAndTheByte) {
  EXPECT_TRUE(check_utf8("prompt", "\xC3\xA9"));
  const Status bad = check_utf8("stop[1]", "ab\xFF");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, Code::kInvalidUtf8);
  EXPECT_EQ(bad.error().message, "stop[1] is not UTF-8: byte 2 starts no valid character");
}

}  // namespace
}  // namespace ringmaster
