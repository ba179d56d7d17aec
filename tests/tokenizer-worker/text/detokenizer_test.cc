// Streaming with stop strings, on a tokenizer whose tokens are what each test says.
#include "tokenizer-worker/text/detokenizer.h"

#include <algorithm>
#include <optional>

#include "tests/tokenizer-worker/text/test_data.h"
#include "tokenizer-worker/text/utf8.h"

namespace ringmaster::tokenizer_worker {
namespace {

using Texts = std::vector<std::string>;

// Tokens are given as bytes; those in <angle brackets> are control tokens.
class Scripted final : public Tokenizer {
 public:
  explicit Scripted(Texts tokens) : tokens_(std::move(tokens)) {}
  void encode(std::string_view, bool, std::vector<TokenId>&) const override { FAIL() << "not used here"; }
  std::string_view bytes(TokenId id) const override { return tokens_[id]; }
  bool is_control(TokenId id) const override { return tokens_[id].size() > 1 && tokens_[id][0] == '<'; }
  uint32_t vocab_size() const override { return static_cast<uint32_t>(tokens_.size()); }
  const std::vector<TokenId>& end_ids() const override { return end_ids_; }
  bool adds_bos() const override { return false; }
  TokenId bos() const override { return kNoTokenId; }
  TokenId eos() const override { return kNoTokenId; }

