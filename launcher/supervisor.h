// Starts the children of one cluster in stages, restarts those that die, stops them in order. Knows
// processes, not what they do: a table of commands is all it needs, and tests give it shells.
//   starting  stage after stage; the first child that fails ends the whole start
//   running   a dead child is restarted, with a back-off, until its intensity limit; then it is given up and
//   the
//             others go on. A child that gives no sign of life is killed, and so a dead one.
//   stopping  stage after stage: SIGTERM, at the deadline SIGKILL
// SIGINT, SIGTERM, SIGHUP: the first begins stopping, the second kills at once.
// Thread: one, which owns everything here and must be the only one of the process (it forks).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "launcher/child.h"
#include "launcher/janitor.h"
#include "launcher/merged_output.h"
#include "launcher/record.h"
#include "launcher/serving_probe.h"

struct pollfd;

namespace ringmaster::launcher {

struct SupervisorOptions {
  std::string cluster;
  std::string client_endpoint;  // for the record only
  std::string worker_endpoint;
  Janitor::Duties duties;  // names the state directory; its lock is held by the caller
  SupervisorConfig limits;
  // The last question before the cluster counts as ready, asked in a process of its own (serving_probe.h): do
  // they serve together? Empty: no question.
  std::function<Status()> serves;
};

class Supervisor {
 public:
  // `output` outlives the supervisor. `on_ready` is called once, when every child has announced that it
  // serves and `serves` has agreed.
  Supervisor(SupervisorOptions options, std::vector<ChildSpec> specs, MergedOutput& output,
             std::function<void()> on_ready);

  // Until every child and the janitor have ended. Error: the start failed, or nothing could be supervised;
  // the message holds the last lines of the child to blame. Blocks the three signals in this thread before
  // anything else.
  Status run();

 private:
  enum class Phase { kStarting, kRunning, kStopping };

  Status prepare();
  void turn();
  void handle_signals();
  void handle_children();
  void handle_janitor();
  void handle_probe();
  void handle_time();
  void handle_silence(Nanos now);
  int timeout_ms() const;

  void start_stage();
  void start_child(Child& child);
  void all_are_ready();
  void begin_running();
  void child_is_ready(Child& child);
  void child_has_ended(Child& child);
  void restart_or_give_up(Child& child);
  void fail_start(const Child& child, const std::string& what);
  void fail_start(const std::string& message);
  void begin_stop(Nanos drain_limit);
  void advance_stop();
  void kill_all();
  Status start_janitor();
  Status clean_up();
  void save();

  SupervisorOptions options_;
  std::vector<Child> children_;  // in start order
  MergedOutput& output_;
  std::function<void()> on_ready_;
  Child::TakeLine take_line_;
  Phase phase_ = Phase::kStarting;
  UniqueFd signals_;
  std::optional<ServingProbe> probe_;  // while it asks
  std::optional<Janitor> janitor_;     // none: it could not be replaced, and the cluster is ending
  std::optional<Error> failure_;
  SupervisorRecord record_;
  RecordFile record_file_;
  std::minstd_rand random_;  // of the back-offs
  Nanos save_by_ = kNever;   // the record on disk is out of date: when to try again
  Nanos promised_ = kNever;  // when the next turn was to begin at the latest
  int start_stage_ = 0;
  int stop_stage_ = 0;
  int stop_requests_ = 0;
  Nanos drain_by_ = kNever;  // of the whole stop
  Nanos stage_by_ = kNever;  // of the stage that is being stopped
};

}  // namespace ringmaster::launcher
