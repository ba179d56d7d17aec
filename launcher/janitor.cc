#include "launcher/janitor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/log.h"
#include "launcher/pidfd.h"
#include "launcher/state_dir.h"
#include "shm/system_error.h"
#include "shm/unix_socket.h"

namespace ringmaster::launcher {
namespace {

// One packet: a child's name with its pidfd attached, or an empty name without one: the supervisor ends in
// order.
constexpr size_t kMaxName = 128;

struct Packet {
  std::string name;
  UniqueFd pidfd;
};

bool send_packet(int channel, const std::string& name, int pidfd) {
  iovec data{const_cast<char*>(name.data()), name.size()};
  char zero = 0;
  if (name.empty()) data = {&zero, 1};  // a packet of no bytes would look like the end
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (pidfd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &pidfd, sizeof pidfd);
  }
  return sendmsg(channel, &message, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

// False: nothing there, or the other side is closed.
bool receive_packet(int channel, Packet& packet) {
  char name[kMaxName];
  iovec data{name, sizeof name};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(channel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got <= 0) return false;
  packet = {std::string(name, static_cast<size_t>(got)), UniqueFd()};
  if (packet.name == std::string(1, '\0')) packet.name.clear();
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    packet.pidfd = UniqueFd(fd);
  }
  return true;
}

// The janitor process after fork.
class Worker {
 public:
  Worker(const Janitor::Duties& duties, UniqueFd supervisor, UniqueFd channel)
      : duties_(duties), supervisor_(std::move(supervisor)), channel_(std::move(channel)) {}

  void adopt(const std::string& name, UniqueFd pidfd) { children_[name] = std::move(pidfd); }

  [[noreturn]] void run() {
    isolate();
    while (!supervisor_is_gone()) read_channel();
    read_channel();  // what it still sent before it died
    const size_t killed = kill_children();
    // Before the state is removed: the log folder stays.
    if (!ordered_) {
      (void)log::open("janitor", duties_.state_dir + "/logs/janitor.jsonl", duties_.log);
      log::warning("the supervisor died; {} processes were still there and have been killed", killed);
    }
    remove_runtime_files(duties_.state_dir, duties_.sockets);
    _exit(0);  // releases the lock
  }

 private:
  // Keeps nothing of the supervisor open but what the work needs, so that readers of its output see it end.
  void isolate() {
    setsid();
    prctl(PR_SET_NAME, "rm-janitor");
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::signal(signal, SIG_IGN);
    const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null_fd, fd);
    std::vector<unsigned> kept = {static_cast<unsigned>(supervisor_.get()),
                                  static_cast<unsigned>(channel_.get()),
                                  static_cast<unsigned>(duties_.lock_fd)};
    for (const auto& [name, fd] : children_) kept.push_back(static_cast<unsigned>(fd.get()));
    std::sort(kept.begin(), kept.end());
    unsigned next = STDERR_FILENO + 1;
    for (const unsigned fd : kept) {
      if (fd < next || fd == ~0u) continue;
      if (fd > next) close_range(next, fd - 1, 0);
      next = fd + 1;
    }
    close_range(next, ~0u, 0);
  }

  bool supervisor_is_gone() {
    constexpr int kLimitMs = 60'000;  // nothing depends on it: both descriptors report an end by themselves
    pollfd entries[] = {{supervisor_.get(), POLLIN, 0}, {channel_.get(), POLLIN, 0}};
    if (poll(entries, 2, kLimitMs) <= 0) return false;
    return ordered_ || entries[0].revents != 0 || (entries[1].revents & POLLHUP) != 0;
  }

  void read_channel() {
    Packet packet;
    while (receive_packet(channel_.get(), packet)) {
      if (packet.name.empty())
        ordered_ = true;
      else if (packet.pidfd)
        children_[packet.name] = std::move(packet.pidfd);
    }
  }

  static bool lives(const UniqueFd& pidfd, int wait_ms) {
    pollfd entry{pidfd.get(), POLLIN, 0};
    return poll(&entry, 1, wait_ms) == 0;
  }

  size_t kill_children() {
    constexpr Nanos kLimit = kSecond;  // of the two that everything may take
    size_t killed = 0;
    for (const auto& [name, pidfd] : children_)
      if (lives(pidfd, 0) && send_pidfd_signal(pidfd.get(), SIGKILL) == 0) ++killed;
    const Nanos deadline = monotonic_now() + kLimit;
    for (const auto& [name, pidfd] : children_)
      lives(pidfd, static_cast<int>(std::max<Nanos>(0, deadline - monotonic_now()) / kMillisecond));
    return killed;
  }

  Janitor::Duties duties_;
  UniqueFd supervisor_;
  UniqueFd channel_;
  std::map<std::string, UniqueFd> children_;
  bool ordered_ = false;
};

}  // namespace

Result<Janitor> Janitor::start(const Duties& duties, const std::vector<Watched>& children) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return shm::system_error("no socket pair for the janitor", errno);
  UniqueFd ours(ends[0]), theirs(ends[1]);
  auto supervisor = shm::open_pidfd(getpid());
  if (!supervisor) return std::move(supervisor).error();
  const pid_t pid = fork();
  if (pid < 0) return shm::system_error("no process for the janitor", errno);
  if (pid == 0) {
    ours.reset();
    Worker worker(duties, std::move(supervisor).value(), std::move(theirs));
    for (const Watched& child : children)
      worker.adopt(child.name, UniqueFd(fcntl(child.pidfd, F_DUPFD_CLOEXEC, 0)));
    worker.run();
  }
  auto pidfd = shm::open_pidfd(pid);
  if (!pidfd) return std::move(pidfd).error();
  return Janitor(pid, std::move(pidfd).value(), std::move(ours));
}

Status Janitor::watch(const Watched& child) {
  if (child.name.empty() || child.name.size() > kMaxName)
    return Error{Code::kInvalidArgument,
                 "a name of " + std::to_string(child.name.size()) + " bytes; allowed: 1 to 128"};
  if (send_packet(channel_.get(), child.name, child.pidfd)) return ok_status();
  return shm::system_error("the janitor cannot be told", errno);
}

Status Janitor::finish(Nanos limit) {
  send_packet(channel_.get(), "", -1);
  channel_.reset();
  pollfd entry{pidfd_.get(), POLLIN, 0};
  const bool ended = poll(&entry, 1, static_cast<int>(limit / kMillisecond)) == 1;
  if (!ended) return Error{Code::kDeadlineExceeded, "the janitor has not ended"};
  waitpid(pid_, nullptr, 0);
  return ok_status();
}

}  // namespace ringmaster::launcher