 private:
  Texts tokens_;
  std::vector<TokenId> end_ids_;
};

struct Outcome {
  Texts pieces;  // of every push, then of finish() if the stream was not stopped
  std::optional<std::string> stop;
  uint64_t tokens;
  std::string text() const {
    std::string joined;
    for (const std::string& piece : pieces) joined += piece;
    return joined;
  }
};

Outcome run(const Texts& tokens, StreamRules rules) {
  const Scripted tokenizer(tokens);
  Detokenizer detokenizer(tokenizer, std::move(rules));
  Outcome outcome;
  for (TokenId id = 0; id < tokens.size() && !detokenizer.stopped(); ++id) {
    outcome.pieces.emplace_back(detokenizer.push(id));
  }
  if (!detokenizer.stopped()) outcome.pieces.emplace_back(detokenizer.finish());
  if (detokenizer.stopped()) outcome.stop = detokenizer.stop_string();
  outcome.tokens = detokenizer.tokens();
  EXPECT_EQ(detokenizer.text_bytes(), outcome.text().size());
  return outcome;
}

Texts one_by_one(std::string_view bytes) {
  Texts tokens;
  for (const char c : bytes) tokens.emplace_back(1, c);
  return tokens;
}

TEST(Detokenizer, TXT_01_BytesWaitUntilTheirCharacterIsWhole) {
  EXPECT_EQ(run(one_by_one("\U0001FAE0"), {}).pieces, (Texts{"", "", "", "\U0001FAE0", ""}));
  EXPECT_EQ(run(one_by_one("\u010F"), {}).pieces, (Texts{"", "\u010F", ""}));
  EXPECT_EQ(run(one_by_one("\U00020BB7"), {}).pieces, (Texts{"", "", "", "\U00020BB7", ""}));
  EXPECT_EQ(run({"x\xF0\x9F", "\xAB\xA0y\xE4"}, {}).pieces, (Texts{"x", "\U0001FAE0y", "\uFFFD"}));
}

TEST(Detokenizer, TXT_03_AForcedEndShowsHalfACharacterAsOneMark) {
  const Outcome outcome = run({"\u4E2D", "\xE6", "\x96"}, {});
  EXPECT_EQ(outcome.pieces, (Texts{"\u4E2D", "", "", "\uFFFD"}));
  EXPECT_EQ(outcome.tokens, 3u);
}

TEST(Detokenizer, BrokenBytesBecomeAMarkAsSoonAsNothingCanMendThem) {
  EXPECT_EQ(run({"\xFF", "a"}, {}).pieces, (Texts{"\uFFFD", "a", ""}));
  EXPECT_EQ(run({"\xF0\x9F", "a"}, {}).pieces, (Texts{"", "\uFFFDa", ""}));
  EXPECT_EQ(run({"\xE0", "\x80", "b"}, {}).pieces, (Texts{"", "\uFFFD\uFFFD", "b", ""}));
}

TEST(Detokenizer, TXT_05_AStopStringAcrossTokensIsTrimmed) {
  const Texts tokens = {"Thought", "\n", "Obs", "ervation", ": x"};
  const Outcome outcome = run(tokens, {{"\nObservation:"}});
  EXPECT_EQ(outcome.pieces, (Texts{"Thought", "", "", "", ""}));
  EXPECT_EQ(outcome.stop, "\nObservation:");
  EXPECT_EQ(outcome.tokens, 5u);
  EXPECT_EQ(run(tokens, {{"\nObservation:"}, true}).text(), "Thought\nObservation:");
}

TEST(Detokenizer, HoldsBackNoMoreThanMayBecomeAStop) {
  EXPECT_EQ(run({"a\n", "Ob", "ject", "ive\n"}, {{"\nObservation:"}}).pieces,
            (Texts{"a", "", "\nObject", "ive", "\n"}));
  EXPECT_EQ(run({"aab", "aac"}, {{"aabaab"}}).pieces, (Texts{"", "aabaac", ""}));
  EXPECT_EQ(run({"aab", "aabaab"}, {{"aabaac"}}).pieces, (Texts{"", "aabaab", "aab"}));
}

TEST(Detokenizer, OfSeveralStopsTheFirstCompletedThenTheLongest) {
  EXPECT_EQ(run({"xabcd"}, {{"abcd", "bc"}}).stop, "bc");
  EXPECT_EQ(run({"xabcd"}, {{"abcd", "bc"}}).text(), "xa");
  EXPECT_EQ(run({"xabcd"}, {{"bc", "abc"}}).stop, "abc");
  EXPECT_EQ(run({"xabcd"}, {{"bc", "abc"}}).text(), "x");
  EXPECT_EQ(run({"stop STOP"}, {{"STOP", "stop"}}).text(), "");
}

TEST(Detokenizer, TXT_09_AnyStringMayBeAStop) {
  for (const std::string stop : {"\"}", "\n", "\t", "\U0001F600", "\"", "{", "\\", "'", "]]>"}) {
    const Outcome outcome = run(one_by_one("{\"a\": 1" + stop + " rest"), {{"never", stop}});
    const std::string before = "{\"a\": 1";
    EXPECT_EQ(outcome.stop, stop);
    EXPECT_EQ(outcome.text(), before.substr(0, (before + stop).find(stop)));
  }
}

TEST(Detokenizer, TXT_15_ControlTokensLeaveTextOnlyWhenAskedFor) {
  const Texts tokens = {"<|im_start|>", "a\xC4", "<tool>", "\x8F", "<|im_end|>"};
  EXPECT_EQ(run(tokens, {}).pieces,
            (Texts{"", "a", "", "\u010F", "", ""}));  // the character goes on behind the marker
  EXPECT_EQ(run(tokens, {{}, false, false}).text(), "<|im_start|>a\uFFFD<tool>\uFFFD<|im_end|>");
  EXPECT_EQ(run(tokens, {{"<tool>"}, false, false}).text(), "<|im_start|>a\uFFFD");
}

TEST(Detokenizer, AMarkAtTheEndMayCompleteAStop) {
  const Outcome outcome = run({"ab", "\xE6"}, {{"b\uFFFD"}});
  EXPECT_EQ(outcome.stop, "b\uFFFD");
  EXPECT_EQ(outcome.text(), "a");
}

// The rules on the whole text at once, by trying every place.
Outcome reference(const Texts& tokens, const StreamRules& rules) {
  Outcome outcome{};
  std::string bytes;
  for (const std::string& token : tokens) bytes += token;
  std::string text;
  if (append_lossy(bytes, text) < bytes.size()) text += kReplacement;
  for (size_t end = 1; end <= text.size() && !outcome.stop; ++end) {
    for (const std::string& stop : rules.stop) {
      if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0 &&
          (!outcome.stop || stop.size() > outcome.stop->size())) {
        outcome.stop = stop;
      }
    }
    if (outcome.stop) text.resize(rules.include_stop ? end : end - outcome.stop->size());
  }
  outcome.pieces = {text};
  return outcome;
}

TEST(Detokenizer, RandomStreamsEqualTheRulesAppliedToTheWholeText) {
  std::mt19937 random(2024);
  static const char* const kParts[] = {"a",      "b",        "ab",   "\xC3", "\xA9",
                                       "\u00E9", "\xE4\xB8", "\xAD", "ba",   "\xFF"};
  static const char* const kStops[] = {"ab",     "aab",      "abab",  "b\u00E9",
                                       "\u4E2D", "ba\uFFFD", "bbbbb", "\u00E9a"};
  int stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    Texts tokens(random() % 12);
    for (std::string& token : tokens) {
      for (size_t parts = 1 + random() % 2; parts > 0; --parts) token += kParts[random() % std::size(kParts)];
    }
    StreamRules rules;
    for (size_t stops = random() % 4; stops > 0; --stops)
      rules.stop.emplace_back(kStops[random() % std::size(kStops)]);
    rules.include_stop = random() % 2;
    const Outcome expected = reference(tokens, rules);
    const Outcome outcome = run(tokens, rules);
    ASSERT_EQ(outcome.text(), expected.text())
        << testing::PrintToString(tokens) << testing::PrintToString(rules.stop);
    ASSERT_EQ(outcome.stop, expected.stop)
        << testing::PrintToString(tokens) << testing::PrintToString(rules.stop);
    for (const std::string& piece : outcome.pieces) {
      std::string copy;
      ASSERT_EQ(append_lossy(piece, copy), piece.size());
      ASSERT_EQ(copy, piece);
    }
    stopped += outcome.stop.has_value();
  }
  EXPECT_GT(stopped, 4000);
}

// Nothing may be held that could not become a stop: after every push, what is held is a beginning of a stop
// string.
TEST(Detokenizer, TheHoldBackIsTheShortestPossible) {
  std::mt19937 random(77);
  for (int round = 0; round < 3000; ++round) {
    Texts tokens(1 + random() % 10);
    for (std::string& token : tokens) {
      for (size_t size = 1 + random() % 3; size > 0; --size) token += random() % 2 ? 'a' : 'b';
    }
    const Texts stops = {"aabab", "bbb", "abaaaab"};
    const Scripted tokenizer(tokens);
    Detokenizer detokenizer(tokenizer, {stops});
    std::string seen;
    std::string given;
    for (TokenId id = 0; id < tokens.size(); ++id) {
      given += detokenizer.push(id);
      if (detokenizer.stopped()) break;
      seen += tokens[id];
      size_t longest = 0;
      for (const std::string& stop : stops) {
        for (size_t n = 1; n < stop.size(); ++n) {
          if (seen.ends_with(stop.substr(0, n))) longest = std::max(longest, n);
        }
      }
      ASSERT_EQ(given, seen.substr(0, seen.size() - longest)) << testing::PrintToString(tokens);
    }
  }
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
