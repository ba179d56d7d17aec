#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <set>
#include <zmq.hpp>

#include "client/cpp/ringmaster.h"
#include "client/cpp/session.h"
#include "schemas/aligned.h"

namespace ringmaster::client {
namespace {

// Messages the socket holds for us; credits bound what a router can have under way (1,024 tokens a stream),
// so reaching this means thousands of streams whose owner does not call next().
constexpr int kReceiveLimit = 100'000;
// At exit, time for the last acknowledgements to leave; a local router takes them in microseconds.
constexpr int kLingerMs = 100;

Error transport_error(const char* what) {
  return {Code::kUnavailable, std::string(what) + ": " + zmq_strerror(zmq_errno())};
}

int timeout_ms(Nanos now, Nanos deadline) {
  if (deadline <= now) return 0;
  return static_cast<int>(std::min<Nanos>((deadline - now + kMillisecond - 1) / kMillisecond, 60'000));
}

bool is_ending(const Event& event) {
  return std::holds_alternative<Ending>(event.what);
}

}  // namespace

std::string_view name(FinishReason reason) {
  static constexpr std::string_view kNames[] = {"stop",     "length",  "cancelled",
                                                "deadline", "refused", "error"};
  const auto index = static_cast<size_t>(reason);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

struct Client::Impl {
  explicit Impl(const Options& options)
      : socket(context, zmq::socket_type::dealer),
        session(options, [this](msg::Bytes bytes) { return send(bytes); }) {}

  zmq::context_t context;
  zmq::socket_t socket;
  msg::Aligned aligned;
  Session session;
  Nanos session_due = 0;
  uint64_t last_tag = 0;
  std::deque<Event> set_aside;  // of other streams, taken while generate() waited for its own
  std::set<Uid> abandoned;      // generate() gave them up: their events are nobody's

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

  // The next event of the session that somebody waits for; nothing at the deadline.
  Result<std::optional<Event>> take(Nanos deadline) {
    while (true) {
      while (session.has_events()) {
        auto event = session.take_event();
        if (!abandoned.contains(event->uid)) return event;
        if (is_ending(*event)) abandoned.erase(event->uid);
      }
      const bool last_look = monotonic_now() >= deadline;
      if (auto pumped = pump(deadline); !pumped) return std::move(pumped).error();
      if (!session.has_events() && session.rejected) {
        // A Generate that cannot be read has no readable uid: the router names no stream, so all open ones
        // are suspect.
        const Error error = *std::exchange(session.rejected, std::nullopt);
        if (session.open_streams() == 0) return error;
        session.end_all(error.code, error.message);
      }
      if (!session.has_events() && last_look) return std::optional<Event>();
    }
  }

  // Takes in what has arrived, waiting up to `deadline` for the first message. Returns after one batch.
  Status pump(Nanos deadline) {
    Nanos now = monotonic_now();
    deadline = std::min(deadline, session_due);
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
      session.receive(aligned.of({static_cast<const std::byte*>(message.data()), message.size()}), now);
    }
    session_due = session.keep_alive(now);
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
  if (auto sent = impl_->session.start(uid, std::move(request), monotonic_now()); !sent)
    return std::move(sent).error();
  impl_->session_due = 0;
  return uid;
}

Status Client::cancel(Uid uid) {
  return impl_->session.cancel(uid);
}

size_t Client::open_streams() const {
  const auto endings = std::count_if(impl_->set_aside.begin(), impl_->set_aside.end(), is_ending);
  return impl_->session.open_streams() - impl_->abandoned.size() + static_cast<size_t>(endings);
}

Result<std::optional<Event>> Client::next(Nanos deadline) {
  if (impl_->set_aside.empty()) return impl_->take(deadline);
  Event event = std::move(impl_->set_aside.front());
  impl_->set_aside.pop_front();
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
    auto event = impl_->take(deadline);
    if (!event) return event.error();
    if (!event->has_value()) {
      // After the cancel the router owes an ending; if even that does not come, the silence limit ends the
      // stream.
      if (cancelled) {
        impl_->abandoned.insert(*started);
        return Error{Code::kDeadlineExceeded, "no ending after the request was cancelled"};
      }
      (void)cancel(*started);
      cancelled = true;
      deadline = monotonic_now() + 5 * kSecond;
      continue;
    }
    if ((*event)->uid != *started) {
      impl_->set_aside.push_back(std::move(**event));
      continue;
    }
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
  Session& session = impl_->session;
  const uint64_t tag = ++impl_->last_tag;
  session.rejected.reset();
  if (auto sent = session.tokenize(tag, request); !sent) return std::move(sent).error();
  const Nanos deadline = monotonic_now() + timeout;
  while (true) {
    if (auto answer = session.tokenized.extract(tag); !answer.empty()) return std::move(answer.mapped());
    if (session.rejected) return *std::exchange(session.rejected, std::nullopt);
    if (monotonic_now() >= deadline)
      return Error{Code::kDeadlineExceeded, "no answer from the cluster in time"};
    if (auto pumped = impl_->pump(deadline); !pumped) return std::move(pumped).error();
  }
}

Result<ClusterBooks> Client::books(Nanos timeout) {
  Session& session = impl_->session;
  const uint64_t tag = ++impl_->last_tag;
  session.rejected.reset();
  if (auto sent = session.query_books(tag); !sent) return std::move(sent).error();
  const Nanos deadline = monotonic_now() + timeout;
  while (true) {
    if (session.books && session.books->first == tag)
      return std::move(std::exchange(session.books, std::nullopt)->second);
    if (session.rejected) return *std::exchange(session.rejected, std::nullopt);
    if (monotonic_now() >= deadline)
      return Error{Code::kDeadlineExceeded, "no answer from the cluster in time"};
    if (auto pumped = impl_->pump(deadline); !pumped) return std::move(pumped).error();
  }
}

Result<ClusterStatus> Client::status(Nanos timeout) {
  Session& session = impl_->session;
  session.status.reset();
  session.rejected.reset();
  if (auto sent = session.query_status(); !sent) return std::move(sent).error();
  const Nanos deadline = monotonic_now() + timeout;
  while (!session.status) {
    if (session.rejected) return *std::exchange(session.rejected, std::nullopt);
    if (monotonic_now() >= deadline)
      return Error{Code::kDeadlineExceeded, "no answer from the cluster in time"};
    if (auto pumped = impl_->pump(deadline); !pumped) return std::move(pumped).error();
  }
  return *std::exchange(session.status, std::nullopt);
}

}  // namespace ringmaster::client
