// What the client knows of one open stream: how far it has come, so that repeated pieces are trimmed and
// missing ones are asked for again. Pure bookkeeping, no socket; used by session.cc alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "client/cpp/ringmaster.h"
#include "client/cpp/wire.h"

namespace ringmaster::client {

struct StreamState {
  Request request;           // kept to be sent again on a resume
  bool accepted = false;     // once
  bool cancelled = false;    // by the caller
  bool answered = false;     // the last Generate, by an Accepted: until then nothing is taken
  std::vector<TokenId> ids;  // received so far; a resume carries them
  uint64_t text_offset = 0;
  uint32_t taken_token = 0;  // of it, what the caller has been handed
  uint64_t taken_text = 0;
  uint32_t acked_token = 0;  // of that, what has been acknowledged
  uint64_t acked_text = 0;
  Nanos heard_at = 0;        // of this stream
  Nanos asked_at = 0;        // by the last Generate
  Nanos asked_again_at = 0;  // by the last that was not the first
  Nanos ask_at = kNever;     // to be asked for again then
  int silent_asks = 0;       // since the last piece
  int gaps = 0;              // endings that came before their tokens

  uint32_t next_token() const { return static_cast<uint32_t>(ids.size()); }
  bool has_untaken() const { return taken_token < ids.size() || taken_text < text_offset; }
  bool has_unacked() const { return acked_token < taken_token || acked_text < taken_text; }
};

enum class Taken { kNew, kRepeat, kGap };

// Appends the part of `chunk` that is new to `state` and to `piece`.
Taken take(const msg::Chunk& chunk, StreamState& state, Piece& piece);

}  // namespace ringmaster::client
