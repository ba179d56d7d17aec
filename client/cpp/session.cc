#include "client/cpp/session.h"

#include <algorithm>
#include <utility>

namespace ringmaster::client {
namespace {

// docs/protocol.md: no stream is asked for more often than this.
constexpr Nanos kAskAgainInterval = 200 * kMillisecond;
// Pieces come, but not the answer that would make them welcome: it is lost, or these are of before.
constexpr Nanos kAnswerWithin = kSecond;
// A slow consumer that takes fewer than ack_every tokens still acknowledges this often, so that the lease and
// the credit move.
constexpr Nanos kAckInterval = kSecond;
// Endings that came before their tokens. An ending that claims a whole stream is worth several questions; one
// that says that it failed may have lost them for good.
constexpr int kMostGaps = 5;
constexpr int kMostGapsAfterFailure = 1;
// A stream that stays silent is asked for at growing intervals: it may wait in a long queue, and asking
// carries its whole prompt.
constexpr int kMostDoublings = 4;

// What a verifier of one field at a time cannot see.
Status check(const msg::Stream& stream) {
  if (!stream.chunks()) return ok_status();
  for (const msg::Chunk* chunk : *stream.chunks()) {
    const size_t ids = chunk->ids() ? chunk->ids()->size() : 0;
    const size_t logprobs = chunk->logprobs() ? chunk->logprobs()->size() : 0;
    if (logprobs != 0 && logprobs != ids)
      return Error{Code::kMalformed, "a piece of " + std::to_string(ids) + " tokens has " +
                                         std::to_string(logprobs) +
                                         " log-probabilities; allowed: none, or one for each"};
  }
  return ok_status();
}

}  // namespace

Status Session::start(Uid uid, Request request, Nanos now) {
  if (streams_.empty()) heard_at_ = pinged_at_ = acked_at_ = now;
  StreamState stream;
  stream.request = std::move(request);
  stream.heard_at = stream.asked_at = now;
  if (auto sent = send_(wire::generate(builder_, uid, stream.request, {}, 0)); !sent) return sent;
  streams_.emplace(uid, std::move(stream));
  return ok_status();
}

Status Session::cancel(Uid uid) {
  if (const auto found = streams_.find(uid); found != streams_.end()) found->second.cancelled = true;
  return send_(wire::cancel(builder_, uid));
}

Status Session::tokenize(uint64_t tag, const Request& request) {
  return send_(wire::tokenize(builder_, tag, request));
}

Status Session::query_books(uint64_t tag) {
  return send_(wire::audit_query(builder_, tag));
}

Status Session::query_status() {
  return send_(wire::status_query(builder_));
}

// ---- messages ----

void Session::receive(msg::Bytes bytes, Nanos now) {
  heard_at_ = now;
  const auto opened = msg::open<msg::ClientMessage>(bytes);
  if (!opened) return end_all(opened.error().code, "reply from the cluster: " + opened.error().message);
  const msg::ClientMessage& message = **opened;
  switch (message.body_type()) {
    case msg::ClientBody::Accepted:
      return on_accepted(*message.body_as_Accepted(), now);
    case msg::ClientBody::Stream: {
      const msg::Stream& stream = *message.body_as_Stream();
      if (const Status sound = check(stream); !sound.ok())
        return end_all(sound.error().code, "reply from the cluster: " + sound.error().message);
      if (stream.chunks())
        for (const msg::Chunk* chunk : *stream.chunks()) on_chunk(*chunk, now);
      if (stream.ends())
        for (const msg::Done* done : *stream.ends()) on_done(*done, now);
      return;
    }
    case msg::ClientBody::Rejected: {
      const msg::Rejected& reply = *message.body_as_Rejected();
      rejected = Error{msg::to_code(reply.code()), reply.message()->str()};
      return;
    }
    case msg::ClientBody::Pong:
      return on_incarnation(message.body_as_Pong()->incarnation(), now);
    case msg::ClientBody::StatusReply:
      status = wire::cluster_status(*message.body_as_StatusReply());
      return on_incarnation(status->incarnation, now);
    case msg::ClientBody::AuditReply: {
      const msg::AuditReply& reply = *message.body_as_AuditReply();
      books.emplace(reply.tag(), wire::cluster_books(reply));
      return on_incarnation(reply.incarnation(), now);
    }
    case msg::ClientBody::TokenizeReply:
      return on_tokenize_reply(*message.body_as_TokenizeReply());
    case msg::ClientBody::NONE:
      return;
  }
}

void Session::on_tokenize_reply(const msg::TokenizeReply& reply) {
  if (reply.code() != msg::Code::ok) {
    tokenized.insert_or_assign(reply.tag(), Error{msg::to_code(reply.code()),
                                                  reply.message() ? reply.message()->str() : std::string()});
  } else {
    tokenized.insert_or_assign(reply.tag(),
                               reply.ids() ? std::vector<TokenId>(reply.ids()->begin(), reply.ids()->end())
                                           : std::vector<TokenId>());
  }
}

void Session::on_incarnation(uint32_t seen, Nanos now) {
  if (incarnation_ != 0 && seen != incarnation_)
    for (auto& [uid, stream] : streams_) resume(uid, stream, now);
  incarnation_ = seen;
}

void Session::on_accepted(const msg::Accepted& accepted, Nanos now) {
  const auto found = streams_.find(msg::to_uid(*accepted.uid()));
  if (found == streams_.end()) return unknown(msg::to_uid(*accepted.uid()));
  StreamState& stream = found->second;
  stream.heard_at = now;
  // From here on a resume, even to a new router, continues with the same random numbers.
  stream.request.sampling.seed = accepted.seed();
  stream.request.has_seed = true;
  if (accepted.next_token() >= stream.next_token()) stream.answered = true;  // else of an earlier question
  if (!stream.accepted) events_.push_back({found->first, Accepted{accepted.epoch(), accepted.seed()}});
  stream.accepted = true;
}

void Session::on_chunk(const msg::Chunk& chunk, Nanos now) {
  const auto found = streams_.find(msg::to_uid(*chunk.uid()));
  if (found == streams_.end()) return unknown(msg::to_uid(*chunk.uid()));
  StreamState& stream = found->second;
  if (!stream.answered) {
    stream.ask_at = std::min(stream.ask_at, stream.asked_at + kAnswerWithin);
    return;
  }
  stream.heard_at = now;
  Piece piece;
  switch (take(chunk, stream, piece)) {
    case Taken::kNew:
      stream.silent_asks = 0;
      events_.push_back({found->first, std::move(piece)});
      break;
    case Taken::kRepeat:
      // The cluster is behind what is here: what it repeats is acknowledged once more.
      stream.acked_token = std::min(stream.acked_token, chunk.first_token());
      stream.acked_text = std::min(stream.acked_text, chunk.text_offset());
      break;
    case Taken::kGap:
      resume(found->first, stream, now);
      break;
  }
}

// A request that nobody here waits for any more runs in the cluster: the first Generate was refused, and one
// that was sent meanwhile was not. Of a request that has ended the cluster ignores this.
void Session::unknown(Uid uid) {
  (void)send_(wire::cancel(builder_, uid));
}

void Session::on_done(const msg::Done& done, Nanos now) {
  const Uid uid = msg::to_uid(*done.uid());
  const auto found = streams_.find(uid);
  if (found == streams_.end()) return;
  StreamState& stream = found->second;
  // A refusal at the door (epoch 0) is the other answer to a Generate.
  if (!stream.answered && done.epoch() != 0) {
    stream.ask_at = std::min(stream.ask_at, stream.asked_at + kAnswerWithin);
    return;
  }
  Ending out = wire::ending(done);
  if (stream.next_token() < out.usage.output_tokens) {
    // The ending overtook or replaced pieces that were lost; the cluster keeps them until they are
    // acknowledged.
    if (stream.ask_at != kNever)
      return;  // and will be asked for: a second copy of the ending says nothing new
    const bool whole = out.reason == FinishReason::kStop || out.reason == FinishReason::kLength;
    if (++stream.gaps <= (whole ? kMostGaps : kMostGapsAfterFailure)) {
      stream.heard_at = now;
      return resume(uid, stream, now);
    }
    if (whole) {
      out.reason = FinishReason::kError;
      out.code = Code::kInternal;
      out.message = "stream ended after " + std::to_string(out.usage.output_tokens) + " tokens, but only " +
                    std::to_string(stream.next_token()) + " arrived and the rest could not be had again";
    }
  }
  (void)send_(wire::acks(builder_, {{uid, stream.next_token(), stream.text_offset}}));
  end(uid, std::move(out));
}

// ---- time ----

Nanos Session::keep_alive(Nanos now) {
  if (streams_.empty()) return kNever;
  if (now - acked_at_ >= kAckInterval) acknowledge(now);
  if (now - pinged_at_ >= options_.ping_interval) {
    pinged_at_ = now;
    (void)send_(wire::ping(builder_));
  }
  for (auto& [uid, stream] : streams_) {
    if (next_ask(stream) > now) continue;
    if (stream.ask_at > now) stream.silent_asks = std::min(stream.silent_asks + 1, kMostDoublings);
    stream.heard_at = now;  // whatever it is asked for, the wait begins anew
    resume(uid, stream, now);
  }
  if (now - heard_at_ >= options_.silence_limit)
    end_all(Code::kUnavailable,
            "nothing heard from the cluster for " + std::to_string(options_.silence_limit / kSecond) + " s");
  if (streams_.empty()) return kNever;
  Nanos next = std::min(
      {acked_at_ + kAckInterval, pinged_at_ + options_.ping_interval, heard_at_ + options_.silence_limit});
  for (const auto& [uid, stream] : streams_) next = std::min(next, next_ask(stream));
  return next;
}

// A stream whose pieces wait for the caller is not silent: it stands still at its credit.
Nanos Session::next_ask(const StreamState& stream) const {
  const Nanos silent = stream.heard_at + (options_.ask_again_after << stream.silent_asks);
  return stream.has_untaken() ? stream.ask_at : std::min(stream.ask_at, silent);
}

// Now, or as soon as it is allowed again.
void Session::resume(Uid uid, StreamState& stream, Nanos now) {
  if (now < stream.asked_again_at + kAskAgainInterval) {
    stream.ask_at = stream.asked_again_at + kAskAgainInterval;
    return;
  }
  stream.ask_at = kNever;
  stream.asked_at = stream.asked_again_at = now;
  stream.answered = false;
  // It says what is here, handed out or not: acknowledging less afterwards would be old news.
  stream.acked_token = stream.next_token();
  stream.acked_text = stream.text_offset;
  (void)send_(wire::generate(builder_, uid, stream.request, stream.ids, stream.text_offset));
  // A router that died may have taken the cancel with it.
  if (stream.cancelled) (void)send_(wire::cancel(builder_, uid));
}

void Session::acknowledge(Nanos now) {
  std::vector<wire::PendingAck> pending;
  for (auto& [uid, stream] : streams_) {
    if (!stream.has_unacked()) continue;
    pending.push_back({uid, stream.taken_token, stream.taken_text});
    stream.acked_token = stream.taken_token;
    stream.acked_text = stream.taken_text;
  }
  acked_at_ = now;
  if (!pending.empty()) (void)send_(wire::acks(builder_, pending));  // a lost one: see next_ask()
}

// ---- events ----

std::optional<Event> Session::take_event() {
  if (events_.empty()) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  if (const auto* piece = std::get_if<Piece>(&event.what)) handed_out(event.uid, *piece);
  if (std::holds_alternative<Ending>(event.what)) --queued_endings_;
  return event;
}

void Session::handed_out(Uid uid, const Piece& piece) {
  const auto found = streams_.find(uid);
  if (found == streams_.end()) return;
  StreamState& stream = found->second;
  stream.taken_token += static_cast<uint32_t>(piece.ids.size());
  stream.taken_text += piece.text.size();
  if (stream.taken_token < stream.acked_token + options_.ack_every) return;
  stream.acked_token = stream.taken_token;
  stream.acked_text = stream.taken_text;
  (void)send_(wire::acks(builder_, {{uid, stream.taken_token, stream.taken_text}}));
}

void Session::end(Uid uid, Ending ending) {
  events_.push_back({uid, std::move(ending)});
  ++queued_endings_;
  streams_.erase(uid);
}

void Session::end_all(Code code, const std::string& message) {
  while (!streams_.empty()) {
    Ending ending;
    ending.code = code;
    ending.message = message;
    end(streams_.begin()->first, std::move(ending));
  }
}

}  // namespace ringmaster::client
