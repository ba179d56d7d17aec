#include "gpu-worker/kv/prefix_index.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <unordered_set>

namespace ringmaster::gpu_worker {

PrefixIndex::PrefixIndex(uint32_t num_blocks, uint32_t block_tokens, const SipHash128::Key& key,
                         BlockKeyFunction hook)
    : block_tokens_(block_tokens),
      key_(key),
      hook_(hook),
      entries_(num_blocks),
      tokens_(size_t{num_blocks} * block_tokens) {
  by_key_.reserve(num_blocks);
}

// Every field has its own fixed place in the hashed words, so no value of one can pass for a value of
// another.
BlockKey PrefixIndex::key_of(BlockKey parent, const CacheSalt& salt, std::span<const TokenId> ids) const {
  if (hook_) return hook_(parent, salt, ids);
  SipHash128 hash(key_);
  hash.add(uint64_t{0x424b4d52} << 32 | ids.size());  // "RMKB": what is hashed here, and how many ids follow
  hash.add(parent.lo);
  hash.add(parent.hi);
  hash.add(salt[0]);
  hash.add(salt[1]);
  size_t i = 0;
  for (; i + 1 < ids.size(); i += 2) hash.add(uint64_t{ids[i + 1]} << 32 | ids[i]);
  if (i < ids.size()) hash.add(ids[i]);
  return hash.finish();
}

std::span<const TokenId> PrefixIndex::tokens_of(BlockId block) const {
  return {tokens_.data() + size_t{block} * block_tokens_, block_tokens_};
}

BlockId PrefixIndex::find(BlockKey key, BlockId parent, const CacheSalt& salt,
                          std::span<const TokenId> ids) const {
  assert(ids.size() == block_tokens_ && (parent == kNoBlock || contains(parent)));
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return kNoBlock;
  const BlockId block = found->second;
  const Entry& entry = entries_[block];
  // The entry before it is known to be the right one (induction over the chain), so its identity settles all
  // earlier tokens, and comparing this block's tokens settles the rest.
  const uint64_t parent_serial = parent == kNoBlock ? 0 : entries_[parent].serial;
  const bool same =
      entry.parent_serial == parent_serial && entry.salt == salt && std::ranges::equal(tokens_of(block), ids);
  return same ? block : kNoBlock;
}

bool PrefixIndex::insert(BlockKey key, BlockId block, BlockId parent, const CacheSalt& salt,
                         std::span<const TokenId> ids) {
  assert(ids.size() == block_tokens_ && !contains(block) && (parent == kNoBlock || contains(parent)));
  if (!by_key_.emplace(key, block).second) return false;
  Entry& entry = entries_[block];
  entry.serial = next_serial_++;
  entry.parent = parent;
  entry.parent_serial = 0;
  entry.followers = 0;
  entry.key = key;
  entry.salt = salt;
  if (parent != kNoBlock) {
    entry.parent_serial = entries_[parent].serial;
    ++entries_[parent].followers;
  }
  std::copy(ids.begin(), ids.end(), tokens_.begin() + static_cast<ptrdiff_t>(size_t{block} * block_tokens_));
  return true;
}

void PrefixIndex::erase(BlockId block) {
  Entry& entry = entries_[block];
  assert(entry.serial != 0 && entry.followers == 0);
  by_key_.erase(entry.key);
  if (entry.parent != kNoBlock) --entries_[entry.parent].followers;
  entry = Entry{};
}

std::vector<BlockId> PrefixIndex::with_followers(BlockId block) const {
  std::vector<BlockId> all;
  for (BlockId b = 0; b < entries_.size(); ++b) {
    if (contains(b)) all.push_back(b);
  }
  // An entry is younger than the one before it, so one pass in order of age meets every chain from its start.
  std::ranges::sort(all, {}, [&](BlockId b) { return entries_[b].serial; });
  std::unordered_set<BlockId> members{block};
  std::vector<BlockId> out;
  for (BlockId b : all) {
    if (b != block && (entries_[b].parent == kNoBlock || !members.contains(entries_[b].parent))) continue;
    members.insert(b);
    out.push_back(b);
  }
  std::ranges::reverse(out);
  return out;
}

Status PrefixIndex::check() const {
  const auto broken = [](BlockId block, const std::string& what) {
    return Error{Code::kInternal, "prefix index: block " + std::to_string(block) + " " + what};
  };
  std::vector<uint32_t> followers(entries_.size(), 0);
  uint32_t count = 0;
  for (BlockId b = 0; b < entries_.size(); ++b) {
    const Entry& entry = entries_[b];
    if (entry.serial == 0) continue;
    ++count;
    const auto found = by_key_.find(entry.key);
    if (found == by_key_.end() || found->second != b) return broken(b, "cannot be found under its key");
    if (entry.parent == kNoBlock) continue;
    ++followers[entry.parent];
    if (entries_[entry.parent].serial != entry.parent_serial)
      return broken(b, "follows an entry that is gone");
  }
  for (BlockId b = 0; b < entries_.size(); ++b) {
    if (followers[b] != entries_[b].followers) return broken(b, "miscounts the entries that follow it");
  }
  if (count != by_key_.size()) {
    return Error{Code::kInternal, "prefix index: " + std::to_string(by_key_.size()) + " keys for " +
                                      std::to_string(count) + " entries"};
  }
  return ok_status();
}

}  // namespace ringmaster::gpu_worker
