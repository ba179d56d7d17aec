// One child of the supervisor: its process of the moment, what it said last, and its history of restarts.
// Plain state with the system calls that belong to one process; when to start, stop or restart is the
// Supervisor's decision. Thread: the supervisor's only one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/merged_output.h"
#include "launcher/record.h"
#include "launcher/restart_limit.h"
#include "launcher/spawn.h"

namespace ringmaster::launcher {

enum class ChildState { kWaiting, kStarting, kReady, kBackingOff, kStopping, kStopped, kGivenUp };
std::string_view name(ChildState state);  // "given up"

class Child {
 public:
  using TakeLine = std::function<void(const std::string& name, std::string_view line)>;

  Child(ChildSpec spec, RestartLimit limit) : spec_(std::move(spec)), limit_(limit) {}

  // REQUIRES: !alive(). The state becomes kStarting.
  Status start(Nanos now, Nanos ready_timeout);
  // Sends `signal` if it lives; SIGKILL reaches its whole session.
  void signal(int signal);
  // SIGKILL, and `why` is how it ended: "killed: no sign of life for 10 s".
  void kill_because(const std::string& why);
  // Plans the next start, now or after the back-off, and counts it. False: the limit of restarts is reached.
  // `chance` is in [0, 1). REQUIRES: !alive().
  bool plan_restart(Nanos now, double chance);

  // Reads what the process wrote since; call when output_fd() or ready_fd() is readable.
  void read_output(const TakeLine& take);
  bool read_ready(Nanos now);  // true: it has just announced that it serves
  // Reaps an ended process: reads the rest of its output, fills last_end(). False: it still lives.
  bool reap(const TakeLine& take);

  bool alive() const { return process_.pid > 0; }
  int pidfd() const { return process_.pidfd.get(); }
  int output_fd() const { return process_.output.get(); }
  int ready_fd() const { return process_.ready.get(); }
  const ChildSpec& spec() const { return spec_; }
  const std::vector<std::string>& refusals() const { return process_.refusals; }
  ChildState state() const { return state_; }
  void set_state(ChildState state) { state_ = state; }
  Nanos ready_by() const { return state_ == ChildState::kStarting ? ready_by_ : kNever; }
  // When it is to be started again.
  Nanos restart_at() const { return state_ == ChildState::kBackingOff ? restart_at_ : kNever; }
  // When a process that serves counts as hanging. One that has closed its ready descriptor is not watched.
  Nanos silent_by(Nanos limit) const {
    return state_ == ChildState::kReady && process_.ready ? heard_at_ + limit : kNever;
  }
  void forgive(Nanos now) { heard_at_ = now; }  // the silence was the listener's
  void failed_to_start(const std::string& why) { last_end_ = why; }
  const std::string& last_end() const { return last_end_; }
  const std::deque<std::string>& last_lines() const { return last_lines_; }
  ChildRecord record() const;

 private:
  void take_line(std::string_view line, const TakeLine& take);

  // Long enough for a stack of messages about a failed start, short enough for a terminal.
  static constexpr size_t kLastLines = 10;
  static constexpr size_t kMaxLine = 8192;

  ChildSpec spec_;
  RestartLimit limit_;
  ChildState state_ = ChildState::kWaiting;
  Spawned process_;
  LineSplitter splitter_{kMaxLine};
  std::deque<std::string> last_lines_;
  std::string ready_text_;
  std::string last_end_;
  std::string killed_because_;  // empty: nobody here wanted it
  Nanos ready_by_ = kNever;
  Nanos heard_at_ = 0;
  Nanos restart_at_ = kNever;
  int64_t restart_at_unix_ = 0;
  int64_t started_at_ = 0;
  uint32_t restarts_ = 0;
};

}  // namespace ringmaster::launcher
