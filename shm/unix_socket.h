// What Unix sockets need around here: a path that is checked and freed of a dead owner, and messages that
// carry descriptors. Never blocks. Any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "shm/memory_file.h"

namespace ringmaster::shm {

inline constexpr size_t kMaxSocketPath = 107;  // sun_path less its zero

// Makes `path` free to bind: removes the socket of a process that no longer listens. kAlreadyExists: somebody
// listens, or it is something else than a socket; kInvalidArgument: empty or too long. Two processes that
// claim the same path in the same instant are kept apart by the lock on their state directory, not here.
Status claim_socket_path(const std::string& path);

// A non-blocking SOCK_SEQPACKET listener on `path` (claimed first), mode 0600.
Result<UniqueFd> listen_seqpacket(const std::string& path, int backlog);
// A non-blocking connection. kNotFound, kUnavailable: nobody listens. kOverloaded: the backlog is full, try
// again.
Result<UniqueFd> connect_seqpacket(const std::string& path);

// The process at the other end, as the kernel knows it; 0 when it cannot tell (another pid namespace).
pid_t peer_pid(int socket);
// Readable when the process has died.
Result<UniqueFd> open_pidfd(pid_t pid);

// Sends one message with descriptors. Errors: of sendmsg.
Status send_with_fds(int socket, std::span<const std::byte> message, std::span<const int> fds);

enum class Received { kMessage, kNothingYet, kClosed };
// Receives one message of at most buffer.size() bytes; `size` becomes its full length, so size >
// buffer.size() shows one that was cut off. At most `max_fds` descriptors are kept, all others are closed and
// make `too_many_fds` true.
struct Message {
  size_t size = 0;
  std::vector<UniqueFd> fds;
  bool too_many_fds = false;
};
// kPeek leaves the message with its descriptors in the socket: what could not be used now can be received
// once more. kNothingYet stands for a lack of memory too, which leaves it there as well.
enum class Receive { kTake, kPeek };
Received receive_with_fds(int socket, std::span<std::byte> buffer, size_t max_fds, Message& message,
                          Receive how = Receive::kTake);

}  // namespace ringmaster::shm
