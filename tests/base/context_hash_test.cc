#include "base/context_hash.h"

#include <gtest/gtest.h>

#include <set>

namespace ringmaster::context_hash {
namespace {

TEST(ContextHash, LiteralValuesAreTheContract) {
  EXPECT_EQ(mix(kStart, 0), 0x2CB0F69F4ABEA221ull);
  EXPECT_EQ(expected(std::vector<TokenId>{1, 2, 3}, 49152, {}, 4),
            (std::vector<TokenId>{9781, 9288, 35816, 48060}));
}

TEST(ContextHash, RankingGivesEachAllowedIdOnce) {
  const std::vector<TokenId> never = {0, 2, 9};
  Ranking ranking(mix(kStart, 5), 10, never);
  std::set<TokenId> ids;
  for (int i = 0; i < 7; ++i) ids.insert(ranking.next());
  EXPECT_EQ(ids, (std::set<TokenId>{1, 3, 4, 5, 6, 7, 8}));
}

// Every id of a vocabulary forbidden but one: the draws give up and count.
TEST(ContextHash, RankingEndsWhenNearlyEverythingIsForbidden) {
  std::vector<TokenId> never(4999);
  for (TokenId id = 0; id < never.size(); ++id) never[id] = id;
  EXPECT_EQ(token_of(kStart, 5000, never), 4999u);
}

}  // namespace
}  // namespace ringmaster::context_hash
