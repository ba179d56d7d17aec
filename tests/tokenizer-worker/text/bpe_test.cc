#include "tokenizer-worker/text/bpe.h"

#include <map>
#include <optional>

#include "tests/tokenizer-worker/text/test_data.h"

namespace ringmaster::tokenizer_worker {
namespace {

using Ids = std::vector<TokenId>;

// A toy vocabulary: bytes 'a'.. as ids 0.., then one token a merge.
struct Toy {
  std::vector<std::string> tokens;
  std::vector<Bpe::Merge> merges;
  std::array<TokenId, 256> byte_tokens;

  explicit Toy(int letters) {
    byte_tokens.fill(kNoTokenId);
    for (int i = 0; i < letters; ++i) {
      byte_tokens['a' + i] = static_cast<TokenId>(i);
      tokens.push_back(std::string(1, static_cast<char>('a' + i)));
    }
  }
  void merge(TokenId left, TokenId right) {
    merges.push_back({left, right, static_cast<TokenId>(tokens.size())});
    tokens.push_back(tokens[left] + tokens[right]);
  }
  // The definition, literally: join the leftmost pair of the lowest rank until there is none.
  Ids reference(std::string_view piece) const {
    Ids ids;
    for (const char c : piece) {
      if (byte_tokens[static_cast<uint8_t>(c)] != kNoTokenId)
        ids.push_back(byte_tokens[static_cast<uint8_t>(c)]);
    }
    while (true) {
      std::optional<std::pair<size_t, size_t>> best;  // rank, position
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        for (size_t rank = 0; rank < merges.size(); ++rank) {
          if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1] &&
              (!best || rank < best->first)) {
            best = {rank, i};
          }
        }
      }
      if (!best) return ids;
      ids[best->second] = merges[best->first].whole;
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(best->second) + 1);
    }
  }
};

Ids encode(const Bpe& bpe, std::string_view piece) {
  Bpe::Scratch scratch;
  Ids ids;
  bpe.encode(piece, scratch, ids);
  return ids;
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  Toy toy(3);       // a b c
  toy.merge(1, 2);  // 3 = bc
  toy.merge(0, 1);  // 4 = ab
  toy.merge(0, 0);  // 5 = aa
  const Bpe bpe(toy.merges, toy.byte_tokens);
  EXPECT_EQ(encode(bpe, "abc"), (Ids{0, 3}));
  EXPECT_EQ(encode(bpe, "aba"), (Ids{4, 0}));
  EXPECT_EQ(encode(bpe, "aaa"), (Ids{5, 0}));
  EXPECT_EQ(encode(bpe, "aaaa"), (Ids{5, 5}));
  EXPECT_EQ(encode(bpe, ""), Ids{});
}

TEST(Bpe, BytesWithoutATokenVanishAndTheirNeighboursMayJoin) {
  Toy toy(2);
  toy.merge(0, 1);
  const Bpe bpe(toy.merges, toy.byte_tokens);
  EXPECT_EQ(encode(bpe, "aXb"), (Ids{2}));
  EXPECT_EQ(encode(bpe, "X"), Ids{});
  EXPECT_EQ(encode(bpe, std::string(50, 'X') + "a" + std::string(50, 'X') + "b"), (Ids{2}));
}

TEST(Bpe, AWordIsTakenOnlyWhenItsMergesReachIt) {
  Toy toy(3);
  toy.merge(1, 2);  // 3 = bc
  toy.merge(0, 1);  // 4 = ab
  toy.merge(4, 2);  // 5 = abc, never reached: "bc" is joined first
  Bpe bpe(toy.merges, toy.byte_tokens);
  for (TokenId id = 0; id < toy.tokens.size(); ++id) bpe.add_word(toy.tokens[id], id);
  EXPECT_EQ(encode(bpe, "abc"), (Ids{0, 3}));
  EXPECT_EQ(encode(bpe, "ab"), (Ids{4}));
}

TEST(Bpe, EqualsTheDefinitionOnRandomVocabulariesAndPieces) {
  std::mt19937 random(99);
  for (int round = 0; round < 60; ++round) {
    Toy toy(2 + static_cast<int>(random() % 4));
    std::map<std::pair<TokenId, TokenId>, bool> seen;
    for (int i = 0; i < 30; ++i) {
      const TokenId left = random() % toy.tokens.size();
      const TokenId right = random() % toy.tokens.size();
      if (seen.emplace(std::pair{left, right}, true).second) toy.merge(left, right);
    }
    std::shuffle(toy.merges.begin(), toy.merges.end(), random);
    Bpe bpe(toy.merges, toy.byte_tokens);
    const bool with_words = round % 2;
    for (TokenId id = 0; with_words && id < toy.tokens.size(); ++id) bpe.add_word(toy.tokens[id], id);
    for (int piece_round = 0; piece_round < 60; ++piece_round) {
      // Both sides of the border between scanning and heap (64 bytes).
      std::string piece(random() % (piece_round % 3 ? 40 : 160), 'a');
      for (char& c : piece) c = static_cast<char>('a' + random() % 6);
      ASSERT_EQ(encode(bpe, piece), toy.reference(piece)) << piece;
    }
  }
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
