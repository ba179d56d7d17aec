// What a process tells its parent through the descriptor given as `--ready-fd N`: one line "READY\n" when it
// serves (sockets bound, model loaded, files open), and from then on a "." now and then, as long as its loop
// turns. A parent that hears nothing more knows that the process is stopped or loops, which its pidfd does
// not tell; silence for supervisor.hang_timeout gets it killed and replaced. A parent that is gone, a full
// pipe and a negative descriptor are no errors. Thread: the one that runs the loop. The descriptor is closed
// with the object.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/clock.h"
#include "base/unique_fd.h"

namespace ringmaster {

class ReadyLine {
 public:
  // Rare enough to cost an idle process nothing, and far below the shortest supervisor.hang_timeout (3 s)
  // also with the second that a loop may sleep (actor/loop.h).
  static constexpr Nanos kPeriod = 500 * kMillisecond;

  explicit ReadyLine(int ready_fd);  // -1: nobody waits

  void announce();        // once, when the start-up is done
  void alive(Nanos now);  // in every turn of the loop; writes at most once in kPeriod

 private:
  UniqueFd fd_;
  Nanos next_ = 0;
};

}  // namespace ringmaster
