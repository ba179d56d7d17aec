// A signal through the descriptor of a process, by system call: the header of glibc 2.36 has no C++ linkage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ringmaster::launcher {

// -1 and errno, as the system says. `pidfd`: of shm::open_pidfd.
inline int send_pidfd_signal(int pidfd, int signal) {
  return static_cast<int>(syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0));
}

}  // namespace ringmaster::launcher
