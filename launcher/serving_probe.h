// Asks whether the cluster serves, from a process of its own: the supervisor has one thread and forks, so it
// must not become a client of the router itself. The process ends with its answer, with this object, or with
// the supervisor. Thread: the supervisor's only one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace ringmaster::launcher {

class ServingProbe {
 public:
  // `ask` runs in the other process, may start threads there and has a limit of its own.
  static Result<ServingProbe> start(const std::function<Status()>& ask);
  ServingProbe(ServingProbe&& other) noexcept;
  ~ServingProbe();  // ends the process if it has not answered

  int fd() const { return answer_.get(); }  // readable when answer() may have news
  // Nothing yet, or what `ask` returned.
  std::optional<Status> answer();

 private:
  ServingProbe(pid_t pid, UniqueFd answer) : pid_(pid), answer_(std::move(answer)) {}

  pid_t pid_ = 0;    // 0: moved away
  UniqueFd answer_;  // code and message, then the end
  std::string text_;
};

}  // namespace ringmaster::launcher
