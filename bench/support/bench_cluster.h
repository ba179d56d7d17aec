// A cluster of real processes for one benchmark, in a directory of its own, and what its processes use of the
// host. Ends with the object. Errors end the program: a benchmark without its cluster has nothing to say.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "client/cpp/ringmaster.h"

namespace ringmaster::bench {

[[noreturn]] void die(const std::string& what);
void sleep_for(Nanos time);
// One request for one token: milliseconds to it.
double first_token_ms(client::Client& client, decltype(client::Request::prompt) prompt = std::string("Hello"),
                      Nanos timeout = 10 * kSecond);
// The p-quantile (0 to 1) of `values`, which are sorted here. REQUIRES: not empty.
double quantile(std::vector<double>& values, double p);
void figure(const char* name, double value, const char* unit);

struct Process {
  std::string name;
  pid_t pid = 0;
};

class BenchCluster {
 public:
  // `ringmaster` is the binary, `yaml` the configuration without name and state_dir. Nothing is started yet.
  BenchCluster(std::string ringmaster, const std::string& yaml);
  ~BenchCluster();
  BenchCluster(const BenchCluster&) = delete;

  // Starts `ringmaster up`; its log goes to a file. Does not wait.
  void exec();
  // exec(), then waits until every worker is ready.
  void up();
  void down();

  std::string endpoint() const { return "ipc://" + dir_ + "/state/clients.sock"; }
  client::Client connect() const;
  std::vector<Process> processes() const;  // supervisor, its children, the janitor

 private:
  std::string ringmaster_, dir_, config_file_;
  pid_t supervisor_ = 0;
};

double cpu_seconds(pid_t pid);    // user and system time since its start
double pss_mebibytes(pid_t pid);  // memory, shared pages divided among their users

}  // namespace ringmaster::bench
