// A child that is run one instruction (or one system call) at a time and killed between two of them.
#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

namespace ringmaster::shm {

// A sanitizer's code is several times as long, and each moment costs all steps before it: there only every
// k-th.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kEvery = 997;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr int kEvery = 37;
#else
inline constexpr int kEvery = 1;
#endif

class SteppedChild {
 public:
  // In the child: setup() at full speed, then what it returned step by step.
  explicit SteppedChild(const std::function<std::function<void()>()>& setup) : pid_(fork()) {
    if (pid_ == 0) {
      ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      const auto marked = setup();
      raise(SIGSTOP);
      marked();
      raise(SIGSTOP);
      _exit(0);
    }
    wait();
    ready_ = WIFSTOPPED(status_) && WSTOPSIG(status_) == SIGSTOP &&
             ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD) == 0;
  }
  SteppedChild(const SteppedChild&) = delete;
  SteppedChild& operator=(const SteppedChild&) = delete;
  ~SteppedChild() { kill(); }

  // False: the child cannot be traced or has ended before the marked part.
  bool ready() const { return ready_; }
  // One instruction; false once the marked part is done.
  bool step() { return go(PTRACE_SINGLESTEP) && wait() && more(); }
  // To the next beginning or end of a system call, which the child may wait in: `meanwhile` is called until
  // it gets there.
  bool step_call(const std::function<void()>& meanwhile) {
    if (!go(PTRACE_SYSCALL)) return false;
    for (;;) {
      const pid_t done = waitpid(pid_, &status_, WNOHANG);
      if (done == pid_) return more();
      if (done < 0 && errno != EINTR) return false;
      meanwhile();
    }
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    do {
      wait();
    } while (WIFSTOPPED(status_));
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  bool go(int request) { return ptrace(static_cast<__ptrace_request>(request), pid_, nullptr, nullptr) == 0; }
  bool wait() {
    while (waitpid(pid_, &status_, 0) < 0) {
      if (errno != EINTR) return false;
    }
    return true;
  }
  bool more() const { return WIFSTOPPED(status_) && WSTOPSIG(status_) != SIGSTOP; }

  pid_t pid_;
  int status_ = 0;
  bool ready_ = false;
};

}  // namespace ringmaster::shm
