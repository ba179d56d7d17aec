#include "client/cpp/stream_state.h"

namespace ringmaster::client {

Taken take(const msg::Chunk& chunk, StreamState& state, Piece& piece) {
  const size_t count = chunk.ids() ? chunk.ids()->size() : 0;
  const std::string_view text = chunk.text() ? chunk.text()->string_view() : std::string_view();
  if (chunk.first_token() > state.next_token() || chunk.text_offset() > state.text_offset) return Taken::kGap;
  const size_t known_ids = state.next_token() - chunk.first_token();
  const uint64_t known_text = state.text_offset - chunk.text_offset();

  piece.first_token = state.next_token();
  if (known_ids < count) {
    for (size_t i = known_ids; i < count; ++i)
      piece.ids.push_back(chunk.ids()->Get(static_cast<flatbuffers::uoffset_t>(i)));
    state.ids.insert(state.ids.end(), piece.ids.begin(), piece.ids.end());
    piece.logprobs = wire::logprobs(chunk, known_ids);
  }
  if (known_text < text.size()) {
    piece.text = text.substr(known_text);
    state.text_offset += piece.text.size();
  }
  return piece.ids.empty() && piece.text.empty() ? Taken::kRepeat : Taken::kNew;
}

}  // namespace ringmaster::client
