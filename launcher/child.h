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

enum class ChildState { kWaiting, kStarting, kReady, kStopping, kStopped, kGivenUp };
std::string_view name(ChildState state);  // "given up"

class Child {
 public:
  using TakeLine = std::function<void(const std::string& name, std::string_view line)>;

  Child(ChildSpec spec, RestartLimit limit) : spec_(std::move(spec)), limit_(limit) {}

  // REQUIRES: !alive(). The state becomes kStarting.
  Status start(Nanos now, Nanos ready_timeout);
  // Sends `signal` if it lives; SIGKILL reaches its whole session.
  void signal(int signal);
  // Whether one more restart is allowed now; counts it.
  bool may_restart(Nanos now) { return limit_.allow(now); }

  // Reads what the process wrote since; call when output_fd() or ready_fd() is readable.
  void read_output(const TakeLine& take);
  bool read_ready();  // true: it has just announced that it serves
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
  const std::string& last_end() const { return last_end_; }
  const std::deque<std::string>& last_lines() const { return last_lines_; }
  void count_restart() { ++restarts_; }
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
  Nanos ready_by_ = kNever;
  int64_t started_at_ = 0;
  uint32_t restarts_ = 0;
};

}  // namespace ringmaster::launcher
