// The small pieces on their own, with literal expectations.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tokenizer-worker/cache_salt.h"
#include "tokenizer-worker/counters.h"
#include "tokenizer-worker/output.h"
#include "tokenizer-worker/stage_timings.h"
#include "tokenizer-worker/tail.h"

namespace ringmaster::tokenizer_worker {
namespace {

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t b : bytes) {
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text;
}

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // 119 bytes: the padding just fits the second block.
  EXPECT_EQ(hex(sha256(std::string(119, 'a'))),
            "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb");
}

TEST(CacheSalt, IsTheBeginningOfTheHash) {
  const auto salt = cache_salt("acme");  // SHA-256 of "ringmaster tenant acme"
  EXPECT_EQ(hex({reinterpret_cast<const uint8_t*>(salt.data()), 16}), "0ae562422c8a8626569d5dc76fe9876a");
  EXPECT_NE(cache_salt(""), cache_salt("a"));
}

// Against a vector that never forgets.
TEST(Tail, BehavesLikeTheWholeSequence) {
  std::mt19937 random(1);
  Tail<std::vector<int>> tail;
  tail.start_at(1000);
  std::vector<int> whole(1000, -1);
  uint64_t trimmed = 1000;
  for (int round = 0; round < 5000; ++round) {
    const int count = static_cast<int>(random() % 20);
    for (int i = 0; i < count; ++i) {
      whole.push_back(round * 100 + i);
      tail.push_back(whole.back());
    }
    const uint64_t to = trimmed + random() % (whole.size() - trimmed + 1);
    if (random() % 3 == 0) tail.trim(trimmed = to);
    if (random() % 50 == 0) tail.trim(0);  // backwards: nothing
    if (random() % 100 == 0) tail.release();
    ASSERT_EQ(tail.begin(), trimmed);
    ASSERT_EQ(tail.end(), whole.size());
    const uint64_t from = trimmed + random() % (whole.size() - trimmed + 1);
    const auto rest = tail.from(from);
    ASSERT_TRUE(
        std::equal(rest.begin(), rest.end(), whole.begin() + static_cast<std::ptrdiff_t>(from), whole.end()));
    if (from < whole.size()) {
      ASSERT_EQ(tail[from], whole[from]);
    }
  }
}

TEST(Output, LogprobsStayWithTheirTokensAcrossAcks) {
  Output output;
  output.start_at({10, 5}, true);
  const std::vector<TokenLogprob> two = {{1, -1}, {2, -2}}, one = {{3, -3}};
  output.add_token(100, -0.5f, two);
  output.add_token(101, -0.25f, {});
  output.add_token(102, -0.125f, one);
  output.mark_sent();
  EXPECT_TRUE(output.acknowledge({11, 5}));
  EXPECT_EQ(output.logprob(11), -0.25f);
  EXPECT_TRUE(output.top_logprobs(11).empty());
  ASSERT_EQ(output.top_logprobs(12).size(), 1u);
  EXPECT_EQ(output.top_logprobs(12)[0].id, 3u);
  EXPECT_TRUE(output.acknowledge({13, 5}));
  output.add_token(103, -1, two);
  ASSERT_EQ(output.top_logprobs(13).size(), 2u);
  EXPECT_EQ(output.top_logprobs(13)[1].id, 2u);
}

TEST(Output, ALateAcknowledgementOfLessThanIsLeftChangesNothing) {
  Output output;
  output.start_at({}, /*with_logprobs=*/true);
  const TokenLogprob top[] = {{7, -1}};
  for (TokenId id = 0; id < 4; ++id) output.add_token(id, -0.5f, top);
  output.mark_sent();
  ASSERT_TRUE(output.acknowledge({4, 0}));
  EXPECT_TRUE(output.acknowledge({2, 0}));  // nothing is left that it could be of
  EXPECT_TRUE(output.all_acknowledged());
  output.add_token(9, -0.25f, top);
  EXPECT_EQ(output.logprob(4), -0.25f);
  EXPECT_EQ(output.top_logprobs(4).size(), 1u);
}

TEST(Output, AnAcknowledgementThatMeetsARewindCounts) {
  Output output;
  output.start_at({}, /*with_logprobs=*/false);
  for (TokenId id = 0; id < 6; ++id) output.add_token(id, 0, {});
  output.add_text("abcdef");
  output.mark_sent();
  ASSERT_TRUE(output.rewind({2, 2}).ok());
  EXPECT_TRUE(output.acknowledge({5, 4}));  // sent before the rewind
  EXPECT_EQ(output.acknowledged(), (TextPosition{5, 4}));
  EXPECT_EQ(output.sent(), (TextPosition{5, 4}));
  EXPECT_EQ(output.unsent_text(), "ef");
  EXPECT_FALSE(output.acknowledge({7, 6}));  // never sent
}

TEST(Output, ASecondRewindMayBeFurtherThanTheFirst) {
  Output output;
  output.start_at({}, /*with_logprobs=*/false);
  for (TokenId id = 0; id < 6; ++id) output.add_token(id, 0, {});
  output.mark_sent();
  ASSERT_TRUE(output.rewind({2, 0}).ok());
  ASSERT_TRUE(output.rewind({5, 0}).ok());  // two words of the router in one turn, nothing sent between
  EXPECT_EQ(output.unsent_ids().size(), 1u);
  EXPECT_FALSE(output.rewind({7, 0}).ok());
}

TEST(StageTimings, InOrder) {
  const auto t = stage_timings({100, 110, 130, 160, 200, 250}, 310);
  EXPECT_EQ(t.route(), 10u);
  EXPECT_EQ(t.tokenize(), 20u);
  EXPECT_EQ(t.queue(), 30u);
  EXPECT_EQ(t.prefill(), 40u);
  EXPECT_EQ(t.decode(), 50u);
  EXPECT_EQ(t.detokenize(), 60u);
  EXPECT_EQ(t.total(), 210u);
}

TEST(StageTimings, WhatWasNotReachedCountsInTheStageThatLasted) {
  const auto queued = stage_timings({100, 110, 130, 0, 0, 0}, 500);
  EXPECT_EQ(queued.queue(), 370u);
  EXPECT_EQ(queued.prefill() + queued.decode() + queued.detokenize(), 0u);
  const auto encoding = stage_timings({100, 110, 0, 0, 0, 0}, 500);
  EXPECT_EQ(encoding.tokenize(), 390u);
}

TEST(StageTimings, SumIsTotalWhateverTheMarksSay) {
  std::mt19937_64 random(2);
  const auto mark = [&] { return random() % 3 == 0 ? Nanos{0} : static_cast<Nanos>(random() % 1000); };
  for (int i = 0; i < 10'000; ++i) {
    const StageMarks marks{mark(), mark(), mark(), mark(), mark(), mark()};
    const auto t = stage_timings(marks, static_cast<Nanos>(1 + random() % 1000));
    ASSERT_EQ(t.route() + t.tokenize() + t.queue() + t.prefill() + t.decode() + t.detokenize(), t.total());
    ASSERT_LE(t.total(), 1000u);
  }
}

TEST(Counters, AreNamed) {
  Counters counters;
  counters.add(Counter::kTokens, 3);
  EXPECT_NE(counters.to_string().find("tokens 3"), std::string::npos);
  EXPECT_NE(counters.to_string().find("links_lost 0"), std::string::npos);
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
