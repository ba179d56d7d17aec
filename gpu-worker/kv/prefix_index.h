// Finds the block that holds the keys and values of given tokens after a given prefix. Each full block has a
// key: a keyed hash over (key of the block before it, salt, its token ids), so a key names the whole text up
// to the block's end.
//
// Hashes only find candidates. An entry also holds its tokens, its salt and the identity of the entry before
// it, and a candidate whose any of these differs is no hit: equal hashes can cost a miss, never wrong text.
//
// Thread: the worker's loop thread. Owns no references on blocks (KvCache does).
// Invariant: the entry before every entry is in the index too.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "gpu-worker/kv/block_pool.h"
#include "gpu-worker/kv/siphash.h"

namespace ringmaster::gpu_worker {

using CacheSalt = std::array<uint64_t, 2>;
using BlockKey = Hash128;

// Test hook: replaces the keyed hash, to force collisions.
using BlockKeyFunction = BlockKey (*)(BlockKey parent, const CacheSalt& salt, std::span<const TokenId> ids);

class PrefixIndex {
 public:
  PrefixIndex(uint32_t num_blocks, uint32_t block_tokens, const SipHash128::Key& key,
              BlockKeyFunction hook = nullptr);

  BlockKey key_of(BlockKey parent, const CacheSalt& salt, std::span<const TokenId> ids) const;

  // The block with exactly these contents whose entry follows that of `parent` (kNoBlock: the first of a
  // sequence), or kNoBlock. REQUIRES: parent is in the index; ids.size() == block_tokens.
  BlockId find(BlockKey key, BlockId parent, const CacheSalt& salt, std::span<const TokenId> ids) const;
  // Enters a block. False, and nothing happens, when the key is taken by other contents.
  // REQUIRES: as find(), which has just found nothing; the block is not in the index.
  bool insert(BlockKey key, BlockId block, BlockId parent, const CacheSalt& salt,
              std::span<const TokenId> ids);
  // REQUIRES: the block is in the index and no entry follows it.
  void erase(BlockId block);
  // The block and all that follow it, in the order in which erase() takes them. Walks the whole index.
  std::vector<BlockId> with_followers(BlockId block) const;

  bool contains(BlockId block) const { return entries_[block].serial != 0; }
  uint32_t size() const { return static_cast<uint32_t>(by_key_.size()); }
  // Error: kInternal, naming the block whose entry is not as it should be.
  Status check() const;

 private:
  struct KeyHash {
    size_t operator()(const BlockKey& key) const noexcept { return key.lo; }
  };
  struct Entry {
    uint64_t serial = 0;         // never used twice; 0: no entry
    uint64_t parent_serial = 0;  // 0: first block of a sequence
    BlockId parent = kNoBlock;
    uint32_t followers = 0;
    BlockKey key;
    CacheSalt salt{};
  };
  std::span<const TokenId> tokens_of(BlockId block) const;

  const uint32_t block_tokens_;
  const SipHash128::Key key_;
  const BlockKeyFunction hook_;
  std::vector<Entry> entries_;   // [num_blocks]
  std::vector<TokenId> tokens_;  // [num_blocks][block_tokens]
  std::unordered_map<BlockKey, BlockId, KeyHash> by_key_;
  uint64_t next_serial_ = 1;
};

}  // namespace ringmaster::gpu_worker
