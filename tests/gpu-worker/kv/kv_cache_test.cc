#include "gpu-worker/kv/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace ringmaster::gpu_worker {
namespace {

using Ids = std::vector<TokenId>;
using Blocks = std::vector<BlockId>;

KvCache cache_of(uint32_t blocks, uint32_t block_tokens = 4) {
  return KvCache({.num_blocks = blocks, .block_tokens = block_tokens, .key = {1, 2}});
}

Ids counting(uint32_t from, uint32_t count) {
  Ids ids(count);
  for (uint32_t i = 0; i < count; ++i) ids[i] = from + i;
  return ids;
}

// Allocates, computes in step `step`, publishes and releases: what a whole short request does.
void run_once(KvCache& kv, const Ids& ids, uint64_t step, CacheSalt salt = {}) {
  KvSequence s{.salt = salt};
  kv.adopt(s, ids, false);
  ASSERT_TRUE(kv.extend(s, static_cast<uint32_t>(ids.size())));
  kv.retire(step);
  kv.publish(s, ids, static_cast<uint32_t>(ids.size()), step);
  kv.release(s, step);
}

void expect_books(const KvCache& kv, std::vector<const KvSequence*> tables = {}) {
  const Status status = kv.check(tables);
  EXPECT_TRUE(status.ok()) << status.error().message;
}

TEST(KvCache, BlocksAreCountedUpwards) {
  const KvCache kv = cache_of(8);
  EXPECT_EQ(kv.blocks_for(0), 0u);
  EXPECT_EQ(kv.blocks_for(1), 1u);
  EXPECT_EQ(kv.blocks_for(4), 1u);
  EXPECT_EQ(kv.blocks_for(5), 2u);
  EXPECT_EQ(kv.blocks_for(0xFFFFFFFF), 0x40000000u);
}

TEST(KvCache, ExtendIsAllOrNothing) {
  KvCache kv = cache_of(3);
  KvSequence a, b;
  ASSERT_TRUE(kv.extend(a, 5));
  EXPECT_EQ(a.blocks, (Blocks{0, 1}));
  ASSERT_TRUE(kv.extend(a, 8));
  EXPECT_EQ(a.blocks, (Blocks{0, 1}));
  EXPECT_FALSE(kv.extend(b, 5));
  EXPECT_TRUE(b.blocks.empty());
  EXPECT_EQ(kv.num_free(), 1u);
  expect_books(kv, {&a, &b});
}

TEST(KvCache, AReleasedBlockWaitsForItsLastStep) {
  KvCache kv = cache_of(4);
  KvSequence a, b, c;
  ASSERT_TRUE(kv.extend(a, 8));
  ASSERT_TRUE(kv.extend(b, 4));
  kv.release(a, 7);
  kv.release(b, 6);
  EXPECT_EQ(kv.num_free(), 1u);
  EXPECT_EQ(kv.num_used(), 3u);
  EXPECT_EQ(kv.releasing(), 3u);
  EXPECT_FALSE(kv.extend(c, 8));
  expect_books(kv);
  kv.retire(6);
  EXPECT_EQ(kv.num_free(), 2u);
  EXPECT_EQ(kv.releasing(), 2u);
  kv.retire(7);
  EXPECT_EQ(kv.num_free(), 4u);
  expect_books(kv);
}

TEST(KvCache, HitsEndOneTokenBeforeTheEnd) {
  KvCache kv = cache_of(8);
  run_once(kv, counting(100, 9), 1);  // two full blocks are cached, the third is not full
  EXPECT_EQ(kv.num_cached(), 2u);
  EXPECT_EQ(kv.num_free(), 6u);
  const std::pair<uint32_t, uint32_t> length_and_blocks[] = {{1, 0}, {4, 0}, {5, 1}, {7, 1},
                                                             {8, 1}, {9, 2}, {12, 2}};
  for (const auto& [length, blocks] : length_and_blocks) {
    KvSequence s;
    EXPECT_EQ(kv.probe(s, counting(100, length)).blocks, blocks) << length;
    EXPECT_EQ(kv.adopt(s, counting(100, length), false), blocks * 4) << length;
    EXPECT_EQ(kv.num_used(), blocks);
    kv.release(s, 1);
  }
  expect_books(kv);
}

TEST(KvCache, OnlyEqualPrefixUnderEqualSaltHits) {
  KvCache kv = cache_of(8);
  run_once(kv, counting(100, 9), 1, {3, 4});
  KvSequence other_salt{.salt = {4, 3}}, other_start{.salt = {3, 4}}, other_end{.salt = {3, 4}};
  Ids ids = counting(100, 9);
  EXPECT_EQ(kv.probe(other_salt, ids).blocks, 0u);
  ids[0] = 7;
  EXPECT_EQ(kv.probe(other_start, ids).blocks, 0u);
  ids[0] = 100;
  ids[7] = 7;
  EXPECT_EQ(kv.probe(other_end, ids).blocks, 1u);
}

TEST(KvCache, KV_01_ForcedEqualHashesNeverShareWrongBlocks) {
  const auto same_key = [](BlockKey, const CacheSalt&, std::span<const TokenId>) { return BlockKey{1, 1}; };
  KvCache kv({.num_blocks = 8, .block_tokens = 4, .key = {1, 2}, .key_hook = same_key});
  run_once(kv, counting(100, 9), 1);
  EXPECT_EQ(kv.stats().key_collisions, 1u);  // the second block of the same text has the same key
  EXPECT_EQ(kv.num_cached(), 1u);
  KvSequence other, same;
  EXPECT_EQ(kv.adopt(other, counting(200, 9), false), 0u);
  EXPECT_EQ(kv.adopt(same, counting(100, 9), false), 4u);
  expect_books(kv, {&other, &same});
}

TEST(KvCache, UnpublishedWorkIsFoundByNobody) {
  KvCache kv = cache_of(8);
  KvSequence a, b;
  const Ids ids = counting(100, 9);
  ASSERT_TRUE(kv.extend(a, 9));
  EXPECT_EQ(kv.probe(b, ids).blocks, 0u);
  kv.retire(1);
  kv.publish(a, ids, 7, 2);  // step 1 wrote 7 positions: one full block
  EXPECT_EQ(kv.probe(b, ids).blocks, 1u);
  EXPECT_EQ(kv.probe(b, ids).idle, 0u);
  kv.publish(a, ids, 9, 2);
  EXPECT_EQ(kv.probe(b, ids).blocks, 2u);
  expect_books(kv, {&a});
}

TEST(KvCache, EqualBlocksComputedTwiceBecomeOne) {
  KvCache kv = cache_of(8);
  KvSequence a, b;
  const Ids ids = counting(100, 6);
  ASSERT_TRUE(kv.extend(a, 6));  // blocks 0, 1
  ASSERT_TRUE(kv.extend(b, 6));  // blocks 2, 3
  kv.retire(1);
  kv.publish(a, ids, 6, 2);
  kv.publish(b, ids, 6, 2);
  EXPECT_EQ(b.blocks, (Blocks{0, 3}));
  EXPECT_EQ(kv.num_free(), 4u);  // block 2 may still be read by step 2
  kv.retire(2);
  EXPECT_EQ(kv.num_free(), 5u);
  EXPECT_EQ(kv.stats().merged_blocks, 1u);
  expect_books(kv, {&a, &b});
}

TEST(KvCache, EvictionTakesTheOldestAndShortensChainsFromBehind) {
  KvCache kv = cache_of(5);
  const Ids first = counting(100, 9), second = counting(200, 9);
  run_once(kv, first, 1);
  run_once(kv, second, 2);
  KvSequence touch;
  kv.adopt(touch, first, false);  // now `second` is the older one
  kv.release(touch, 2);
  KvSequence a, probe1, probe2;
  ASSERT_TRUE(kv.extend(a, 8));  // the free block, then one eviction
  EXPECT_EQ(kv.stats().evicted_blocks, 1u);
  EXPECT_EQ(kv.probe(probe1, first).blocks, 2u);
  EXPECT_EQ(kv.probe(probe2, second).blocks, 1u);
  ASSERT_TRUE(kv.extend(a, 16));
  EXPECT_EQ(kv.probe(probe1, first).blocks, 1u);
  EXPECT_EQ(kv.probe(probe2, second).blocks, 0u);
  expect_books(kv, {&a});
}

TEST(KvCache, HitsOfFirstRunsAndRerunsAreCountedApart) {
  KvCache kv = cache_of(8);
  run_once(kv, counting(100, 9), 1);
  KvSequence a, b;
  kv.adopt(a, counting(100, 10), true);
  kv.adopt(b, counting(100, 6), false);
  EXPECT_EQ(kv.stats().rerun_lookup_tokens, 10u);
  EXPECT_EQ(kv.stats().rerun_hit_tokens, 8u);
  EXPECT_EQ(kv.stats().lookup_tokens, 15u);  // 9 of run_once
  EXPECT_EQ(kv.stats().hit_tokens, 4u);
}

TEST(KvCache, ForgottenContentsAreFoundByNobodyAndFollowersGoToo) {
  KvCache kv = cache_of(8);
  const Ids short_ids = counting(100, 5);
  run_once(kv, counting(100, 9), 1);
  run_once(kv, counting(200, 9), 1);
  KvSequence bad, holder, probe;
  kv.adopt(bad, short_ids, false);
  kv.adopt(holder, counting(100, 9), false);
  kv.forget(bad, short_ids);
  EXPECT_EQ(kv.probe(probe, counting(100, 9)).blocks, 0u);
  EXPECT_EQ(kv.probe(probe, counting(100, 9)).idle, 0u);
  KvSequence other;
  EXPECT_EQ(kv.probe(other, counting(200, 9)).blocks, 2u);
  // Who holds such a block can go on, but publishes nothing behind it.
  ASSERT_TRUE(kv.extend(holder, 12));
  kv.publish(holder, counting(100, 12), 12, 1);
  EXPECT_EQ(kv.probe(probe, counting(100, 13)).blocks, 0u);
  expect_books(kv, {&bad, &holder});
  kv.release(bad, 1);
  kv.release(holder, 1);
  expect_books(kv);
  EXPECT_EQ(kv.num_cached(), 2u);
}

TEST(KvCache, WithoutPrefixCacheNothingIsKept) {
  KvCache kv({.num_blocks = 4, .block_tokens = 4, .prefix_cache = false, .key = {1, 2}});
  run_once(kv, counting(100, 9), 1);
  EXPECT_EQ(kv.num_free(), 4u);
  EXPECT_EQ(kv.stats().published_blocks, 0u);
}

TEST(KvCache, ChecksSeeAReferenceTooMany) {
  KvCache kv = cache_of(4);
  KvSequence a;
  ASSERT_TRUE(kv.extend(a, 4));
  EXPECT_FALSE(kv.check({}).ok());
  const KvSequence* twice[] = {&a, &a};
  EXPECT_FALSE(kv.check(twice).ok());
}

// Random sequences over few texts, so that they share, collide, evict and merge. The model knows the text
// that was written into each block; whatever adopt() hands out must hold exactly the text asked for.
TEST(KvCache, RandomUseNeverHandsOutWrongContents) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    const auto weak_key = [](BlockKey parent, const CacheSalt& salt, std::span<const TokenId> ids) {
      return BlockKey{(parent.lo * 31 + salt[0] + ids[0] * 7 + ids[1]) % 64, 0};
    };
    constexpr uint32_t kBlockTokens = 2;
    KvCache kv({.num_blocks = 24,
                .block_tokens = kBlockTokens,
                .key = {seed, 2},
                .key_hook = seed % 2 ? BlockKeyFunction(weak_key) : nullptr});
    struct Live {
      KvSequence kv;
      Ids ids;
      uint32_t computed = 0;
      uint64_t last_step = 0;
    };
    std::vector<std::unique_ptr<Live>> live;
    std::map<BlockId, Ids> contents;  // block -> salt, then all tokens up to its end
    const auto text_until = [](const Live& l, uint32_t block) {
      Ids text = {static_cast<TokenId>(l.kv.salt[0])};
      text.insert(text.end(), l.ids.begin(), l.ids.begin() + (block + 1) * kBlockTokens);
      return text;
    };
    uint64_t step = 0;
    uint64_t hits = 0;
    for (int i = 0; i < 1500; ++i) {
      const uint32_t action = below(10);
      if (action < 4 && live.size() < 6) {
        auto l = std::make_unique<Live>();
        l->kv.salt = {below(2), 0};
        const uint32_t length = 1 + below(14);
        for (uint32_t k = 0; k < length; ++k) l->ids.push_back(below(2));
        const KvCache::Match match = kv.probe(l->kv, l->ids);
        ASSERT_LT(match.blocks * kBlockTokens, length);
        l->computed = kv.adopt(l->kv, l->ids, false);
        hits += l->computed;
        ASSERT_EQ(l->computed, match.blocks * kBlockTokens);
        for (uint32_t b = 0; b < match.blocks; ++b) ASSERT_EQ(contents[l->kv.blocks[b]], text_until(*l, b));
        const uint32_t before = kv.available();
        const bool fits = kv.blocks_for(length) - match.blocks <= before;
        ASSERT_EQ(kv.extend(l->kv, length), fits);
        if (fits) {
          live.push_back(std::move(l));
        } else {
          kv.release(l->kv, step);
        }
      } else if (action < 8 && !live.empty()) {
        Live& l = *live[below(static_cast<uint32_t>(live.size()))];
        if (l.computed == l.ids.size()) {
          l.ids.push_back(below(2));
          if (!kv.extend(l.kv, static_cast<uint32_t>(l.ids.size()))) {
            l.ids.pop_back();
            continue;
          }
        }
        ++step;  // one step computes some of it and retires, unless another is still out behind it
        l.computed = std::min<uint32_t>(l.computed + 1 + below(6), static_cast<uint32_t>(l.ids.size()));
        for (uint32_t b = 0; b < l.computed / kBlockTokens; ++b) {
          if (b >= l.kv.published) contents[l.kv.blocks[b]] = text_until(l, b);
        }
        l.last_step = step + below(2);
        kv.retire(step);
        kv.publish(l.kv, l.ids, l.computed, l.last_step);
      } else if (!live.empty()) {
        const uint32_t which = below(static_cast<uint32_t>(live.size()));
        if (below(8) == 0) kv.forget(live[which]->kv, live[which]->ids);
        kv.release(live[which]->kv, live[which]->last_step);
        live.erase(live.begin() + which);
      }
      std::vector<const KvSequence*> tables;
      for (const auto& l : live) tables.push_back(&l->kv);
      const Status status = kv.check(tables);
      ASSERT_TRUE(status.ok()) << "seed " << seed << " at " << i << ": " << status.error().message;
      ASSERT_EQ(kv.num_free() + kv.num_cached() + kv.num_used(), kv.num_blocks());
    }
    EXPECT_GT(hits, 50u) << seed;
    EXPECT_GT(kv.stats().evicted_blocks, 20u) << seed;
    for (const auto& l : live) kv.release(l->kv, l->last_step);
    kv.retire(step + 1);
    EXPECT_EQ(kv.num_used(), 0u);
  }
}

}  // namespace
}  // namespace ringmaster::gpu_worker
