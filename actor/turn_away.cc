#include "actor/turn_away.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "shm/system_error.h"

namespace ringmaster::actor {
namespace {

constexpr int kNone = -1;

std::atomic<int> spare{kNone};
std::atomic<uint64_t> turned_away{0};

int open_spare() {
  return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

int accept_now(int listener, sockaddr* address, socklen_t* length, int flags) {
  return static_cast<int>(syscall(SYS_accept4, listener, address, length, flags));
}

// Sets errno to what is true for the caller afterwards: the connection it was to accept is gone, or the
// process is out of descriptors in a way that ZeroMQ bears (ENFILE).
void turn_one_away(int listener) {
  int held = spare.exchange(kNone, std::memory_order_acq_rel);  // another thread may be at it
  if (held == kNone) held = open_spare();                       // one may have come back since
  if (held == kNone) return void(errno = ENFILE);
  close(held);
  const int connection = accept_now(listener, nullptr, nullptr, SOCK_CLOEXEC);
  const int error = connection < 0 ? errno : ECONNABORTED;
  if (connection >= 0) {
    close(connection);
    turned_away.fetch_add(1, std::memory_order_relaxed);
  }
  held = open_spare();
  int none = kNone;
  if (held != kNone && !spare.compare_exchange_strong(none, held, std::memory_order_acq_rel)) close(held);
  errno = error == EMFILE ? ENFILE : error;
}

}  // namespace

Status keep_spare_descriptor() {
  if (spare.load(std::memory_order_acquire) != kNone) return ok_status();
  const int held = open_spare();
  if (held == kNone) return shm::system_error("open /dev/null as the spare descriptor", errno);
  int none = kNone;
  if (!spare.compare_exchange_strong(none, held, std::memory_order_acq_rel)) close(held);
  return ok_status();
}

uint64_t connections_turned_away() {
  return turned_away.load(std::memory_order_relaxed);
}

}  // namespace ringmaster::actor

extern "C" int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  const int connection = ringmaster::actor::accept_now(listener, address, length, flags);
  if (connection < 0 && errno == EMFILE) ringmaster::actor::turn_one_away(listener);
  return connection;
}
