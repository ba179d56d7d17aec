// Which blocks of device memory hold which sequence's keys and values: allocation, sharing of equal prefixes,
// reuse. Pure bookkeeping; the memory itself belongs to the device.
//
// Steps are numbered. A block given back by release() is used again, and a block written by a step is shared
// with others, only when the last step that touches it has retired: the caller names the step, retire() says
// how far the device is.
//
// One group of layers (full attention) today. A window group will be a second BlockPool, PrefixIndex and
// table in KvSequence beside the first; a hit is then the shortest of the groups' hits, and trim() of a
// window goes here.
//
// Thread: the worker's loop thread. Owner of all block references.
// Invariant: free + cached + used = all; a block that waits for a step to retire counts as used.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "gpu-worker/kv/block_pool.h"
#include "gpu-worker/kv/prefix_index.h"

namespace ringmaster::gpu_worker {

struct KvConfig {
  uint32_t num_blocks = 0;
  uint32_t block_tokens = 16;
  bool prefix_cache = true;
  SipHash128::Key key = {};             // of the prefix index: random_siphash_key(), but for tests
  BlockKeyFunction key_hook = nullptr;  // tests only
};

// What one sequence has here. Changed by KvCache only; `salt` is set before the first call and stays.
struct KvSequence {
  CacheSalt salt{};
  std::vector<BlockId> blocks;  // block table: position p lies in blocks[p / block_tokens]
  uint32_t published = 0;       // leading blocks that are in the index
  // False once a key was taken by other contents: what follows cannot be found either.
  bool can_publish = true;
  std::vector<BlockKey> keys;  // of the leading full blocks, as far as needed yet; outlives release()
};

// Blocks and references, each counted in its own place.
struct KvHoldings {
  uint32_t held = 0;              // different blocks in tables and waiting releases
  uint64_t references = 0;        // that the pool counts
  uint64_t table_references = 0;  // entries of all tables
  uint32_t deferred = 0;          // releases that wait for a step to retire
};

struct KvStats {
  // Tokens looked up and found at the first start of a sequence, and when one starts again after preemption.
  // Kept apart: finding one's own blocks again says nothing about shared prefixes.
  uint64_t lookup_tokens = 0;
  uint64_t hit_tokens = 0;
  uint64_t rerun_lookup_tokens = 0;
  uint64_t rerun_hit_tokens = 0;
  uint64_t published_blocks = 0;
  uint64_t merged_blocks = 0;  // computed by two sequences at the same time, kept once
  uint64_t evicted_blocks = 0;
  uint64_t key_collisions = 0;  // equal keys of different contents
};

class KvCache {
 public:
  // REQUIRES: num_blocks > 0, block_tokens > 0.
  explicit KvCache(const KvConfig& config);

  uint32_t block_tokens() const { return config_.block_tokens; }
  uint32_t num_blocks() const { return pool_.size(); }
  uint32_t num_free() const { return pool_.num_free(); }
  uint32_t num_cached() const { return pool_.num_cached(); }
  uint32_t num_used() const { return pool_.num_used(); }
  uint32_t available() const { return pool_.num_free() + pool_.num_cached(); }
  // Blocks that become available when the steps in flight retire.
  uint32_t releasing() const { return static_cast<uint32_t>(releases_.size()); }
  uint32_t blocks_for(uint32_t positions) const {
    return positions / config_.block_tokens + (positions % config_.block_tokens != 0);
  }

  // The longest prefix of `ids` that is cached, never all of them: at least the last token is computed, since
  // its logits are needed. Takes nothing; `idle` counts the found blocks that nobody holds (taking them costs
  // as much as new).
  struct Match {
    uint32_t blocks = 0;
    uint32_t idle = 0;
  };
  Match probe(KvSequence& s, std::span<const TokenId> ids) const;
  // Takes the prefix (references, no copies) and returns its number of tokens. `rerun`: after preemption.
  // REQUIRES: s.blocks is empty.
  uint32_t adopt(KvSequence& s, std::span<const TokenId> ids, bool rerun);
  // Makes the table cover positions [0, positions). All or nothing; false when too few blocks are available.
  bool extend(KvSequence& s, uint32_t positions);
  // Positions [0, computed) of `ids` are written by retired steps: enters the full blocks among them into the
  // index. A block whose contents are there already is swapped for the one in the index; ours is released
  // after `last_step`, the last submitted step that may still read it.
  void publish(KvSequence& s, std::span<const TokenId> ids, uint32_t computed, uint64_t last_step);
  // Gives the table back; s keeps salt and keys. Published blocks stay findable.
  void release(KvSequence& s, uint64_t last_step);
  // What was computed for this sequence cannot be trusted (its logits were not finite): nobody finds it any
  // more, nor anything that starts with its first block.
  void forget(KvSequence& s, std::span<const TokenId> ids);
  // All steps up to this one have retired.
  void retire(uint64_t step);

  const KvStats& stats() const { return stats_; }
  // Books of pool and index, and of the waiting releases. `tables`: every table handed out, for exact
  // reference counts. Error: kInternal with a dump.
  Status check(std::span<const KvSequence* const> tables) const;
  std::string dump() const;
  // For an audit, with the same `tables`. Walks all blocks.
  KvHoldings holdings(std::span<const KvSequence* const> tables) const;

 private:
  struct Release {
    uint64_t after_step = 0;
    BlockId block = kNoBlock;
  };
  void need_keys(KvSequence& s, std::span<const TokenId> ids, uint32_t count) const;
  std::span<const TokenId> block_ids(std::span<const TokenId> ids, uint32_t block) const;
  template <typename Visit>  // called with each block of the longest cached prefix, in order
  void walk(KvSequence& s, std::span<const TokenId> ids, Visit visit) const;
  BlockId take();
  void give_back(BlockId block, uint64_t last_step);

  const KvConfig config_;
  BlockPool pool_;
  PrefixIndex index_;
  std::vector<Release> releases_;  // in the order given back
  uint64_t retired_ = 0;
  KvStats stats_;
};

}  // namespace ringmaster::gpu_worker
