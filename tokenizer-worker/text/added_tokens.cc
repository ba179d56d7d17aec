#include "tokenizer-worker/text/added_tokens.h"

#include <algorithm>
#include <cstring>

namespace ringmaster::tokenizer_worker {

AddedTokens::AddedTokens(std::vector<Entry> tokens) {
  std::sort(tokens.begin(), tokens.end());
  for (const Entry& token : tokens) begins_[static_cast<uint8_t>(token.first[0])] = true;
  if (std::count(begins_.begin(), begins_.end(), true) == 1)
    only_first_ = static_cast<uint8_t>(tokens[0].first[0]);
  build(tokens.data(), tokens.data() + tokens.size(), 0);
}

// The node of the sorted entries [first, last), which share their first `depth` bytes. Recursion is as deep
// as a token is long, which the loader bounds.
uint32_t AddedTokens::build(const Entry* first, const Entry* last, size_t depth) {
  const auto number = static_cast<uint32_t>(nodes_.size());
  nodes_.emplace_back();
  if (first != last && first->first.size() == depth) {
    nodes_[number].ends = true;
    nodes_[number].id = first->second;
    ++first;
  }
  std::vector<Edge> edges;
  while (first != last) {
    const char byte = first->first[depth];
    const Entry* group = first;
    while (first != last && first->first[depth] == byte) ++first;
    edges.push_back({static_cast<uint8_t>(byte), build(group, first, depth + 1)});
  }
  nodes_[number].first_edge = static_cast<uint32_t>(edges_.size());
  nodes_[number].edge_count = static_cast<uint32_t>(edges.size());
  edges_.insert(edges_.end(), edges.begin(), edges.end());
  return number;
}

const AddedTokens::Node* AddedTokens::child(const Node& node, uint8_t byte) const {
  const auto first = edges_.begin() + node.first_edge;
  const auto last = first + node.edge_count;
  const auto edge = std::lower_bound(first, last, byte, [](const Edge& e, uint8_t b) { return e.byte < b; });
  return edge != last && edge->byte == byte ? &nodes_[edge->node] : nullptr;
}

AddedTokens::Match AddedTokens::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (only_first_ >= 0) {
      const void* hit = std::memchr(text.data() + at, only_first_, text.size() - at);
      if (hit == nullptr) break;
      at = static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    } else if (!begins_[static_cast<uint8_t>(text[at])]) {
      continue;
    }
    Match match{at, 0, 0};
    const Node* node = &nodes_[0];
    for (size_t end = at; end < text.size(); ++end) {
      node = child(*node, static_cast<uint8_t>(text[end]));
      if (node == nullptr) break;
      if (node->ends) match = {at, end + 1 - at, node->id};
    }
    if (match.size > 0) return match;
  }
  return {text.size(), 0, 0};
}

}  // namespace ringmaster::tokenizer_worker
