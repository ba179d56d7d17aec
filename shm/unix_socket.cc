#include "shm/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "shm/system_error.h"

namespace ringmaster::shm {
namespace {

// More than any message here carries, so that surplus descriptors arrive and can be counted and closed.
constexpr size_t kFdRoom = 8;

Result<sockaddr_un> address_of(const std::string& path) {
  if (path.empty() || path.size() > kMaxSocketPath) {
    return Error{Code::kInvalidArgument, "socket path '" + path + "' has " + std::to_string(path.size()) +
                                             " bytes; allowed are 1 to " + std::to_string(kMaxSocketPath) +
                                             ": use a shorter state directory or name"};
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

UniqueFd make_socket(int type) {
  return UniqueFd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void keep_fds(const cmsghdr& control, size_t max_fds, Message& message) {
  const size_t count = (control.cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < count; ++i) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(&control) + i * sizeof(int), sizeof fd);
    UniqueFd owned(fd);
    if (message.fds.size() < max_fds) {
      message.fds.push_back(std::move(owned));
    } else {
      message.too_many_fds = true;
    }
  }
}

}  // namespace

Status claim_socket_path(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return address.error();
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return ok_status();
    return system_error("look at socket path " + path, errno);
  }
  if (!S_ISSOCK(status.st_mode)) {
    return Error{Code::kAlreadyExists,
                 path + " exists and is not a socket; move it away or choose another state directory"};
  }
  const UniqueFd probe = make_socket(SOCK_STREAM);
  if (!probe) return system_error("make a socket", errno);
  // Only a refusal proves that nobody listens: another socket type (EPROTOTYPE) or a full backlog is a live
  // owner.
  if (connect(probe.get(), generic(*address), sizeof *address) == 0 || errno == EPROTOTYPE ||
      errno == EAGAIN) {
    return Error{Code::kAlreadyExists,
                 "another live process listens on " + path + "; stop it or choose another state directory"};
  }
  if (errno == ENOENT) return ok_status();
  if (errno != ECONNREFUSED) return system_error("probe socket " + path, errno);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return system_error("remove stale socket " + path, errno);
  return ok_status();
}

Result<UniqueFd> listen_seqpacket(const std::string& path, int backlog) {
  if (auto claimed = claim_socket_path(path); !claimed) return std::move(claimed).error();
  const auto address = address_of(path);
  UniqueFd fd = make_socket(SOCK_SEQPACKET);
  if (!fd) return system_error("make a socket", errno);
  // On Linux the mode of the socket before bind is the mode of the file: there is no moment in which others
  // can connect.
  if (fchmod(fd.get(), 0600) != 0) return system_error("set the mode of socket " + path, errno);
  if (bind(fd.get(), generic(*address), sizeof *address) != 0) return system_error("bind " + path, errno);
  if (listen(fd.get(), backlog) != 0) return system_error("listen on " + path, errno);
  return fd;
}

Result<UniqueFd> connect_seqpacket(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return address.error();
  UniqueFd fd = make_socket(SOCK_SEQPACKET);
  if (!fd) return system_error("make a socket", errno);
  if (connect(fd.get(), generic(*address), sizeof *address) != 0) {
    if (errno == EAGAIN) return Error{Code::kOverloaded, "connect to " + path + ": its backlog is full"};
    return system_error("connect to " + path, errno);
  }
  return fd;
}

pid_t peer_pid(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 ? credentials.pid : 0;
}

Result<UniqueFd> open_pidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return system_error("open a pidfd of process " + std::to_string(pid), errno);
  return fd;
}

Status send_with_fds(int socket, std::span<const std::byte> message, std::span<const int> fds) {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kFdRoom * sizeof(int))> control{};
  iovec part{const_cast<std::byte*>(message.data()), message.size()};  // sendmsg only reads it
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    return system_error("send " + std::to_string(fds.size()) + " descriptors", errno);
  }
  return ok_status();
}

Received receive_with_fds(int socket, std::span<std::byte> buffer, size_t max_fds, Message& message,
                          Receive how) {
  message = {};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kFdRoom * sizeof(int))> control{};
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const int peek = how == Receive::kPeek ? MSG_PEEK : 0;
  const ssize_t size = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | peek);
  if (size < 0) {
    const bool still_there = errno == EAGAIN || errno == EINTR || errno == ENOMEM || errno == ENOBUFS;
    return still_there ? Received::kNothingYet : Received::kClosed;
  }
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) keep_fds(*c, max_fds, message);
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0) message.too_many_fds = true;
  message.size = static_cast<size_t>(size);
  return size == 0 ? Received::kClosed
                   : Received::kMessage;  // an empty message counts as the end: nobody sends one
}

}  // namespace ringmaster::shm
