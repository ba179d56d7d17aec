#include "launcher/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "base/unique_fd.h"
#include "shm/system_error.h"
#include "shm/unix_socket.h"

extern char** environ;

namespace ringmaster::launcher {
namespace {

class IgnoredInterrupt {
 public:
  IgnoredInterrupt() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGINT, &ignore, &before_);
  }
  ~IgnoredInterrupt() { sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

Result<pid_t> start(const std::vector<std::string>& argv, Output output) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (output == Output::kHidden)
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  posix_spawnattr_setsigdefault(&attributes, &interrupt);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, arguments[0], &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error == 0) return pid;
  return shm::system_error(argv[0], error);
}

}  // namespace

Result<int> run_command(const std::vector<std::string>& argv, Output output, Nanos limit) {
  const IgnoredInterrupt ignored;
  const Result<pid_t> pid = start(argv, output);
  if (!pid.ok()) return pid.error();
  auto pidfd = shm::open_pidfd(pid.value());
  if (!pidfd) {
    kill(pid.value(), SIGKILL);
    waitpid(pid.value(), nullptr, 0);
    return std::move(pidfd).error();
  }
  const Nanos deadline = monotonic_now() + limit;
  bool ended = false;
  while (!ended && monotonic_now() < deadline) {
    pollfd entry{pidfd->get(), POLLIN, 0};
    const Nanos left = std::max<Nanos>(0, deadline - monotonic_now()) / kMillisecond + 1;
    ended = poll(&entry, 1, static_cast<int>(std::min<Nanos>(left, 60'000))) == 1;
  }
  if (!ended) kill(pid.value(), SIGKILL);
  int status = 0;
  waitpid(pid.value(), &status, 0);
  if (!ended)
    return Error{Code::kDeadlineExceeded,
                 argv[0] + " has not ended within " + std::to_string(limit / kSecond) + " s and was killed"};
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace ringmaster::launcher
