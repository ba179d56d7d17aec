// Descriptors for processes, by system call: the header of glibc 2.36 has no C++ linkage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

namespace ringmaster::launcher {

// -1 and errno, as the system says.
inline int open_pidfd(pid_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}
inline int send_pidfd_signal(int pidfd, int signal) {
  return static_cast<int>(syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0));
}

}  // namespace ringmaster::launcher
