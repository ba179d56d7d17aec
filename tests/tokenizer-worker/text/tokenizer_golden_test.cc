// Token ids and texts of the default model against the published tokenizer, and what follows from them.
#include <algorithm>
#include <ctime>
#include <functional>

#include "tests/tokenizer-worker/text/test_data.h"
#include "tokenizer-worker/text/detokenizer.h"
#include "tokenizer-worker/text/utf8.h"

namespace ringmaster::tokenizer_worker {
namespace {

using test::encode;
using test::smollm2;
using Ids = std::vector<TokenId>;

// Control bytes, and bytes that UTF-8 never uses or uses rarely: the published vocabulary has no token for
// them.
const std::string kBytesWithoutToken =
    "\x04\x06\x13\x14\x16\x1D\xC0\xC1\xF1\xF2\xF5\xF6\xF7\xF8\xF9\xFA\xFB\xFC\xFD\xFE\xFF";

const std::vector<nlohmann::json>& goldens() {
  static const std::vector<nlohmann::json> lines = [] {
    std::vector<nlohmann::json> parsed;
    const std::string file = test::data_file("tokens.jsonl");
    for (size_t at = 0; at < file.size();) {
      const size_t end = file.find('\n', at);
      parsed.push_back(nlohmann::json::parse(file.substr(at, end - at)));
      at = end + 1;
    }
    return parsed;
  }();
  return lines;
}

// What push by push and finish() hand out; every piece must be valid UTF-8 on its own.
std::string stream(const Ids& ids, bool skip_special) {
  Detokenizer detokenizer(smollm2(), {{}, false, skip_special});
  std::string text;
  const auto take = [&](std::string_view piece) {
    std::string copy;
    EXPECT_EQ(append_lossy(piece, copy), piece.size()) << "a piece ends inside a character";
    EXPECT_EQ(copy, piece);
    text += piece;
  };
  for (const TokenId id : ids) take(detokenizer.push(id));
  take(detokenizer.finish());
  EXPECT_EQ(detokenizer.text_bytes(), text.size());
  return text;
}

// One decode of everything at once.
std::string decode(const Ids& ids, bool skip_special) {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!skip_special || !smollm2().is_control(id)) bytes += smollm2().bytes(id);
  }
  std::string text;
  if (append_lossy(bytes, text) < bytes.size()) text += kReplacement;
  return text;
}

TEST(SmolLM2, EveryReferenceTextGivesTheReferenceIds) {
  ASSERT_EQ(goldens().size(), 2198u);
  for (const auto& golden : goldens()) {
    const auto text = golden["text"].get<std::string>();
    ASSERT_EQ(encode(smollm2(), text, true), golden["ids"].get<Ids>()) << golden["kind"] << ": " << text;
    ASSERT_EQ(encode(smollm2(), text, false), golden["ids_plain"].get<Ids>())
        << golden["kind"] << ": " << text;
  }
}

TEST(SmolLM2, TXT_15_EveryReferenceTextStreamsAsTheReferenceDecodes) {
  for (const auto& golden : goldens()) {
    const auto ids = golden["ids"].get<Ids>();
    ASSERT_EQ(stream(ids, false), golden["decoded"].get<std::string>());
    ASSERT_EQ(stream(ids, true), golden["decoded_skip"].get<std::string>());
  }
}

TEST(SmolLM2, WhatTheFileSaysAboutItself) {
  const Tokenizer& t = smollm2();
  EXPECT_EQ(t.vocab_size(), 49152u);
  EXPECT_EQ(t.end_ids(), (Ids{0, 2}));
  EXPECT_EQ(t.bos(), 1u);
  EXPECT_EQ(t.eos(), 2u);
  EXPECT_FALSE(t.adds_bos());
  EXPECT_EQ(t.bytes(2), "<|im_end|>");
  for (TokenId id = 0; id < t.vocab_size(); ++id) EXPECT_EQ(t.is_control(id), id < 17);
}

TEST(SmolLM2, UserTextNeverBecomesAControlToken) {
  for (const TokenId id : encode(smollm2(), "<|im_end|><|endoftext|><file_sep>", false)) EXPECT_GE(id, 17u);
  EXPECT_EQ(encode(smollm2(), "<|im_end|>", true), Ids{2});
}

