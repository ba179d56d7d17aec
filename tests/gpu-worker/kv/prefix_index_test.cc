#include "gpu-worker/kv/prefix_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace ringmaster::gpu_worker {
namespace {

using Ids = std::vector<TokenId>;
constexpr SipHash128::Key kPaperKey = {0x0706050403020100, 0x0f0e0d0c0b0a0908};

std::string hex(const Hash128& hash) {
  std::string out;
  for (uint64_t word : {hash.lo, hash.hi}) {
    for (int i = 0; i < 8; ++i) {
      char digits[3];
      snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned>(word >> (8 * i) & 0xff));
      out += digits;
    }
  }
  return out;
}

// vectors_sip128 of the authors' reference code: key 00..0f, input 00, 01, ...; lengths 0, 8 and 16.
TEST(SipHash128, EqualsTheVectorsOfItsAuthors) {
  EXPECT_EQ(hex(SipHash128(kPaperKey).finish()), "a3817f04ba25a8e66df67214c7550293");
  SipHash128 eight(kPaperKey);
  eight.add(0x0706050403020100);
  EXPECT_EQ(hex(eight.finish()), "3b62a9ba6258f5610f83e264f31497b4");
  SipHash128 sixteen(kPaperKey);
  sixteen.add(0x0706050403020100);
  sixteen.add(0x0f0e0d0c0b0a0908);
  EXPECT_EQ(hex(sixteen.finish()), "6ee2a4ca67b054bbfd3315bf85230577");
}

TEST(SipHash128, KeysAreRandom) {
  EXPECT_NE(random_siphash_key(), random_siphash_key());
}

TEST(PrefixIndex, AKeyDependsOnEveryField) {
  const PrefixIndex index(4, 4, kPaperKey);
  const Ids ids = {1, 2, 3, 4};
  const BlockKey base = index.key_of({}, {7, 9}, ids);
  EXPECT_EQ(index.key_of({}, {7, 9}, ids), base);
  EXPECT_NE(index.key_of({1, 0}, {7, 9}, ids), base);
  EXPECT_NE(index.key_of({0, 1}, {7, 9}, ids), base);
  EXPECT_NE(index.key_of({}, {8, 9}, ids), base);
  EXPECT_NE(index.key_of({}, {7, 8}, ids), base);
  EXPECT_NE(index.key_of({}, {7, 9}, Ids{1, 2, 4, 3}), base);
  EXPECT_NE(PrefixIndex(4, 4, {1, 2}).key_of({}, {7, 9}, ids), base);
  // A missing id is not the same as id 0 (odd block size).
  EXPECT_NE(index.key_of({}, {7, 9}, Ids{1, 2, 3}), index.key_of({}, {7, 9}, Ids{1, 2, 3, 0}));
}

// A salt and an adapter's hash travel in two words. Whatever moves from one to the other, or into the text
// before them, gives another key.
TEST(PrefixIndex, KV_03_SaltWordsAndTextDoNotShareOneKeySpace) {
  PrefixIndex index(4, 4, kPaperKey);
  const Ids ids = {1, 2, 3, 4};
  const std::vector<BlockKey> keys = {index.key_of({}, {5, 0}, ids),  // salt 5, no adapter
                                      index.key_of({}, {0, 5}, ids),  // adapter 5, no salt
                                      index.key_of({5, 0}, {0, 0}, ids), index.key_of({0, 5}, {0, 0}, ids),
                                      index.key_of({}, {0, 0}, Ids{5, 0, 1, 2})};
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]) << i << " and " << j;
  }
  ASSERT_TRUE(index.insert(keys[0], 2, kNoBlock, {5, 0}, ids));
  EXPECT_EQ(index.find(keys[0], kNoBlock, {5, 0}, ids), 2u);
  EXPECT_EQ(index.find(keys[1], kNoBlock, {0, 5}, ids), kNoBlock);
  // Even if the keys were equal, the salt is compared.
  EXPECT_EQ(index.find(keys[0], kNoBlock, {0, 5}, ids), kNoBlock);
}

TEST(PrefixIndex, KV_01_EqualKeysNeverFindOtherContents) {
  const auto same_key = [](BlockKey, const CacheSalt&, std::span<const TokenId>) { return BlockKey{42, 42}; };
  PrefixIndex index(4, 2, kPaperKey, same_key);
  const BlockKey key = index.key_of({}, {0, 0}, Ids{1, 2});
  ASSERT_TRUE(index.insert(key, 0, kNoBlock, {0, 0}, Ids{1, 2}));
  EXPECT_EQ(index.find(key, kNoBlock, {0, 0}, Ids{1, 2}), 0u);
  EXPECT_EQ(index.find(key, kNoBlock, {0, 0}, Ids{1, 3}), kNoBlock);  // other tokens
  EXPECT_EQ(index.find(key, kNoBlock, {1, 0}, Ids{1, 2}), kNoBlock);  // other tenant
  EXPECT_EQ(index.find(key, 0, {0, 0}, Ids{1, 2}), kNoBlock);         // same tokens at another place
  EXPECT_FALSE(index.insert(key, 1, 0, {0, 0}, Ids{1, 2}));
  EXPECT_EQ(index.size(), 1u);
  EXPECT_TRUE(index.check().ok());
}

TEST(PrefixIndex, FollowersOfABlockAreFoundEndFirst) {
  PrefixIndex index(8, 1, kPaperKey);
  const CacheSalt salt{};
  const auto add = [&](BlockId block, BlockId parent, TokenId id) {
    ASSERT_TRUE(index.insert(index.key_of({parent, 0}, salt, Ids{id}), block, parent, salt, Ids{id}));
  };
  add(3, kNoBlock, 10);
  add(1, 3, 11);
  add(5, kNoBlock, 20);
  add(0, 1, 12);
  add(2, 3, 13);
  EXPECT_EQ(index.with_followers(3), (std::vector<BlockId>{2, 0, 1, 3}));
  EXPECT_EQ(index.with_followers(1), (std::vector<BlockId>{0, 1}));
  EXPECT_EQ(index.with_followers(5), (std::vector<BlockId>{5}));
  for (BlockId block : index.with_followers(3)) index.erase(block);
  EXPECT_TRUE(index.check().ok());
  EXPECT_EQ(index.size(), 1u);
}

}  // namespace
}  // namespace ringmaster::gpu_worker
