#include "router/stream_forwarder.h"

#include <algorithm>

namespace ringmaster::router {
namespace {

std::string_view view(const flatbuffers::Vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The nested message was verified with the outer one, but for what it is.
const msg::Stream* stream_in(const flatbuffers::Vector<uint8_t>& payload) {
  constexpr size_t kIdentifierAt = sizeof(flatbuffers::uoffset_t);
  if (view(payload).substr(kIdentifierAt, flatbuffers::kFileIdentifierLength) !=
      msg::ClientMessageIdentifier())
    return nullptr;
  const auto* message = flatbuffers::GetRoot<msg::ClientMessage>(payload.data());
  return message->version() == msg::kVersion ? message->body_as_Stream() : nullptr;
}

bool reasons_known(const msg::Stream& stream) {
  if (!stream.ends()) return true;
  return std::all_of(stream.ends()->begin(), stream.ends()->end(), [](const msg::Done* done) {
    return done->reason() <= msg::FinishReason::MAX && done->code() <= msg::Code::MAX;
  });
}

}  // namespace

Status StreamForwarder::forward(const Worker& from, const msg::Streams& streams, Nanos now) {
  Status outcome = ok_status();
  for (const msg::ToClient* to : *streams.to())
    if (auto one = forward_one(from, *to, now); !one) outcome = std::move(one);
  return outcome;
}

Status StreamForwarder::forward_one(const Worker& from, const msg::ToClient& to, Nanos now) {
  const msg::Stream* stream = stream_in(*to.payload());
  if (!stream) return Error{Code::kMalformed, "the payload of ToClient is not a Stream of this version"};
  if (!reasons_known(*stream))
    return Error{Code::kMalformed, "a Done in the payload of ToClient has no known reason or code"};
  const std::string_view route = view(*to.client());
  pick(from, route, *stream);

  const bool lost = send(route, to) != actor::Sent::kOk;
  uint64_t tokens = 0;
  for (const auto& [r, chunk] : chunks_) {
    const uint32_t count = chunk->ids() ? chunk->ids()->size() : 0;
    tokens += count;
    r->lost_pieces |= lost;
    r->sent_tokens = std::max(r->sent_tokens, chunk->first_token() + count);
    r->sent_text = std::max(r->sent_text, chunk->text_offset() + (chunk->text() ? chunk->text()->size() : 0));
  }
  counters_.add(Counter::kChunksForwarded, chunks_.size());
  counters_.add(Counter::kTokensForwarded, tokens);
  counters_.add(Counter::kChunksStale, stale_);
  // Endings last: each may erase its request.
  for (const auto& [epoch, done] : ends_) {
    Request& r = *table_.find(epoch);
    r.lost_pieces |= lost;
    life_.worker_ended(r, *done, now);
  }
  for (const Epoch epoch : to_forget_) replies_.forget(from, epoch);
  return ok_status();
}

actor::Sent StreamForwarder::send(std::string_view route, const msg::ToClient& to) {
  if (chunks_.empty() && ends_.empty()) return actor::Sent::kOk;
  if (stale_ == 0)
    return replies_.to_client(route, std::as_bytes(std::span(to.payload()->data(), to.payload()->size())));
  counters_.add(Counter::kStreamsRebuilt);
  std::vector<const msg::Chunk*> chunks;
  std::vector<const msg::Done*> ends;
  for (const auto& [request, chunk] : chunks_) chunks.push_back(chunk);
  for (const auto& [epoch, done] : ends_) ends.push_back(done);
  return replies_.rebuilt(route, chunks, ends);
}

void StreamForwarder::pick(const Worker& from, std::string_view route, const msg::Stream& stream) {
  chunks_.clear();
  ends_.clear();
  to_forget_.clear();
  stale_ = 0;
  if (stream.chunks())
    for (const msg::Chunk* chunk : *stream.chunks())
      if (Request* r = current(from, route, chunk->epoch(), *chunk->uid())) chunks_.emplace_back(r, chunk);
  if (!stream.ends()) return;
  for (const msg::Done* done : *stream.ends()) {
    const Request* r = current(from, route, done->epoch(), *done->uid());
    if (!r) continue;
    // A second ending in the same payload is as stale as one in a later payload.
    const bool repeated =
        std::any_of(ends_.begin(), ends_.end(), [&](const auto& known) { return known.first == r->epoch; });
    if (repeated)
      ++stale_;
    else
      ends_.emplace_back(r->epoch, done);
  }
}

Request* StreamForwarder::current(const Worker& from, std::string_view route, Epoch epoch,
                                  const msg::Uid& uid) {
  Request* r = table_.find(epoch);
  const bool owned = r && r->tokenizer.get() == &from;
  if (owned && (r->live() || r->replay_by != 0) && r->uid == msg::to_uid(uid) && r->route() == route)
    return r;
  ++stale_;
  // What the sender does not own, or was told to forget, it shall not go on computing. The rest is only late.
  if ((!owned || r->made_here) && std::find(to_forget_.begin(), to_forget_.end(), epoch) == to_forget_.end())
    to_forget_.push_back(epoch);
  return nullptr;
}

}  // namespace ringmaster::router
