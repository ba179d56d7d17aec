// A cluster of real processes for one test: `ringmaster up` as a child of the test, everything it makes under
// one temporary directory, everything it started ended by id. One thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "client/cpp/ringmaster.h"

namespace ringmaster::test {

std::string read_file(const std::string& path);  // all of it; empty: it is not there
void sleep_for(Nanos time);

struct Ended {
  int exit_code = -1;  // -1: killed by a signal or still running
  std::string out;
  std::string err;
};

// Runs a program to its end (killed at `timeout`). `env` entries are NAME=VALUE.
Ended run(const std::vector<std::string>& argv, const std::vector<std::string>& env, Nanos timeout,
          const std::string& input = "");

struct Child {
  std::string name;
  pid_t pid = 0;
};

class Cluster {
 public:
  // `yaml` without `name`. Nothing is started yet.
  explicit Cluster(const std::string& yaml);
  ~Cluster();
  Cluster(const Cluster&) = delete;

  // Starts the supervisor and waits until the router says ready. False (with a test failure) if it does not
  // in time.
  bool up(Nanos timeout = 30 * kSecond);
  // SIGTERM to the supervisor, then waits. Returns its exit code, -1 if it had to be killed.
  int down(Nanos timeout = 30 * kSecond);
  // Waits for the supervisor to end by itself.
  int wait(Nanos timeout);
  void kill_supervisor();  // SIGKILL

  // `ringmaster ARGS...` with this cluster's configuration.
  Ended command(std::vector<std::string> args, Nanos timeout = 30 * kSecond) const;

  client::Client connect(client::Options options = {}) const;
  client::ClusterStatus status() const;
  // Polls status() until `good` holds.
  bool eventually(const std::function<bool(const client::ClusterStatus&)>& good, Nanos timeout) const;

  // `ringmaster audit`: what all processes hold is what live requests justify (docs/audit.md). To be called
  // at the end of every scenario whose cluster still runs: it first waits until nothing is live, so
  // everything must then be at its baseline.
  void expect_balanced(Nanos wait_idle = 10 * kSecond) const;

  std::string endpoint() const;
  std::string state_dir() const;
  std::string config_file() const { return dir_ + "/cluster.yaml"; }
  std::string log() const;  // the supervisor's merged log so far
  pid_t supervisor() const { return supervisor_; }
  nlohmann::json record() const;  // STATE/supervisor.json
  std::vector<Child> children() const;
  size_t open_descriptors(pid_t pid) const;

 private:
  std::string dir_;
  pid_t supervisor_ = 0;
};

bool alive(pid_t pid);

}  // namespace ringmaster::test
