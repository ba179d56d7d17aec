#include "actor/zmq_transport.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>
#include <zmq.hpp>

#include "actor/turn_away.h"
#include "schemas/aligned.h"
#include "shm/system_error.h"
#include "shm/unix_socket.h"

namespace ringmaster::actor {
namespace {

constexpr std::string_view kIpc = "ipc://";
constexpr std::string_view kTcp = "tcp://";

Error zmq_failure(const std::string& what, int error_number) {
  Error error = shm::system_error(what, error_number);
  if (error_number > ZMQ_HAUSNUMERO) error.message = what + ": " + zmq_strerror(error_number);
  return error;
}

Error bad_endpoint(const std::string& endpoint, const std::string& why) {
  return {Code::kInvalidArgument, "endpoint '" + endpoint + "': " + why};
}

// Names that only look like it (127.0.0.1.example.com) are not.
bool is_loopback(std::string_view address) {
  const std::string_view host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" ||
         (host.substr(0, 4) == "127." && host.find_first_not_of("0123456789.") == std::string_view::npos);
}

bool is_ipc(std::string_view endpoint) {
  return endpoint.substr(0, kIpc.size()) == kIpc;
}

Status check_endpoint(const std::string& endpoint) {
  const std::string_view text = endpoint;
  if (is_ipc(text)) {
    const std::string_view path = text.substr(kIpc.size());
    if (path.empty() || path[0] != '/')
      return bad_endpoint(endpoint, "the path after ipc:// must be absolute");
    if (path.size() > shm::kMaxSocketPath) {
      return bad_endpoint(endpoint, "its path has " + std::to_string(path.size()) +
                                        " bytes; allowed are up to " + std::to_string(shm::kMaxSocketPath) +
                                        ": use a shorter state directory");
    }
    return ok_status();
  }
  if (text.substr(0, kTcp.size()) != kTcp) {
    return bad_endpoint(endpoint, "allowed are ipc:///path and tcp://127.0.0.1:port");
  }
  if (!is_loopback(text.substr(kTcp.size()))) {
    return bad_endpoint(endpoint,
                        "tcp is allowed on loopback only (127.0.0.1, [::1], localhost): messages are not "
                        "encrypted; use an ssh tunnel between hosts");
  }
  return ok_status();
}

class ZmqTransportImpl final : public ZmqTransport {
 public:
  explicit ZmqTransportImpl(bool router) : router_(router) {}
  ~ZmqTransportImpl() override { remove_socket_files(); }

  Status connect(const std::string& endpoint, const std::string& routing_id, const ZmqOptions& options);
  Status bind(const ZmqDoor& door, const ZmqOptions& options);

  Sent send(Channel channel, std::string_view peer, Bytes message) override;
  size_t poll(Actor& actor, Nanos now, size_t budget) override;
  bool ready() override;
  std::vector<int> fds() const override;
  std::string endpoint(Channel channel) const override {
    return sockets_[channel].get(zmq::sockopt::last_endpoint);
  }
  const ZmqCounters& counters() const override { return counters_; }
  void close(Nanos linger) override;

 private:
  zmq::socket_t open(zmq::socket_type type, const ZmqOptions& options);
  bool receive_one(Channel channel, Actor& actor, Nanos now);
  Sent not_sent();
  void remove_socket_files();

  const bool router_;
  zmq::context_t context_{1};  // one I/O thread moves far more than the control messages of a cluster
  std::vector<zmq::socket_t> sockets_;  // by channel
  std::vector<std::string> paths_;      // of bound ipc sockets
  size_t next_ = 0;                     // the channel that poll() starts with
  zmq::message_t peer_, first_, surplus_;
  msg::Aligned aligned_;
  ZmqCounters counters_;
};

// Throws zmq::error_t; so do the setters below. Start-up only.
zmq::socket_t ZmqTransportImpl::open(zmq::socket_type type, const ZmqOptions& options) {
  zmq::socket_t socket(context_, type);
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::immediate, false);
  socket.set(zmq::sockopt::sndhwm, options.high_water_mark);
  socket.set(zmq::sockopt::rcvhwm, options.high_water_mark);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(options.max_message_bytes));
  return socket;
}

Status ZmqTransportImpl::connect(const std::string& endpoint, const std::string& routing_id,
                                 const ZmqOptions& options) {
  if (auto ok = check_endpoint(endpoint); !ok) return ok;
  if (routing_id.empty() || routing_id.size() > 255 || routing_id[0] == '\0') {
    return Error{Code::kInvalidArgument, "routing id of " + std::to_string(routing_id.size()) +
                                             " bytes: allowed are 1 to 255, the first not zero"};
  }
  try {
    zmq::socket_t socket = open(zmq::socket_type::dealer, options);
    socket.set(zmq::sockopt::routing_id, routing_id);
    // ZeroMQ waits between one and two times what is set here.
    const auto milliseconds = static_cast<int>(options.reconnect_interval / 2 / kMillisecond);
    socket.set(zmq::sockopt::reconnect_ivl, milliseconds > 0 ? milliseconds : 1);
    socket.connect(endpoint);
    sockets_.push_back(std::move(socket));
  } catch (const zmq::error_t& e) {
    return zmq_failure("connect to " + endpoint, e.num());
  }
  return ok_status();
}

