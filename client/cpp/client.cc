#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <zmq.hpp>

#include "client/cpp/ringmaster.h"
#include "client/cpp/stream_state.h"
#include "client/cpp/wire.h"

namespace ringmaster::client {
namespace {

// Messages the socket holds for us; credits bound what a router can have under way (1,024 tokens a stream),
// so reaching this means thousands of streams whose owner does not call next().
constexpr int kReceiveLimit = 100'000;
// At exit, time for the last acknowledgements to leave; a local router takes them in microseconds.
constexpr int kLingerMs = 100;
constexpr Nanos kAskAgainInterval = 200 * kMillisecond;
// A slow consumer that takes fewer than ack_every tokens still acknowledges this often, so that the lease and
// the credit move.
constexpr Nanos kAckInterval = kSecond;
constexpr int kMostGaps = 5;

Error transport_error(const char* what) {
  return {Code::kUnavailable, std::string(what) + ": " + zmq_strerror(zmq_errno())};
}

int timeout_ms(Nanos now, Nanos deadline) {
  if (deadline <= now) return 0;
  return static_cast<int>(std::min<Nanos>((deadline - now + kMillisecond - 1) / kMillisecond, 60'000));
}

}  // namespace

std::string_view name(FinishReason reason) {
  static constexpr std::string_view kNames[] = {"stop",     "length",  "cancelled",
                                                "deadline", "refused", "error"};
  const auto index = static_cast<size_t>(reason);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

struct Client::Impl {
  explicit Impl(Options o) : options(o), socket(context, zmq::socket_type::dealer) {}

  Options options;
  zmq::context_t context;
  zmq::socket_t socket;
  flatbuffers::FlatBufferBuilder builder;
  std::unordered_map<Uid, StreamState> streams;
  std::deque<Event> events;
  size_t queued_endings = 0;      // in `events`
  std::optional<Error> rejected;  // answer to a message that was not a Generate
  std::optional<ClusterStatus> status;
  std::unordered_map<uint64_t, Result<std::vector<TokenId>>> tokenized;
  uint64_t last_tag = 0;
  uint32_t incarnation = 0;
  Nanos heard_at = 0;
  Nanos pinged_at = 0;
  Nanos acked_at = 0;

  Status send(msg::Bytes bytes) {
    // A DEALER without a connection queues up to its high-water mark; past that the cluster has been gone for
    // long.
    try {
      if (!socket.send(zmq::const_buffer(bytes.data(), bytes.size()), zmq::send_flags::dontwait))
        return Error{Code::kUnavailable, "the cluster does not take messages (send queue full)"};
    } catch (const zmq::error_t&) {
      return transport_error("send");
    }
    return ok_status();
  }

  Status resume(Uid uid, StreamState& stream, Nanos now) {
    if (now - stream.asked_again_at < kAskAgainInterval) return ok_status();
    stream.asked_again_at = now;
    return send(wire::generate(builder, uid, stream.request, stream.ids, stream.text_offset));
  }

  void end(Uid uid, Ending ending) {
    events.push_back({uid, std::move(ending)});
    ++queued_endings;
    streams.erase(uid);
  }

  void end_all(Code code, const std::string& message) {
    while (!streams.empty()) {
      Ending ending;
      ending.code = code;
      ending.message = message;
      end(streams.begin()->first, std::move(ending));
    }
  }

  void on_incarnation(uint32_t seen, Nanos now) {
    if (incarnation != 0 && seen != incarnation)
      for (auto& [uid, stream] : streams)
        (void)resume(uid, stream, now);  // a failed send ends by silence_limit
    incarnation = seen;
  }

  void on_accepted(const msg::Accepted& accepted) {
    const auto found = streams.find(msg::to_uid(*accepted.uid()));
    if (found == streams.end()) return;
    StreamState& stream = found->second;
    // From here on a resume, even to a new router, continues with the same random numbers.
    stream.request.sampling.seed = accepted.seed();
    stream.request.has_seed = true;
    if (!stream.accepted) events.push_back({found->first, Accepted{accepted.epoch(), accepted.seed()}});
    stream.accepted = true;
  }

  void on_chunk(const msg::Chunk& chunk, Nanos now) {
    const auto found = streams.find(msg::to_uid(*chunk.uid()));
    if (found == streams.end()) return;
    Piece piece;
    switch (take(chunk, found->second, piece)) {
      case Taken::kNew:
        events.push_back({found->first, std::move(piece)});
        break;
      case Taken::kRepeat:
        break;
      case Taken::kGap:
        (void)resume(found->first, found->second, now);
        break;
    }
  }

  void on_done(const msg::Done& done, Nanos now) {
    const Uid uid = msg::to_uid(*done.uid());
    const auto found = streams.find(uid);
    if (found == streams.end()) return;
    StreamState& stream = found->second;
    Ending out = wire::ending(done);
    if (stream.next_token() < out.usage.output_tokens) {
      // The ending overtook or replaced pieces that were lost; the cluster keeps them until they are
      // acknowledged.
      if (++stream.gaps <= kMostGaps) {
        stream.asked_again_at = 0;
        (void)resume(uid, stream, now);
        return;
      }
      out.reason = FinishReason::kError;
      out.code = Code::kInternal;
      out.message = "stream ended after " + std::to_string(out.usage.output_tokens) + " tokens, but only " +
                    std::to_string(stream.next_token()) + " arrived and the rest could not be had again";
    }
    (void)send(wire::acks(builder, {{uid, stream.next_token(), stream.text_offset}}));
    end(uid, std::move(out));
  }

  void on_message(msg::Bytes bytes, Nanos now) {
    heard_at = now;
    const auto opened = msg::open<msg::ClientMessage>(bytes);
    if (!opened) return end_all(opened.error().code, "reply from the cluster: " + opened.error().message);
    const msg::ClientMessage& message = **opened;
    switch (message.body_type()) {
      case msg::ClientBody::Accepted:
        return on_accepted(*message.body_as_Accepted());
      case msg::ClientBody::Stream: {
        const msg::Stream& stream = *message.body_as_Stream();
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
      case msg::ClientBody::TokenizeReply: {
        const msg::TokenizeReply& reply = *message.body_as_TokenizeReply();
        if (reply.code() != msg::Code::ok)
          tokenized.insert_or_assign(
              reply.tag(),
              Error{msg::to_code(reply.code()), reply.message() ? reply.message()->str() : std::string()});
        else
          tokenized.insert_or_assign(
              reply.tag(), reply.ids() ? std::vector<TokenId>(reply.ids()->begin(), reply.ids()->end())
                                       : std::vector<TokenId>());
        return;
      }
      case msg::ClientBody::NONE:
        return;
    }
  }

  void keep_alive(Nanos now) {
    if (streams.empty()) return;
    if (now - acked_at >= kAckInterval) acknowledge(now, /*all=*/true);
    if (now - pinged_at >= options.ping_interval) {
      pinged_at = now;
      (void)send(wire::ping(builder));
    }
    if (now - heard_at >= options.silence_limit)
      end_all(Code::kUnavailable,
              "nothing heard from the cluster for " + std::to_string(options.silence_limit / kSecond) + " s");
  }

  void acknowledge(Nanos now, bool all) {
    std::vector<wire::PendingAck> pending;
    for (auto& [uid, stream] : streams) {
      if (!stream.has_unacked()) continue;
      if (!all && stream.next_token() - stream.acked_token < options.ack_every) continue;
      pending.push_back({uid, stream.next_token(), stream.text_offset});
      stream.acked_token = stream.next_token();
      stream.acked_text = stream.text_offset;
    }
    acked_at = now;
    if (!pending.empty()) (void)send(wire::acks(builder, pending));  // a lost one is covered by the next
  }

  // The stream of this event has given out what the event holds: acknowledge when enough has gathered.
  void handed_out(Uid uid) {
    const auto found = streams.find(uid);
    if (found == streams.end()) return;
    StreamState& stream = found->second;
    if (stream.next_token() - stream.acked_token < options.ack_every) return;
    stream.acked_token = stream.next_token();
    stream.acked_text = stream.text_offset;
    (void)send(wire::acks(builder, {{uid, stream.next_token(), stream.text_offset}}));
  }

  // Takes in what has arrived, waiting up to `deadline` for the first message. Returns after one batch.
  Status pump(Nanos deadline) {
    Nanos now = monotonic_now();
    if (!streams.empty()) deadline = std::min(deadline, pinged_at + options.ping_interval);
    zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
    if (zmq_poll(&item, 1, timeout_ms(now, deadline)) < 0 && zmq_errno() != EINTR)
      return transport_error("poll");
    now = monotonic_now();
    zmq::message_t message;
    // Bounded, so that a flood of pieces cannot keep the caller from its events.
    for (int i = 0; i < 256; ++i) {
      try {
        if (!socket.recv(message, zmq::recv_flags::dontwait)) break;
      } catch (const zmq::error_t&) {
        if (zmq_errno() == EINTR) break;
        return transport_error("receive");
      }
      on_message({static_cast<const std::byte*>(message.data()), message.size()}, now);
    }
    keep_alive(now);
    return ok_status();
  }
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Result<Client> Client::connect(const std::string& endpoint, Options options) {
  auto impl = std::make_unique<Impl>(options);
  // A stable name, so that the router finds us again after a reconnect. Ids that start with a zero byte are
  // ZeroMQ's own.
  const std::string id = "c" + to_string(random_uid()).substr(0, 15);
  try {
    impl->socket.set(zmq::sockopt::routing_id, id);
    impl->socket.set(zmq::sockopt::linger, kLingerMs);
    impl->socket.set(zmq::sockopt::rcvhwm, kReceiveLimit);
    impl->socket.set(zmq::sockopt::reconnect_ivl, 20);
    impl->socket.connect(endpoint);
  } catch (const zmq::error_t& error) {
    return Error{Code::kInvalidArgument, "cannot connect to '" + endpoint + "': " + error.what() +
                                             " (expected ipc://PATH or tcp://HOST:PORT)"};
  }
  return Client(std::move(impl));
}

Result<Uid> Client::start(Request request) {
  const Uid uid = random_uid();
  const Nanos now = monotonic_now();
  if (impl_->streams.empty()) impl_->heard_at = impl_->pinged_at = impl_->acked_at = now;
  StreamState stream;
  stream.request = std::move(request);
  if (auto sent = impl_->send(wire::generate(impl_->builder, uid, stream.request, {}, 0)); !sent)
    return std::move(sent).error();
  impl_->streams.emplace(uid, std::move(stream));
  return uid;
}

Status Client::cancel(Uid uid) {
  return impl_->send(wire::cancel(impl_->builder, uid));
}

size_t Client::open_streams() const {
  return impl_->streams.size() + impl_->queued_endings;
}

Result<std::optional<Event>> Client::next(Nanos deadline) {
  while (impl_->events.empty()) {
    const bool last_look = monotonic_now() >= deadline;
    if (auto pumped = impl_->pump(deadline); !pumped) return std::move(pumped).error();
    if (impl_->events.empty() && impl_->rejected) {
      // A Generate that cannot be read has no readable uid: the router names no stream, so all open ones are
      // suspect.
      const Error error = *std::exchange(impl_->rejected, std::nullopt);
      if (impl_->streams.empty()) return error;
      impl_->end_all(error.code, error.message);
    }
    if (impl_->events.empty() && last_look) return std::optional<Event>();
  }
  Event event = std::move(impl_->events.front());
  impl_->events.pop_front();
  if (std::holds_alternative<Piece>(event.what)) impl_->handed_out(event.uid);
  if (std::holds_alternative<Ending>(event.what)) --impl_->queued_endings;
  return std::optional<Event>(std::move(event));
}

Result<Answer> Client::generate(Request request, const std::function<void(const Piece&)>& on_piece,
                                Nanos timeout) {
  const auto started = start(std::move(request));
  if (!started) return started.error();
  Answer answer;
  Nanos deadline = monotonic_now() + timeout;
  bool cancelled = false;
  while (true) {
    auto event = next(deadline);
    if (!event) return event.error();
    if (!event->has_value()) {
      // After the cancel the router owes an ending; if even that does not come, the silence limit ends the
      // stream.
      if (cancelled) return Error{Code::kDeadlineExceeded, "no ending after the request was cancelled"};
      (void)cancel(*started);
      cancelled = true;
      deadline = monotonic_now() + 5 * kSecond;
      continue;
    }
    if ((*event)->uid != *started) continue;
    if (auto* accepted = std::get_if<Accepted>(&(*event)->what)) {
      answer.accepted = *accepted;
    } else if (auto* piece = std::get_if<Piece>(&(*event)->what)) {
      if (on_piece) on_piece(*piece);
      answer.ids.insert(answer.ids.end(), piece->ids.begin(), piece->ids.end());
      answer.text += piece->text;
      std::move(piece->logprobs.begin(), piece->logprobs.end(), std::back_inserter(answer.logprobs));
    } else {
      answer.ending = std::get<Ending>(std::move((*event)->what));
      return answer;
    }
  }
}

Result<std::vector<TokenId>> Client::tokenize(const Request& request, Nanos timeout) {
  const uint64_t tag = ++impl_->last_tag;
  impl_->rejected.reset();
  if (auto sent = impl_->send(wire::tokenize(impl_->builder, tag, request)); !sent)
    return std::move(sent).error();
  const Nanos deadline = monotonic_now() + timeout;
  while (true) {
    if (const auto found = impl_->tokenized.find(tag); found != impl_->tokenized.end()) {
      auto ids = std::move(found->second);
      impl_->tokenized.erase(found);
      return ids;
    }
    if (impl_->rejected) return *std::exchange(impl_->rejected, std::nullopt);
    if (monotonic_now() >= deadline)
      return Error{Code::kDeadlineExceeded, "no answer from the cluster in time"};
    if (auto pumped = impl_->pump(deadline); !pumped) return std::move(pumped).error();
  }
}

Result<ClusterStatus> Client::status(Nanos timeout) {
  impl_->status.reset();
  impl_->rejected.reset();
  if (auto sent = impl_->send(wire::status_query(impl_->builder)); !sent) return std::move(sent).error();
  const Nanos deadline = monotonic_now() + timeout;
  while (!impl_->status) {
    if (impl_->rejected) return *std::exchange(impl_->rejected, std::nullopt);
    if (monotonic_now() >= deadline)
      return Error{Code::kDeadlineExceeded, "no answer from the cluster in time"};
    if (auto pumped = impl_->pump(deadline); !pumped) return std::move(pumped).error();
  }
  return *std::exchange(impl_->status, std::nullopt);
}

}  // namespace ringmaster::client