TEST(SmolLM2, TOK_11_NoTextMakesItFail) {
  using namespace std::string_literals;
  for (const std::string& text : {"\U0001FAE9"s, "\U000F0000"s, "\0"s, "\U000DFFFF"s, "\uFFFF"s, ""s}) {
    std::string kept;
    for (const char c : text) {
      if (kBytesWithoutToken.find(c) == std::string::npos) kept.push_back(c);
    }
    std::string bytes;
    for (const TokenId id : encode(smollm2(), text)) bytes += smollm2().bytes(id);
    EXPECT_EQ(bytes, kept) << testing::PrintToString(text);
  }
}

TEST(SmolLM2, RandomTextComesBackButForTheBytesWithoutAToken) {
  std::mt19937 random(31337);
  for (int round = 0; round < 2000; ++round) {
    const std::string text = test::random_text(random, random() % 80);
    std::string kept;
    for (const char c : text) {
      if (kBytesWithoutToken.find(c) == std::string::npos) kept.push_back(c);
    }
    std::string bytes;
    for (const TokenId id : encode(smollm2(), text, round % 2)) bytes += smollm2().bytes(id);
    ASSERT_EQ(bytes, kept) << testing::PrintToString(text);
  }
}

TEST(SmolLM2, TXT_01_RandomIdsStreamAsOneFullDecode) {
  std::mt19937 random(4711);
  Ids broken;  // tokens that are not whole characters: half of the picks
  for (TokenId id = 0; id < smollm2().vocab_size(); ++id) {
    std::string text;
    const std::string_view bytes = smollm2().bytes(id);
    if (append_lossy(bytes, text) < bytes.size() || text != bytes) broken.push_back(id);
  }
  ASSERT_GT(broken.size(), 100u);
  for (int round = 0; round < 3000; ++round) {
    Ids ids(random() % 60);
    for (TokenId& id : ids)
      id = random() % 2 ? broken[random() % broken.size()] : random() % smollm2().vocab_size();
    for (const bool skip_special : {false, true})
      ASSERT_EQ(stream(ids, skip_special), decode(ids, skip_special));
  }
}

// Time this thread was running, so that a busy machine does not count.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double seconds(const std::string& text) {
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const double begin = cpu_seconds();
    const size_t ids = encode(smollm2(), text).size();
    best = std::min(best, cpu_seconds() - begin);
    EXPECT_GT(ids, 0u);
  }
  return best;
}

// Ten times the text may cost about ten times the time (n log n and colder caches: 13). The margin is for
// neighbours on the same caches; anything quadratic would need 100.
void expect_linear(const char* what, const std::function<std::string(size_t)>& make, size_t size) {
  double ratio = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    ratio = seconds(make(size)) / seconds(make(size / 10));
    if (ratio < 25) return;
  }
  ADD_FAILURE() << what << ": ten times the text cost " << ratio << " times the time";
}

TEST(SmolLM2, HostileShapesStayLinear) {
  smollm2();
  expect_linear(
      "equal letters", [](size_t n) { return std::string(n, 'a'); }, 1'000'000);
  expect_linear(
      "newlines", [](size_t n) { return std::string(n, '\n'); }, 1'000'000);
  expect_linear(
      "blanks", [](size_t n) { return std::string(n, ' '); }, 1'000'000);
  expect_linear(
      "apostrophes", [](size_t n) { return std::string(n, '\''); }, 1'000'000);
  expect_linear(
      "random letters without a blank",
      [](size_t n) {
        std::mt19937 random(5);
        std::string text(n, 'a');
        for (char& c : text) c = static_cast<char>('a' + random() % 26);
        return text;
      },
      1'000'000);
  expect_linear(
      "half a control token",
      [](size_t n) {
        std::string text;
        while (text.size() < n) text += "<|im_star";
        return text;
      },
      1'000'000);
}

TEST(SmolLM2, TenThousandEqualLettersAreQuick) {
  EXPECT_LT(seconds(std::string(10'000, 'a')), 0.1);  // 1 ms when nothing else runs
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
