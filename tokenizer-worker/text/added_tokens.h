// Finds tokens that are spelled out in a text (control tokens, user-defined ones) before any of it is cut
// into pieces: the leftmost first, and of those that begin there the longest. A trie; a search costs at
// most text x longest token. Built once, then immutable; any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace ringmaster::tokenizer_worker {

class AddedTokens {
 public:
  struct Match {
    size_t at;
    size_t size;  // 0: none, and `at` is the text's size
    TokenId id;
  };

  // REQUIRES: no empty text, none twice. Copies the texts.
  explicit AddedTokens(std::vector<std::pair<std::string_view, TokenId>> tokens);

  Match find(std::string_view text, size_t from) const;

 private:
  struct Edge {
    uint8_t byte;
    uint32_t node;
  };
  struct Node {
    uint32_t first_edge = 0, edge_count = 0;  // sorted by byte
    TokenId id = 0;
    bool ends = false;  // a token ends here
  };
  using Entry = std::pair<std::string_view, TokenId>;

  uint32_t build(const Entry* first, const Entry* last, size_t depth);
  const Node* child(const Node& node, uint8_t byte) const;

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::array<bool, 256> begins_{};  // a token begins with this byte
  int only_first_ = -1;             // when all begin with the same byte: that byte
};

}  // namespace ringmaster::tokenizer_worker