Status ZmqTransportImpl::bind(const ZmqDoor& door, const ZmqOptions& options) {
  if (auto ok = check_endpoint(door.endpoint); !ok) return ok;
  const bool ipc = is_ipc(door.endpoint);
  const std::string path = ipc ? door.endpoint.substr(kIpc.size()) : std::string();
  // ZeroMQ itself would remove whatever is there, a live router's socket or a file of the user alike.
  if (ipc) {
    if (auto ok = shm::claim_socket_path(path); !ok) return ok;
  }
  try {
    zmq::socket_t socket = open(zmq::socket_type::router, options);
    socket.set(zmq::sockopt::router_mandatory, true);
    socket.set(zmq::sockopt::router_handover, door.handover);
    socket.bind(door.endpoint);
    sockets_.push_back(std::move(socket));
  } catch (const zmq::error_t& e) {
    Error error = zmq_failure("bind " + door.endpoint, e.num());
    if (e.num() == EADDRINUSE)
      error.message += "; another process listens there: stop it or choose another endpoint";
    return error;
  }
  if (!ipc) return ok_status();
  paths_.push_back(path);
  if (chmod(path.c_str(), 0600) != 0) return shm::system_error("set the mode of " + path, errno);
  return ok_status();
}

Sent ZmqTransportImpl::not_sent() {
  // EHOSTUNREACH: no such peer. EAGAIN: its queue is full. What else there is (a closed context) is a bug of
  // the caller, and to an actor its peers are gone then.
  if (zmq_errno() == EAGAIN) {
    ++counters_.full;
    return Sent::kFull;
  }
  ++counters_.unreachable;
  return Sent::kUnreachable;
}

Sent ZmqTransportImpl::send(Channel channel, std::string_view peer, Bytes message) {
  void* socket = sockets_.at(static_cast<size_t>(channel)).handle();
  if (router_ && zmq_send(socket, peer.data(), peer.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
    return not_sent();
  if (zmq_send(socket, message.data(), message.size(), ZMQ_DONTWAIT) < 0) return not_sent();
  ++counters_.sent;
  return Sent::kOk;
}

// All frames of a message are there as soon as its first one is.
bool ZmqTransportImpl::receive_one(Channel channel, Actor& actor, Nanos now) {
  void* socket = sockets_[static_cast<size_t>(channel)].handle();
  if (router_ && zmq_msg_recv(peer_.handle(), socket, ZMQ_DONTWAIT) < 0) return false;
  bool more = true;
  if (router_ && !peer_.more()) {
    first_.rebuild();
    more = false;
  } else if (zmq_msg_recv(first_.handle(), socket, ZMQ_DONTWAIT) < 0) {
    return false;
  }
  Bytes message{static_cast<const std::byte*>(first_.data()), first_.size()};
  if (more && first_.more()) {
    ++counters_.multipart;
    message = {};
    do {
      if (zmq_msg_recv(surplus_.handle(), socket, ZMQ_DONTWAIT) < 0) break;
    } while (surplus_.more());
  }
  ++counters_.received;
  actor.receive(channel, router_ ? peer_.to_string_view() : std::string_view(), aligned_.of(message), now);
  return true;
}

size_t ZmqTransportImpl::poll(Actor& actor, Nanos now, size_t budget) {
  size_t received = 0;
  // One message a channel in turn, so that a flood on one door does not close the other.
  for (size_t empty = 0; received < budget && empty < sockets_.size();) {
    const auto channel = static_cast<Channel>(next_);
    next_ = (next_ + 1) % sockets_.size();
    if (receive_one(channel, actor, now)) {
      ++received;
      empty = 0;
    } else {
      ++empty;
    }
  }
  return received;
}

bool ZmqTransportImpl::ready() {
  for (auto& socket : sockets_) {
    if ((socket.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0) return true;
  }
  return false;
}

std::vector<int> ZmqTransportImpl::fds() const {
  std::vector<int> fds;
  for (const auto& socket : sockets_) fds.push_back(socket.get(zmq::sockopt::fd));
  return fds;
}

// ZeroMQ leaves them. To be called while the sockets still listen: afterwards a path may be a successor's
// already.
void ZmqTransportImpl::remove_socket_files() {
  for (const std::string& path : paths_) unlink(path.c_str());
  paths_.clear();
}

void ZmqTransportImpl::close(Nanos linger) {
  remove_socket_files();
  for (auto& socket : sockets_) {
    socket.set(zmq::sockopt::linger, static_cast<int>(linger / kMillisecond));
    socket.close();
  }
  sockets_.clear();
  context_.close();  // waits until everything is written, or `linger` is over
}

}  // namespace

Result<std::unique_ptr<ZmqTransport>> ZmqTransport::worker(const std::string& endpoint,
                                                           const std::string& routing_id,
                                                           const ZmqOptions& options) {
  auto transport = std::make_unique<ZmqTransportImpl>(false);
  if (auto ok = transport->connect(endpoint, routing_id, options); !ok) return std::move(ok).error();
  return std::unique_ptr<ZmqTransport>(std::move(transport));
}

Result<std::unique_ptr<ZmqTransport>> ZmqTransport::router(const std::vector<ZmqDoor>& doors,
                                                           const ZmqOptions& options) {
  if (auto ok = keep_spare_descriptor(); !ok) return std::move(ok).error();
  auto transport = std::make_unique<ZmqTransportImpl>(true);
  for (const ZmqDoor& door : doors) {
    if (auto ok = transport->bind(door, options); !ok) return std::move(ok).error();
  }
  return std::unique_ptr<ZmqTransport>(std::move(transport));
}

}  // namespace ringmaster::actor

#ifdef __SANITIZE_THREAD__
// The distribution's libzmq is not instrumented, so TSan does not see how its threads hand messages on.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libzmq.so\nrace:libzmq.so\n";
}
#endif
