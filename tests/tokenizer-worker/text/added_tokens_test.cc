#include "tokenizer-worker/text/added_tokens.h"

#include "tests/tokenizer-worker/text/test_data.h"

namespace ringmaster::tokenizer_worker {
namespace {

TEST(AddedTokens, LeftmostThenLongest) {
  const AddedTokens tokens({{"<a>", 1}, {"<a>b", 2}, {"<ab", 3}, {"x", 4}});
  const auto found = [&](std::string_view text, size_t from = 0) {
    const AddedTokens::Match match = tokens.find(text, from);
    return std::tuple{match.at, match.size, match.id};
  };
  EXPECT_EQ(found("--<a>b"), (std::tuple{2u, 4u, 2u}));
  EXPECT_EQ(found("--<a>c"), (std::tuple{2u, 3u, 1u}));
  EXPECT_EQ(found("<<ab<a>"), (std::tuple{1u, 3u, 3u}));
  EXPECT_EQ(found("<<ab<a>", 2), (std::tuple{4u, 3u, 1u}));
  EXPECT_EQ(found("<ax"), (std::tuple{2u, 1u, 4u}));
  EXPECT_EQ(found("<a"), (std::tuple{2u, 0u, 0u}));
  EXPECT_EQ(found(""), (std::tuple{0u, 0u, 0u}));
}

TEST(AddedTokens, NoneAtAll) {
  const AddedTokens none({});
  EXPECT_EQ(none.find("abc", 0).size, 0u);
  EXPECT_EQ(none.find("abc", 0).at, 3u);
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
