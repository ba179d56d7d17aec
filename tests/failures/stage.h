// A cluster without its supervisor: router, tokenizer-worker and gpu-worker (fake device) started by hand in
// a directory of their own, so that one of them can be started hundreds of times with a failing call while
// the others stay. One thread. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "client/cpp/ringmaster.h"
#include "tests/process/support/cluster.h"

namespace ringmaster::failures {

using test::read_file;
using test::sleep_for;

// The call that is to fail. n 0: none, the calls are counted.
struct Failure {
  std::string program;  // file name: "router", ..., "ringmaster"
  std::string family;   // see shim/fail_nth.cc
  long n = 0;
};

// Where a failing call left its note, and the environment that makes it fail. `dir` is the caller's.
class Shim {
 public:
  Shim(const Failure& failure, const std::string& dir);
  const std::vector<std::string>& environment() const { return environment_; }
  // What failed and where; empty as long as nothing did.
  std::string note() const;
  long calls() const;  // of the family, told when the process ended in order

 private:
  std::string note_, count_;
  std::vector<std::string> environment_;
};

// Of an audit (docs/audit.md).
struct Finding {
  std::string process, rule;
  std::string line;  // all of it
};
std::string lines(const std::vector<Finding>& findings);

// How a process ended. `status` as waitpid() gives it.
struct End {
  int status = 0;
  std::string complaint;  // its lines on stderr that are no plain log lines of level info
  bool in_order() const;  // it exited, by no signal
  int code() const;
};

class Stage {
 public:
  static constexpr const char* kRouter = "router";
  static constexpr const char* kTokenizerWorker = "tokenizer-worker";
  static constexpr const char* kGpuWorker = "gpu-worker";

  Stage();
  ~Stage();  // ends what runs
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  void start(const std::string& program, const std::vector<std::string>& environment = {});
  // Waits for READY or the process's end: whether it is ready. False at `limit` too.
  bool wait_ready(const std::string& program, Nanos limit);
  bool running(const std::string& program) const { return processes_.count(program) != 0; }
  // Its end, if it has ended.
  std::optional<End> ended(const std::string& program);
  // SIGTERM, then its end; nothing if it had to be killed at `limit`.
  std::optional<End> stop(const std::string& program, Nanos limit);
  // `ringmaster audit` once nothing is live: what it finds; none if the books of all processes balance and
  // each holds the descriptors and threads that it held at the first audit of all.
  std::vector<Finding> audit(Nanos idle_within);

  client::Client connect() const;
  const std::string& dir() const { return dir_; }

 private:
  struct Process {
    pid_t pid = 0;
    std::string name;  // "gpu-worker.0"
    UniqueFd ready;
    std::string stderr_file;
  };
  void write_record() const;
  std::string last_words(const Process& process) const;
  std::string log_file(const std::string& name) const;

  std::string dir_;
  UniqueFd lock_;  // as a supervisor holds it: the commands then take this for a cluster that runs
  std::map<std::string, Process> processes_;
  int started_ = 0;
};

// Starts a program whose stdout and stderr go to `output`; it dies with this process. `ready_fd` becomes its
// descriptor 3; -1: none.
pid_t spawn(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
            const std::string& output, int ready_fd);
// Its status as waitpid() gives it; nothing if it had to be killed at `limit`.
std::optional<int> wait_for(pid_t pid, Nanos limit);

// Of `ringmaster` or one of the processes: they lie beside this program.
std::string path_of(const std::string& program);
// What `ringmaster audit` finds in a cluster in which nothing is asked any more, for which it waits at most
// `idle_within`; none if the books balance. The first one is kept in the file `first`; later ones must find
// the same descriptors and threads.
std::vector<Finding> audit(const std::string& config, const std::string& first, Nanos idle_within,
                           const std::vector<std::string>& environment = {});

// Lines that say more than "I" (info) in the log's format.
std::string complaints(const std::string& text);

}  // namespace ringmaster::failures
