// A forked child of a test: runs a function and leaves without the test's own clean-up. Killed and waited for
// at the end, whatever happened, by its pid.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <utility>

#include "base/clock.h"

namespace ringmaster::shm {

class Child {
 public:
  // The child's exit code is what `run` returns. It never outlives the test's process, nor `seconds`.
  explicit Child(const std::function<int()>& run, unsigned seconds = 60) : pid_(fork()) {
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(seconds);
      _exit(run());
    }
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) {
      signal(SIGKILL);
      wait();
    }
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  // Exit code; 128 + signal when killed.
  int wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Whether it has ended; wait() tells how.
  bool ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid_;
  }

 private:
  pid_t pid_;
};

// Polls `done` until it is true or `limit` has passed.
inline bool eventually(const std::function<bool()>& done, Nanos limit = 5 * kSecond) {
  const Nanos deadline = monotonic_now() + limit;
  while (!done()) {
    if (monotonic_now() >= deadline) return false;
    usleep(200);
  }
  return true;
}

}  // namespace ringmaster::shm
