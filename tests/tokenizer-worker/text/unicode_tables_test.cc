#include "tokenizer-worker/text/unicode_tables.h"

#include "tests/tokenizer-worker/text/test_data.h"

namespace ringmaster::tokenizer_worker {
namespace {

TEST(UnicodeTables, EqualTheReferenceClassesAtEveryCodePoint) {
  const auto classes = nlohmann::json::parse(test::data_file("unicode_classes.json"))["classes"];
  const std::pair<const char*, bool (*)(char32_t)> tables[] = {
      {"\\p{L}", is_letter},
      {"\\p{N}", is_number},
      {"\\s", is_space},
      {"Digits pre-tokenizer (char::is_numeric)", is_digit},
  };
  for (const auto& [name, is_member] : tables) {
    std::vector<bool> expected(0x110000);
    size_t members = 0;
    for (const auto& range : classes.at(name)) {
      for (size_t code = range[0]; code <= range[1].get<size_t>(); ++code, ++members) expected[code] = true;
    }
    ASSERT_GT(members, 20u);
    for (char32_t code = 0; code < 0x110000; ++code) {
      ASSERT_EQ(is_member(code), expected[code]) << name << " at code point " << static_cast<uint32_t>(code);
    }
  }
}

TEST(UnicodeTables, DigitsAreMoreThanNumbers) {
  EXPECT_TRUE(is_digit(0x11DE0));
  EXPECT_FALSE(is_number(0x11DE0));
  EXPECT_TRUE(is_digit(0xB2));  // superscript two
  EXPECT_FALSE(is_letter(0xFFFFFFFF));
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
