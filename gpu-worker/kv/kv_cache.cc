#include "gpu-worker/kv/kv_cache.h"

#include <algorithm>
#include <cassert>

namespace ringmaster::gpu_worker {

KvCache::KvCache(const KvConfig& config)
    : config_(config),
      pool_(config.num_blocks),
      index_(config.num_blocks, config.block_tokens, config.key, config.key_hook) {
  assert(config.block_tokens > 0);
}

std::span<const TokenId> KvCache::block_ids(std::span<const TokenId> ids, uint32_t block) const {
  return ids.subspan(size_t{block} * config_.block_tokens, config_.block_tokens);
}

// A long prompt is hashed once, not at every attempt to admit it.
void KvCache::need_keys(KvSequence& s, std::span<const TokenId> ids, uint32_t count) const {
  while (s.keys.size() < count) {
    const auto block = static_cast<uint32_t>(s.keys.size());
    const BlockKey parent = block == 0 ? BlockKey{} : s.keys.back();
    s.keys.push_back(index_.key_of(parent, s.salt, block_ids(ids, block)));
  }
}

template <typename Visit>
void KvCache::walk(KvSequence& s, std::span<const TokenId> ids, Visit visit) const {
  if (!config_.prefix_cache || ids.empty()) return;
  const auto most = static_cast<uint32_t>((ids.size() - 1) / config_.block_tokens);
  BlockId parent = kNoBlock;
  for (uint32_t i = 0; i < most; ++i) {
    need_keys(s, ids, i + 1);
    const BlockId block = index_.find(s.keys[i], parent, s.salt, block_ids(ids, i));
    if (block == kNoBlock) return;
    visit(block);
    parent = block;
  }
}

KvCache::Match KvCache::probe(KvSequence& s, std::span<const TokenId> ids) const {
  Match match;
  walk(s, ids, [&](BlockId block) {
    ++match.blocks;
    match.idle += pool_.references(block) == 0;
  });
  return match;
}

uint32_t KvCache::adopt(KvSequence& s, std::span<const TokenId> ids, bool rerun) {
  assert(s.blocks.empty());
  walk(s, ids, [&](BlockId block) {
    pool_.ref(block);
    s.blocks.push_back(block);
  });
  s.published = static_cast<uint32_t>(s.blocks.size());
  s.can_publish = config_.prefix_cache;
  const uint32_t tokens = s.published * config_.block_tokens;
  (rerun ? stats_.rerun_lookup_tokens : stats_.lookup_tokens) += ids.size();
  (rerun ? stats_.rerun_hit_tokens : stats_.hit_tokens) += tokens;
  return tokens;
}

BlockId KvCache::take() {
  const BlockId block = pool_.take_free();
  if (block != kNoBlock) return block;
  const BlockId oldest = pool_.take_oldest_cached();
  assert(oldest != kNoBlock);
  index_.erase(oldest);
  ++stats_.evicted_blocks;
  return oldest;
}

bool KvCache::extend(KvSequence& s, uint32_t positions) {
  const uint32_t need = blocks_for(positions);
  const auto have = static_cast<uint32_t>(s.blocks.size());
  if (need <= have) return true;
  if (need - have > available()) return false;
  while (s.blocks.size() < need) s.blocks.push_back(take());
  return true;
}

void KvCache::publish(KvSequence& s, std::span<const TokenId> ids, uint32_t computed, uint64_t last_step) {
  const uint32_t full = computed / config_.block_tokens;
  while (s.can_publish && s.published < full) {
    const uint32_t i = s.published;
    const BlockId parent = i == 0 ? kNoBlock : s.blocks[i - 1];
    if (parent != kNoBlock && !index_.contains(parent)) {  // forgotten in the meantime
      s.can_publish = false;
      return;
    }
    need_keys(s, ids, i + 1);
    const std::span<const TokenId> tokens = block_ids(ids, i);
    const BlockId known = index_.find(s.keys[i], parent, s.salt, tokens);
    if (known != kNoBlock) {
      // Sharing the known one saves memory, and keeps the rule that who holds a block holds those before it,
      // without which eviction could take the middle out of a chain.
      pool_.ref(known);
      give_back(s.blocks[i], last_step);
      s.blocks[i] = known;
      ++stats_.merged_blocks;
    } else if (index_.insert(s.keys[i], s.blocks[i], parent, s.salt, tokens)) {
      pool_.set_indexed(s.blocks[i], true);
      ++stats_.published_blocks;
    } else {
      ++stats_.key_collisions;
      s.can_publish = false;
      return;
    }
    ++s.published;
  }
}

void KvCache::give_back(BlockId block, uint64_t last_step) {
  if (last_step <= retired_) {
    pool_.unref(block);
  } else {
    releases_.push_back({last_step, block});
  }
}

void KvCache::release(KvSequence& s, uint64_t last_step) {
  // The end first: it becomes the oldest, so eviction shortens chains from behind and never leaves a gap.
  while (!s.blocks.empty()) {
    give_back(s.blocks.back(), last_step);
    s.blocks.pop_back();
  }
  s.published = 0;
}

void KvCache::forget(KvSequence& s, std::span<const TokenId> ids) {
  s.can_publish = false;
  // Found by contents, not through the table: a preempted sequence has none, but what it published is still
  // there.
  BlockId first = kNoBlock;
  walk(s, ids, [&](BlockId block) { first = first == kNoBlock ? block : first; });
  if (first == kNoBlock) return;
  for (BlockId block : index_.with_followers(first)) {
    index_.erase(block);
    pool_.set_indexed(block, false);
  }
}

void KvCache::retire(uint64_t step) {
  assert(step >= retired_);
  retired_ = step;
  size_t kept = 0;
  for (const Release& release : releases_) {  // in order: the end of a table becomes older than its start
    if (release.after_step <= step) {
      pool_.unref(release.block);
    } else {
      releases_[kept++] = release;
    }
  }
  releases_.resize(kept);
}

Status KvCache::check(std::span<const KvSequence* const> tables) const {
  const auto broken = [&](const std::string& what) {
    return Error{Code::kInternal, "KV cache: " + what + "\n" + dump()};
  };
  if (Status status = pool_.check(); !status.ok()) return broken(status.error().message);
  if (Status status = index_.check(); !status.ok()) return broken(status.error().message);
  std::vector<uint32_t> references(pool_.size(), 0);
  for (const KvSequence* s : tables) {
    for (BlockId block : s->blocks) ++references[block];
    if (s->published > s->blocks.size()) return broken("a table has more published blocks than blocks");
  }
  for (const Release& release : releases_) {
    if (release.after_step <= retired_) return broken("a release of a retired step is still waiting");
    ++references[release.block];
  }
  for (BlockId block = 0; block < pool_.size(); ++block) {
    if (references[block] != pool_.references(block)) {
      return broken("block " + std::to_string(block) + " has " + std::to_string(pool_.references(block)) +
                    " references, its holders are " + std::to_string(references[block]));
    }
    if (pool_.indexed(block) != index_.contains(block)) {
      return broken("block " + std::to_string(block) + ": pool and index disagree whether it can be found");
    }
  }
  return ok_status();
}

KvHoldings KvCache::holdings(std::span<const KvSequence* const> tables) const {
  KvHoldings out;
  std::vector<bool> seen(pool_.size(), false);
  const auto hold = [&](BlockId block) {
    out.held += !seen[block];
    seen[block] = true;
  };
  for (const KvSequence* s : tables) {
    out.table_references += s->blocks.size();
    for (BlockId block : s->blocks) hold(block);
  }
  for (const Release& release : releases_) hold(release.block);
  out.deferred = releasing();
  for (BlockId block = 0; block < pool_.size(); ++block) out.references += pool_.references(block);
  return out;
}

std::string KvCache::dump() const {
  const auto text = [](uint64_t n) { return std::to_string(n); };
  return "blocks: " + text(num_free()) + " free + " + text(num_cached()) + " cached + " + text(num_used()) +
         " used (" + text(releases_.size()) + " of them until a step retires) of " + text(num_blocks()) +
         "; index " + text(index_.size()) + ", last retired step " + text(retired_);
}

}  // namespace ringmaster::gpu_worker
