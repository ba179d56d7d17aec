// One trial: one call fails in one program during start, requests and stop, and the outcome is judged.
// Allowed: it works as usual, the request or command is refused with a typed error, or the process ends with
// a code and a line that says why; and after each of them the cluster serves as before.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tests/failures/stage.h"

namespace ringmaster::failures {

enum class Outcome { kNotReached, kAsUsual, kRefused, kEnded };
std::string_view name(Outcome outcome);

struct Judged {
  Outcome outcome = Outcome::kNotReached;
  std::string violation;  // empty: none
  std::string what;       // which function failed, with a backtrace
  std::string said;       // the process's own words, or the request's error
  long calls = -1;        // with n 0: how many calls of the family there are
};

// A program under trial. n 0: nothing fails, the calls are counted.
class Trials {
 public:
  virtual ~Trials() = default;
  virtual Judged run(const std::string& family, long n) = 0;
};

// "router", "tokenizer-worker", "gpu-worker": start, a request, one that is cancelled, stop. "up": the same
// with the supervisor and all its processes. "generate": the command, at a cluster that runs.
std::unique_ptr<Trials> make_trials(const std::string& program);

}  // namespace ringmaster::failures
