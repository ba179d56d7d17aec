// Many trials of one program and one family. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/failures/trial.h"

namespace ringmaster::failures {

inline const std::vector<std::string> kPrograms = {"router", "tokenizer-worker", "gpu-worker", "up",
                                                   "generate"};
inline const std::vector<std::string> kFamilies = {"memory", "files", "descriptors", "messages", "threads"};

struct Swept {
  long calls = 0;  // of the family, in an undisturbed life
  int tried = 0, wrong = 0;
  std::map<Outcome, int> outcomes = {
      {Outcome::kNotReached, 0}, {Outcome::kAsUsual, 0}, {Outcome::kRefused, 0}, {Outcome::kEnded, 0}};
  std::map<std::string, int> said;  // lines, without what differs from trial to trial
};

struct Selection {
  long first = 1;  // the least n; negative: the last so many, which are those of requests and stop
  long most = 0;   // at most so many, evenly spread; 0: all
};

// Counts the calls, then lets each of the selected ones fail in turn.
Swept sweep(Trials& trials, const std::string& family, const Selection& selection,
            const std::function<void(long n, const Judged&)>& each);

}  // namespace ringmaster::failures
