#include "tokenizer-worker/text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tests/tokenizer-worker/text/test_data.h"

namespace ringmaster::tokenizer_worker {
namespace {

using Pieces = std::vector<std::string>;

Pieces cut(const char* scheme, std::string_view text) {
  const PreTokenizer* pretokenizer = PreTokenizer::named(scheme);
  if (pretokenizer == nullptr) throw std::runtime_error("unknown scheme");
  Pieces pieces;
  while (!text.empty()) {
    pieces.emplace_back(text.substr(0, pretokenizer->next(text)));
    text.remove_prefix(pieces.back().size());
  }
  return pieces;
}

// The published regular expressions, run by PCRE2 over the reference's own character classes.
class Reference {
 public:
  explicit Reference(bool digits_alone) {
    const auto classes = nlohmann::json::parse(test::data_file("unicode_classes.json"))["classes"];
    const std::string letter = ranges(classes.at("\\p{L}"));
    const std::string number = ranges(classes.at("\\p{N}"));
    const std::string space = ranges(classes.at("\\s"));
    gpt2_ = compile("'s|'t|'re|'ve|'m|'ll|'d| ?[" + letter + "]+| ?[" + number + "]+| ?[^" + space + letter +
                    number + "]+|[" + space + "]+(?![^" + space + "])|[" + space + "]+");
    if (digits_alone)
      digit_ = compile("[" + ranges(classes.at("Digits pre-tokenizer (char::is_numeric)")) + "]");
  }
  ~Reference() {
    pcre2_code_free(gpt2_);
    pcre2_code_free(digit_);
  }
  Reference(const Reference&) = delete;

  Pieces cut(const std::string& text) const {
    Pieces pieces;
    if (digit_ == nullptr) {
      matches(gpt2_, text, pieces);
      return pieces;
    }
    size_t at = 0;
    while (at < text.size()) {
      const auto [begin, end] = search(digit_, text, at);
      matches(gpt2_, text.substr(at, begin - at), pieces);
      if (end > begin) pieces.push_back(text.substr(begin, end - begin));
      at = std::max(end, begin);
    }
    return pieces;
  }

 private:
  static std::string ranges(const nlohmann::json& list) {
    std::ostringstream out;
    out << std::hex;
    for (const auto& range : list) {
      out << "\\x{" << range[0].get<uint32_t>() << "}-\\x{" << range[1].get<uint32_t>() << "}";
    }
    return out.str();
  }
  static pcre2_code* compile(const std::string& pattern) {
    int error = 0;
    size_t at = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF,
                                     &error, &at, nullptr);
    if (code == nullptr) throw std::runtime_error("bad pattern");
    return code;
  }
  static std::pair<size_t, size_t> search(const pcre2_code* code, const std::string& text, size_t from) {
    pcre2_match_data* data = pcre2_match_data_create_from_pattern(code, nullptr);
    const int count =
        pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, 0, data, nullptr);
    std::pair<size_t, size_t> found{text.size(), text.size()};
    if (count > 0) found = {pcre2_get_ovector_pointer(data)[0], pcre2_get_ovector_pointer(data)[1]};
    pcre2_match_data_free(data);
    if (count < PCRE2_ERROR_NOMATCH) throw std::runtime_error("PCRE2 failed");
    return found;
  }
  static void matches(const pcre2_code* code, const std::string& text, Pieces& pieces) {
    for (size_t at = 0; at < text.size();) {
      const auto [begin, end] = search(code, text, at);
      if (begin != at) throw std::runtime_error("the pattern leaves a gap");
      pieces.push_back(text.substr(begin, end - begin));
      at = end;
    }
  }

  pcre2_code* gpt2_ = nullptr;
  pcre2_code* digit_ = nullptr;
};

TEST(PreTokenizer, WorkedExamples) {
  EXPECT_EQ(cut("gpt-2", "Hello, world!  I'm 42."),
            (Pieces{"Hello", ",", " world", "!", " ", " I", "'m", " 42", "."}));
  EXPECT_EQ(cut("smollm", "Hello, world!  I'm 42."),
            (Pieces{"Hello", ",", " world", "!", " ", " I", "'m", " ", "4", "2", "."}));
  EXPECT_EQ(cut("gpt-2", "a  1  "), (Pieces{"a", " ", " 1", "  "}));
  EXPECT_EQ(cut("smollm", "a  1  b"), (Pieces{"a", "  ", "1", " ", " b"}));
  EXPECT_EQ(cut("smollm", "a\n\nb \n"), (Pieces{"a", "\n", "\n", "b", " \n"}));
  EXPECT_EQ(cut("smollm", "they'll'x ''s"), (Pieces{"they", "'ll", "'", "x", " ''", "s"}));
  EXPECT_EQ(cut("smollm", "I'M"), (Pieces{"I", "'", "M"}));  // the pattern knows lower case only
  EXPECT_EQ(cut("smollm", " "), (Pieces{" "}));
  EXPECT_EQ(cut("smollm", ""), Pieces{});
}

TEST(PreTokenizer, NamesItDoesNotKnow) {
  EXPECT_EQ(PreTokenizer::named("llama-bpe"), nullptr);
  EXPECT_EQ(PreTokenizer::named(""), nullptr);
  EXPECT_EQ(PreTokenizer::named("gpt"), nullptr);
  EXPECT_EQ(PreTokenizer::known_names(), "gpt-2, smollm");
}

TEST(PreTokenizer, EqualsTheRegularExpressionOnRandomText) {
  std::mt19937 random(20240611);
  for (const auto& [scheme, digits_alone] : {std::pair{"gpt-2", false}, std::pair{"smollm", true}}) {
    const Reference reference(digits_alone);
    for (int round = 0; round < 1500; ++round) {
      const std::string text = test::random_text(random, random() % 40);
      ASSERT_EQ(cut(scheme, text), reference.cut(text)) << scheme << ": " << testing::PrintToString(text);
    }
  }
}

TEST(PreTokenizer, BrokenUtf8IsCutButNeverReadPast) {
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    // Exactly sized on the heap, so that the address sanitizer sees one byte too many.
    std::vector<char> bytes(1 + random() % 12);
    for (char& byte : bytes)
      byte = static_cast<char>(random() % 3 ? 0x80 + random() % 0x80 : random() % 0x80);
    std::string_view left(bytes.data(), bytes.size());
    while (!left.empty()) {
      const size_t size = PreTokenizer::named("smollm")->next(left);
      ASSERT_GT(size, 0u);
      ASSERT_LE(size, left.size());
      left.remove_prefix(size);
    }
  }
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
