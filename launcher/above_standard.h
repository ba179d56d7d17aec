// Copies of descriptors whose numbers do not collide with those that a child of the supervisor is given: 0,
// 1, 2 and one more. A program that was started without some of them gets their numbers for what it opens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

#include "base/unique_fd.h"

namespace ringmaster::launcher {

inline constexpr int kGivenFd = 3;  // the one more: what the child says to its parent

// Closed on exec. Empty and errno when there is no descriptor left.
inline UniqueFd above_standard(const UniqueFd& fd) {
  return UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, kGivenFd + 1));
}

}  // namespace ringmaster::launcher
