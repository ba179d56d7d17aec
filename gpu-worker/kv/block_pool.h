// The blocks of one KV group as numbers: which are free, which are cached (nobody holds them, but their
// contents can be found again), which are used, and by how many. Knows nothing of contents, devices or steps.
//
//   free --take_free--> used --unref (not indexed)--> free
//                       used --unref (indexed)------> cached --ref---> used
//                                                     cached --take_oldest_cached--> used (its contents are
//                                                     given up)
//
// Thread: the worker's loop thread. Invariant: free + cached + used = size, each block in exactly one of
// them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace ringmaster::gpu_worker {

using BlockId = uint32_t;
inline constexpr BlockId kNoBlock = 0xFFFFFFFF;

class BlockPool {
 public:
  // REQUIRES: 0 < size < kNoBlock.
  explicit BlockPool(uint32_t size);

  uint32_t size() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t num_free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t num_cached() const { return num_cached_; }
  uint32_t num_used() const { return size() - num_free() - num_cached(); }

  // A block with one reference, or kNoBlock.
  BlockId take_free();
  // The block that has been cached for longest, now with one reference and no longer indexed; or kNoBlock.
  BlockId take_oldest_cached();
  // REQUIRES (both): the block is used, or (ref only) cached.
  void ref(BlockId block);
  void unref(BlockId block);
  // Whether the prefix index can find its contents. REQUIRES: the block is not free. Clearing it frees a
  // cached block.
  void set_indexed(BlockId block, bool indexed);
  uint32_t references(BlockId block) const { return blocks_[block].references; }
  bool indexed(BlockId block) const { return blocks_[block].indexed; }

  // Walks free list and LRU list. Error: kInternal, with the counts that do not add up.
  Status check() const;

 private:
  struct Block {
    uint32_t references = 0;
    bool indexed = false;
    BlockId older = kNoBlock;  // links of the LRU list; meaningful while cached
    BlockId newer = kNoBlock;
  };
  void link_newest(BlockId block);
  void unlink(BlockId block);

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // a stack: the block freed last is still in the processor's caches
  BlockId oldest_ = kNoBlock;
  BlockId newest_ = kNoBlock;
  uint32_t num_cached_ = 0;
};

}  // namespace ringmaster::gpu_worker
