#include "tokenizer-worker/text/utf8.h"

#include "tests/tokenizer-worker/text/test_data.h"

namespace ringmaster::tokenizer_worker {
namespace {

// The whole text of `bytes`, an incomplete character at the end as one mark.
std::string lossy(std::string_view bytes) {
  std::string text;
  if (append_lossy(bytes, text) < bytes.size()) text += kReplacement;
  return text;
}

TEST(Utf8, WritesTheSameMarksAsPython) {
  // bytes, and what Python's bytes.decode(errors='replace') makes of them
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"", ""},
      {"\141\142\143", "\141\142\143"},
      {"\144\304\217\040\360\237\253\240\040\344\270\255",
       "\144\304\217\040\360\237\253\240\040\344\270\255"},
      {"\200", "\357\277\275"},
      {"\277\200", "\357\277\275\357\277\275"},
      {"\300\257", "\357\277\275\357\277\275"},
      {"\301\200", "\357\277\275\357\277\275"},
      {"\141\360\237\222\142", "\141\357\277\275\142"},
      {"\360\237\222\101", "\357\277\275\101"},
      {"\340\200\257", "\357\277\275\357\277\275\357\277\275"},
      {"\340\237\200", "\357\277\275\357\277\275\357\277\275"},
      {"\355\240\200", "\357\277\275\357\277\275\357\277\275"},
      {"\355\237\277", "\355\237\277"},
      {"\364\220\200\200", "\357\277\275\357\277\275\357\277\275\357\277\275"},
      {"\364\217\277\277", "\364\217\277\277"},
      {"\365\200\200\200", "\357\277\275\357\277\275\357\277\275\357\277\275"},
      {"\377\376", "\357\277\275\357\277\275"},
      {"\360\200\200\200", "\357\277\275\357\277\275\357\277\275\357\277\275"},
      {"\360\220\200\360\220\200\200", "\357\277\275\360\220\200\200"},
      {"\344\270\344\270\255", "\357\277\275\344\270\255"},
      {"\303\303\251", "\357\277\275\303\251"},
      {"\361\200\200\342\202\302", "\357\277\275\357\277\275\357\277\275"},
      {"\357\277\275", "\357\277\275"},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(lossy(bytes), text) << testing::PrintToString(bytes);
}

// Table 3-7 of the Unicode standard, row by row: the well-formed sequences, with no cleverness.
bool well_formed(std::string_view s) {
  static constexpr struct {
    uint8_t size, first[2], second[2];
  } kRows[] = {
      {1, {0x00, 0x7F}, {}},           {2, {0xC2, 0xDF}, {0x80, 0xBF}}, {3, {0xE0, 0xE0}, {0xA0, 0xBF}},
      {3, {0xE1, 0xEC}, {0x80, 0xBF}}, {3, {0xED, 0xED}, {0x80, 0x9F}}, {3, {0xEE, 0xEF}, {0x80, 0xBF}},
      {4, {0xF0, 0xF0}, {0x90, 0xBF}}, {4, {0xF1, 0xF3}, {0x80, 0xBF}}, {4, {0xF4, 0xF4}, {0x80, 0x8F}},
  };
  const auto in = [&](size_t i, const uint8_t range[2]) {
    const auto byte = static_cast<uint8_t>(s[i]);
    return byte >= range[0] && byte <= range[1];
  };
  static constexpr uint8_t kTail[2] = {0x80, 0xBF};
  for (const auto& row : kRows) {
    if (s.size() == row.size && in(0, row.first) && (s.size() < 2 || in(1, row.second)) &&
        (s.size() < 3 || in(2, kTail)) && (s.size() < 4 || in(3, kTail))) {
      return true;
    }
  }
  return false;
}

// Some continuation makes `s` a character.
bool can_complete(std::string s) {
  for (int second = 0x80; second < 0xC0; ++second) {
    std::string longer = s.size() == 1 ? s + static_cast<char>(second) : s;
    for (; longer.size() <= 4; longer += '\x80') {
      if (longer.size() > s.size() && well_formed(longer)) return true;
    }
  }
  return false;
}

TEST(Utf8, EveryShortSequenceOfInterestingBytesEqualsTheDefinition) {
  static constexpr uint8_t kBytes[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                       0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
                                       0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  constexpr size_t kCount = std::size(kBytes);
  for (size_t number = 0; number < kCount * kCount * kCount * kCount; ++number) {
    const size_t digits[] = {number / (kCount * kCount * kCount), number / (kCount * kCount) % kCount,
                             number / kCount % kCount, number % kCount};
    std::string bytes;
    for (const size_t digit : digits) bytes.push_back(static_cast<char>(kBytes[digit]));
    // The maximal subpart: the longest prefix that is a character or could become one.
    size_t size = 0;
    for (size_t n = 1; n <= 4; ++n) {
      if (well_formed(bytes.substr(0, n)) || can_complete(bytes.substr(0, n))) size = n;
    }
    const bool whole = size > 0 && well_formed(bytes.substr(0, size));
    const Utf8Char found = first_char(bytes);
    ASSERT_EQ(found.kind == Utf8Char::kWhole, whole) << testing::PrintToString(bytes);
    ASSERT_EQ(found.size, std::max<size_t>(size, 1)) << testing::PrintToString(bytes);
    for (size_t n = 1; n < size; ++n) {  // cut short, the same character waits
      ASSERT_EQ(first_char(bytes.substr(0, n)).kind, Utf8Char::kIncomplete) << testing::PrintToString(bytes);
    }
  }
}

TEST(Utf8, KeepsBackOnlyWhatMayStillBecomeACharacter) {
  std::string text;
  EXPECT_EQ(append_lossy("a\xF0\x9F\xAB", text), 1u);
  EXPECT_EQ(text, "a");
  EXPECT_EQ(append_lossy("a\xF0\x9F\xFF", text), 4u);
  EXPECT_EQ(text, "aa\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Utf8, CharacterBorders) {
  const std::string text = "a\xC3\xA9";
  EXPECT_TRUE(is_character_border(text, 0));
  EXPECT_TRUE(is_character_border(text, 1));
  EXPECT_FALSE(is_character_border(text, 2));
  EXPECT_TRUE(is_character_border(text, 3));
  EXPECT_FALSE(is_character_border(text, 4));
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
