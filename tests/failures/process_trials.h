// Trials of the three processes that serve requests, on one Stage. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/failures/trial.h"

namespace ringmaster::failures {

class ProcessTrials final : public Trials {
 public:
  explicit ProcessTrials(std::string program);
  Judged run(const std::string& family, long n) override;

 private:
  struct Request {
    std::string refused;  // its typed error; empty: it got what it asked for
    std::string answer;
    std::string violation;
  };
  void start_all();
  void watch();
  Request ask(client::Client& client, bool cancel);
  void serve(client::Client& client);
  void audit();
  void stop();
  void note_end(const End& end);
  void violation(const std::string& what);

  const std::string program_;
  Stage stage_;
  std::string expected_;    // the answer to the request when nothing fails
  Judged judged_;           // of the trial that runs
  bool first_life_ = true;  // the process under trial, not the one started in its place
};

}  // namespace ringmaster::failures
