// Byte-pair encoding of one piece: the adjacent pair of lowest merge rank is joined, leftmost first, until
// none is left. A piece that is a token as a whole is found by one look-up; short ones are merged in place by
// scanning, long ones with a heap, so a piece of n bytes costs O(n log n) whatever it holds. Bytes without a
// token of their own are dropped, as the published tokenizers do. Not a pre-tokenizer: it never looks at
// characters. Built once, then immutable; any thread may encode with a Scratch of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "tokenizer-worker/text/tokenizer.h"

namespace ringmaster::tokenizer_worker {

class Bpe {
 public:
  struct Merge {
    TokenId left, right, whole;
  };
  // Buffers of long pieces, kept between the pieces of one text; empty until one comes.
  struct Scratch {
    std::vector<TokenId> symbols;
    std::vector<uint32_t> next, previous, rank;
    std::vector<uint64_t> heap;
  };

  // `merges` in rank order, each pair once; `byte_tokens`: the token of each byte or kNoTokenId.
  Bpe(std::span<const Merge> merges, const std::array<TokenId, 256>& byte_tokens);

  // Makes `bytes` one look-up. Does nothing unless merging `bytes` gives exactly `id`: a vocabulary may hold
  // tokens that its merges never reach. `bytes` must outlive this object.
  void add_word(std::string_view bytes, TokenId id);

  // Appends the ids of `piece`. REQUIRES: shorter than 4 GiB.
  void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;

 private:
  struct PairSlot {
    uint64_t pair = kNoPair;  // left << 32 | right
    uint32_t rank = kNoRank;
    TokenId whole = kNoTokenId;
  };
  struct WordSlot {
    const char* bytes = nullptr;
    uint32_t size = 0;
    TokenId id = kNoTokenId;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static constexpr uint32_t kNoRank = ~uint32_t{0};
  // Scanning and heap cost the same at 64 bytes (random words of n common letters, SmolLM2's merges: 16.3 and
  // 15.6 MB/s; at 16 bytes 30 and 18, at 96 bytes 13.0 and 15.2).
  static constexpr size_t kShortPiece = 64;

  const PairSlot& find_pair(TokenId left, TokenId right) const;
  const WordSlot* find_word(std::string_view piece) const;
  void grow_words();
  void merge(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;
  void merge_short(std::string_view piece, std::vector<TokenId>& ids) const;
  void merge_long(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;

  std::array<TokenId, 256> byte_tokens_;
  std::vector<PairSlot> pairs_;  // open addressing, a power of two, at most half full
  std::vector<TokenId> merged_;  // by rank: what the pair becomes
  std::vector<WordSlot> words_;  // likewise
  size_t word_count_ = 0;
  size_t longest_word_ = 0;
};

}  // namespace ringmaster::tokenizer_worker
