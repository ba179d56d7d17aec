#include "tokenizer-worker/text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>

namespace ringmaster::tokenizer_worker {
namespace {

constexpr uint64_t kMixA = 0x9E3779B97F4A7C15ull;  // odd constants of splitmix64
constexpr uint64_t kMixB = 0xBF58476D1CE4E5B9ull;

inline uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t load(const char* from, size_t size) {  // size <= 8
  uint64_t value = 0;
  std::memcpy(&value, from, size);
  return value;
}

// Words are 1 to 16 bytes but for a few: two overlapping loads cover them without a loop. The tables hold
// nothing but the vocabulary, so hostile text cannot lengthen a probe.
inline uint64_t hash_of(std::string_view text) {
  const char* at = text.data();
  size_t left = text.size();
  uint64_t hash = left * kMixB;
  for (; left > 16; at += 8, left -= 8) hash = mix(hash ^ load(at, 8), kMixA);
  if (left >= 8) return mix(hash ^ load(at, 8), kMixA ^ load(at + left - 8, 8));
  if (left >= 4) return mix(hash ^ load(at, 4), kMixA ^ load(at + left - 4, 4));
  uint64_t low = 0;
  for (size_t i = 0; i < left; ++i) low = low << 8 | static_cast<uint8_t>(at[i]);
  return mix(hash ^ low, kMixA);
}

inline uint64_t pair_of(TokenId left, TokenId right) {
  return uint64_t{left} << 32 | right;
}

}  // namespace

Bpe::Bpe(std::span<const Merge> merges, const std::array<TokenId, 256>& byte_tokens)
    : byte_tokens_(byte_tokens) {
  pairs_.resize(std::bit_ceil(2 * merges.size() + 2));
  merged_.reserve(merges.size());
  const size_t mask = pairs_.size() - 1;
  for (const Merge& merge : merges) {
    const uint64_t pair = pair_of(merge.left, merge.right);
    size_t at = mix(pair ^ kMixB, kMixA) & mask;
    while (pairs_[at].pair != kNoPair) at = (at + 1) & mask;
    pairs_[at] = {pair, static_cast<uint32_t>(merged_.size()), merge.whole};
    merged_.push_back(merge.whole);
  }
  words_.resize(16);
}

inline const Bpe::PairSlot& Bpe::find_pair(TokenId left, TokenId right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t mask = pairs_.size() - 1;
  size_t at = mix(pair ^ kMixB, kMixA) & mask;
  while (pairs_[at].pair != pair && pairs_[at].pair != kNoPair) at = (at + 1) & mask;
  return pairs_[at];
}

inline const Bpe::WordSlot* Bpe::find_word(std::string_view piece) const {
  if (piece.size() > longest_word_) return nullptr;
  const size_t mask = words_.size() - 1;
  for (size_t at = hash_of(piece) & mask; words_[at].bytes != nullptr; at = (at + 1) & mask) {
    const WordSlot& slot = words_[at];
    if (slot.size == piece.size() && std::memcmp(slot.bytes, piece.data(), slot.size) == 0) return &slot;
  }
  return nullptr;
}

void Bpe::grow_words() {
  std::vector<WordSlot> old(2 * words_.size());
  old.swap(words_);
  const size_t mask = words_.size() - 1;
  for (const WordSlot& slot : old) {
    if (slot.bytes == nullptr) continue;
    size_t at = hash_of({slot.bytes, slot.size}) & mask;
    while (words_[at].bytes != nullptr) at = (at + 1) & mask;
    words_[at] = slot;
  }
}

void Bpe::add_word(std::string_view bytes, TokenId id) {
  if (bytes.empty() || find_word(bytes) != nullptr) return;
  Scratch scratch;
  std::vector<TokenId> merged;
  merge(bytes, scratch, merged);
  if (merged.size() != 1 || merged[0] != id) return;
  if (2 * (word_count_ + 1) > words_.size()) grow_words();
  const size_t mask = words_.size() - 1;
  size_t at = hash_of(bytes) & mask;
  while (words_[at].bytes != nullptr) at = (at + 1) & mask;
  words_[at] = {bytes.data(), static_cast<uint32_t>(bytes.size()), id};
  ++word_count_;
  longest_word_ = std::max(longest_word_, bytes.size());
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
  if (const WordSlot* word = find_word(piece)) {
    ids.push_back(word->id);
    return;
  }
  merge(piece, scratch, ids);
}

void Bpe::merge(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
  if (piece.size() <= kShortPiece) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, scratch, ids);
  }
}

