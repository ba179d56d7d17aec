#include "gpu-worker/kv/block_pool.h"

#include <cassert>

namespace ringmaster::gpu_worker {

BlockPool::BlockPool(uint32_t size) : blocks_(size) {
  assert(size > 0 && size < kNoBlock);
  free_.reserve(size);
  for (uint32_t i = size; i-- > 0;) free_.push_back(i);  // block 0 on top
}

BlockId BlockPool::take_free() {
  if (free_.empty()) return kNoBlock;
  const BlockId block = free_.back();
  free_.pop_back();
  blocks_[block].references = 1;
  return block;
}

BlockId BlockPool::take_oldest_cached() {
  const BlockId block = oldest_;
  if (block == kNoBlock) return kNoBlock;
  unlink(block);
  blocks_[block].indexed = false;
  blocks_[block].references = 1;
  return block;
}

void BlockPool::ref(BlockId block) {
  Block& b = blocks_[block];
  assert(b.references > 0 || b.indexed);
  if (b.references++ == 0) unlink(block);
}

void BlockPool::unref(BlockId block) {
  Block& b = blocks_[block];
  assert(b.references > 0);
  if (--b.references > 0) return;
  if (b.indexed) {
    link_newest(block);
  } else {
    free_.push_back(block);
  }
}

void BlockPool::set_indexed(BlockId block, bool indexed) {
  Block& b = blocks_[block];
  assert(b.references > 0 || b.indexed);
  if (b.indexed && !indexed && b.references == 0) {
    unlink(block);
    free_.push_back(block);
  }
  b.indexed = indexed;
}

void BlockPool::link_newest(BlockId block) {
  Block& b = blocks_[block];
  b.older = newest_;
  b.newer = kNoBlock;
  (newest_ == kNoBlock ? oldest_ : blocks_[newest_].newer) = block;
  newest_ = block;
  ++num_cached_;
}

void BlockPool::unlink(BlockId block) {
  Block& b = blocks_[block];
  (b.older == kNoBlock ? oldest_ : blocks_[b.older].newer) = b.newer;
  (b.newer == kNoBlock ? newest_ : blocks_[b.newer].older) = b.older;
  b.older = b.newer = kNoBlock;
  --num_cached_;
}

Status BlockPool::check() const {
  const auto broken = [](const std::string& what) { return Error{Code::kInternal, "block pool: " + what}; };
  enum : uint8_t { kUsed, kFree, kCached };
  std::vector<uint8_t> place(size(), kUsed);
  for (BlockId block : free_) {
    if (block >= size()) return broken("free list holds block " + std::to_string(block));
    if (place[block] != kUsed) return broken("block " + std::to_string(block) + " is free twice");
    place[block] = kFree;
  }
  uint32_t cached = 0;
  BlockId before = kNoBlock;
  for (BlockId block = oldest_; block != kNoBlock; block = blocks_[block].newer) {
    if (place[block] != kUsed)
      return broken("block " + std::to_string(block) + " is cached and free, or in a circle");
    if (blocks_[block].older != before)
      return broken("LRU links of block " + std::to_string(block) + " disagree");
    place[block] = kCached;
    before = block;
    ++cached;
  }
  if (before != newest_ || cached != num_cached_) {
    return broken("LRU list has " + std::to_string(cached) + " blocks, the count says " +
                  std::to_string(num_cached_));
  }
  for (BlockId block = 0; block < size(); ++block) {
    const Block& b = blocks_[block];
    const bool right = place[block] == kFree     ? b.references == 0 && !b.indexed
                       : place[block] == kCached ? b.references == 0 && b.indexed
                                                 : b.references > 0;
    if (!right) {
      return broken("block " + std::to_string(block) + " with " + std::to_string(b.references) +
                    " references is in the wrong list (" + std::to_string(place[block]) + ")");
    }
  }
  return ok_status();
}

}  // namespace ringmaster::gpu_worker
