#include <poll.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "shm/handshake.h"
#include "shm/slot.h"
#include "shm/slot_memory.h"
#include "shm/system_error.h"
#include "shm/unix_socket.h"

namespace ringmaster::shm {
namespace {

Result<UniqueFd> connect_until(const std::string& path, Nanos deadline) {
  for (;;) {
    auto connection = connect_seqpacket(path);
    if (connection || connection.error().code != Code::kOverloaded || monotonic_now() >= deadline) {
      return connection;
    }
    const timespec pause{0, static_cast<long>(kMillisecond)};  // a full backlog cannot be waited for by poll
    nanosleep(&pause, nullptr);
  }
}

Status wait_readable(int fd, Nanos deadline) {
  for (;;) {
    const Nanos left = deadline == kNever ? kSecond : deadline - monotonic_now();
    if (left <= 0) {
      return Error{Code::kDeadlineExceeded,
                   "the gpu-worker did not answer the request for a ring slot in time"};
    }
    const Nanos slice = std::min(left, kSecond);
    const timespec timeout{static_cast<time_t>(slice / kSecond), static_cast<long>(slice % kSecond)};
    pollfd item{fd, POLLIN, 0};
    const int ready = ppoll(&item, 1, &timeout, nullptr);
    if (ready > 0) return ok_status();
    if (ready < 0 && errno != EINTR) return system_error("wait for a ring slot", errno);
  }
}

Hello make_hello(uint64_t gpu_instance, const std::string& name) {
  Hello hello{};
  hello.magic = kHandshakeMagic;
  hello.version = kLayoutVersion;
  hello.name_size = static_cast<uint32_t>(name.size());
  hello.gpu_instance = gpu_instance;
  std::memcpy(hello.name, name.data(), name.size());
  return hello;
}

Error refusal(const Reply& reply) {
  const Code code =
      reply.code <= static_cast<uint32_t>(kLastCode) ? static_cast<Code>(reply.code) : Code::kMalformed;
  switch (code) {
    case Code::kResourceExhausted:
      return {code, "the gpu-worker has no free ring slot; raise gpu-worker.slots or end a tokenizer-worker"};
    case Code::kNotFound:
      return {code, "another instance of the gpu-worker listens there; its predecessor is gone"};
    case Code::kUnsupportedVersion:
      return {code, "the gpu-worker has ring layout version " + std::to_string(reply.version) +
                        ", this build has " + std::to_string(kLayoutVersion) +
                        "; run processes of one build"};
    default:
      return {code, "the gpu-worker refused a ring slot: " + std::string(name(code))};
  }
}

// `buffer` holds what there is of the message, whose size may be more.
Result<Reply> check_reply(std::span<const std::byte> buffer, const Message& message, uint64_t gpu_instance) {
  Reply reply{};
  if (message.size != sizeof reply) {
    return Error{Code::kMalformed, "reply of " + std::to_string(message.size) +
                                       " bytes for a ring slot, expected " + std::to_string(sizeof reply)};
  }
  std::memcpy(&reply, buffer.data(), sizeof reply);
  if (reply.magic != kHandshakeMagic)
    return Error{Code::kMalformed, "reply for a ring slot with a wrong magic"};
  if (reply.code != static_cast<uint32_t>(Code::kOk)) return refusal(reply);
  if (reply.version != kLayoutVersion) {
    reply.code = static_cast<uint32_t>(Code::kUnsupportedVersion);
    return refusal(reply);
  }
  if (reply.gpu_instance != gpu_instance)
    return Error{Code::kMalformed, "reply for a ring slot of another instance than was asked for"};
  if (message.fds.size() != 2 || message.too_many_fds) {
    return Error{Code::kMalformed, "reply for a ring slot with " + std::to_string(message.fds.size()) +
                                       " descriptors, expected 2"};
  }
  return reply;
}

Result<TokenizerEnd> map_slot(const Reply& reply, UniqueFd slot_fd, UniqueFd bell_fd) {
  const auto places = place_rings({reply.command_bytes, reply.prompt_bytes, reply.token_bytes});
  if (!places) return places.error();
  auto memory = MemoryFile::attach(std::move(slot_fd), places->size);
  if (!memory) return std::move(memory).error();
  if (auto ok = check_slot(memory->bytes(), *places, reply.slot, reply.gpu_instance); !ok) return ok.error();
  auto bell = Doorbell::attach(std::move(bell_fd));
  if (!bell) return std::move(bell).error();
  const SlotRings rings = rings_of(memory->bytes(), *places);
  return TokenizerEnd{std::move(memory).value(), Producer(rings.command),
                      Producer(rings.prompt),    Consumer(rings.token),
                      std::move(bell).value(),   reply.slot,
                      reply.gpu_instance,        UniqueFd()};
}

// Of an answer that gives a slot: whether it is the answer that is wrong, and not this process in want.
bool answer_is_wrong(Code code) {
  return code == Code::kMalformed || code == Code::kInvalidArgument || code == Code::kUnsupportedVersion;
}

}  // namespace

SlotRequest::SlotRequest(std::string path, uint64_t gpu_instance, UniqueFd connection, UniqueFd gpu_pidfd)
    : path_(std::move(path)),
      gpu_instance_(gpu_instance),
      connection_(std::move(connection)),
      gpu_pidfd_(std::move(gpu_pidfd)) {}

Result<SlotRequest> SlotRequest::send(const std::string& socket_path, uint64_t gpu_instance,
                                      const std::string& own_name, const Doorbell& own_bell, Nanos deadline) {
  if (!valid_holder_name(own_name)) {
    return Error{Code::kInvalidArgument, "name '" + own_name + "': allowed are 1 to " +
                                             std::to_string(kMaxHolderName) +
                                             " characters of [A-Za-z0-9._-]"};
  }
  auto connection = connect_until(socket_path, deadline);
  if (!connection) return std::move(connection).error();
  const int socket = connection->get();
  // The pidfd comes before the request: whoever answers the request was alive after the pidfd was opened, so
  // the pid cannot have passed to another process in between.
  const pid_t pid = peer_pid(socket);
  if (pid <= 0)
    return Error{Code::kUnavailable, socket_path + ": the listener's process is not visible from here"};
  auto pidfd = open_pidfd(pid);
  if (!pidfd) return std::move(pidfd).error();

  const Hello hello = make_hello(gpu_instance, own_name);
  const int bell_fd = own_bell.fd();
  if (auto sent = send_with_fds(socket, std::as_bytes(std::span(&hello, 1)), {&bell_fd, 1}); !sent) {
    return std::move(sent).error();
  }
  return SlotRequest(socket_path, gpu_instance, std::move(connection).value(), std::move(pidfd).value());
}

Result<TokenizerEnd> SlotRequest::take(Nanos deadline) {
  const auto give_up = [&](Error why) {
    connection_.reset();
    return why;
  };
  std::byte buffer[sizeof(Reply) + 1];  // one more shows a reply that is too long
  Message message;
  for (;;) {
    if (auto ready = wait_readable(connection_.get(), deadline); !ready) return std::move(ready).error();
    // What is only looked at stays in the socket with its descriptors, until the slot is mapped.
    const Received got = receive_with_fds(connection_.get(), buffer, 2, message, Receive::kPeek);
    if (got == Received::kMessage) break;
    if (got == Received::kClosed) {
      return give_up(
          {Code::kUnavailable, path_ + ": the gpu-worker closed the connection without an answer"});
    }
  }
  if (message.too_many_fds && message.fds.size() < 2)  // fewer than were sent
    return system_error("receive a ring slot at " + path_, EMFILE);
  const auto reply = check_reply(buffer, message, gpu_instance_);
  if (!reply) return give_up(reply.error());
  auto end = map_slot(*reply, std::move(message.fds[0]), std::move(message.fds[1]));
  if (!end) return answer_is_wrong(end.error().code) ? give_up(end.error()) : end.error();
  end->gpu_pidfd = std::move(gpu_pidfd_);
  connection_.reset();
  return end;
}

Result<TokenizerEnd> attach_slot(const std::string& socket_path, uint64_t gpu_instance,
                                 const std::string& own_name, const Doorbell& own_bell, Nanos deadline) {
  auto request = SlotRequest::send(socket_path, gpu_instance, own_name, own_bell, deadline);
  if (!request) return std::move(request).error();
  return request->take(deadline);
}

}  // namespace ringmaster::shm