void Bpe::merge_short(std::string_view piece, std::vector<TokenId>& ids) const {
  TokenId symbol[kShortPiece];
  uint32_t rank[kShortPiece];  // of the pair that begins here
  size_t count = 0;
  for (const char c : piece) {
    const TokenId id = byte_tokens_[static_cast<uint8_t>(c)];
    if (id != kNoTokenId) symbol[count++] = id;
  }
  for (size_t i = 0; i + 1 < count; ++i) rank[i] = find_pair(symbol[i], symbol[i + 1]).rank;
  while (count > 1) {
    const size_t best = static_cast<size_t>(std::min_element(rank, rank + count - 1) - rank);
    if (rank[best] == kNoRank) break;
    symbol[best] = merged_[rank[best]];
    std::copy(symbol + best + 2, symbol + count, symbol + best + 1);
    std::copy(rank + std::min(best + 2, count - 1), rank + count - 1, rank + best + 1);
    --count;
    if (best + 1 < count) rank[best] = find_pair(symbol[best], symbol[best + 1]).rank;
    if (best > 0) rank[best - 1] = find_pair(symbol[best - 1], symbol[best]).rank;
  }
  ids.insert(ids.end(), symbol, symbol + count);
}

// Symbols form a linked list; the heap orders pairs by (rank, position). An entry whose pair has changed
// since is stale: a rank names one pair, so comparing it with the pair's present rank is enough.
void Bpe::merge_long(std::string_view piece, Scratch& s, std::vector<TokenId>& ids) const {
  s.symbols.clear();
  for (const char c : piece) {
    const TokenId id = byte_tokens_[static_cast<uint8_t>(c)];
    if (id != kNoTokenId) s.symbols.push_back(id);
  }
  const auto count = static_cast<uint32_t>(s.symbols.size());
  s.next.resize(count);
  s.previous.resize(count);
  s.rank.assign(count, kNoRank);
  s.heap.clear();
  const auto later = std::greater<uint64_t>();  // a min-heap
  for (uint32_t i = 0; i < count; ++i) {
    s.next[i] = i + 1;
    s.previous[i] = i - 1;  // of the first: count or more, never read
    if (i + 1 == count) break;
    s.rank[i] = find_pair(s.symbols[i], s.symbols[i + 1]).rank;
    if (s.rank[i] != kNoRank) s.heap.push_back(pair_of(s.rank[i], i));
  }
  std::make_heap(s.heap.begin(), s.heap.end(), later);

  const auto rate = [&](uint32_t at) {
    s.rank[at] = s.next[at] < count ? find_pair(s.symbols[at], s.symbols[s.next[at]]).rank : kNoRank;
    if (s.rank[at] == kNoRank) return;
    s.heap.push_back(pair_of(s.rank[at], at));
    std::push_heap(s.heap.begin(), s.heap.end(), later);
  };
  while (!s.heap.empty()) {
    const uint64_t top = s.heap.front();
    std::pop_heap(s.heap.begin(), s.heap.end(), later);
    s.heap.pop_back();
    const auto rank = static_cast<uint32_t>(top >> 32);
    const auto at = static_cast<uint32_t>(top);
    if (s.rank[at] != rank) continue;
    const uint32_t right = s.next[at];
    s.symbols[at] = merged_[rank];
    s.rank[right] = kNoRank;
    s.next[at] = s.next[right];
    if (s.next[at] < count) s.previous[s.next[at]] = at;
    rate(at);
    if (at > 0) rate(s.previous[at]);
  }
  for (uint32_t at = 0; at < count; at = s.next[at]) ids.push_back(s.symbols[at]);
}

}  // namespace ringmaster::tokenizer_worker
