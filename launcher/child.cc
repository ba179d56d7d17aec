#include "launcher/child.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/process.h"
#include "launcher/pidfd.h"

namespace ringmaster::launcher {
namespace {

std::string how_it_ended(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) {
    const std::string_view name = exit_name(info.si_status);
    return "exited with status " + std::to_string(info.si_status) +
           (name.empty() ? "" : " (" + std::string(name) + ")");
  }
  return "killed by signal " + std::to_string(info.si_status) + " (" + strsignal(info.si_status) + ")";
}

}  // namespace

std::string_view name(ChildState state) {
  constexpr std::array<std::string_view, 7> kNames = {"waiting",  "starting", "ready",   "backing off",
                                                      "stopping", "stopped",  "given up"};
  return kNames[static_cast<size_t>(state)];
}

Status Child::start(Nanos now, Nanos ready_timeout) {
  Result<Spawned> spawned = spawn(spec_);
  if (!spawned.ok()) return spawned.error();
  process_ = std::move(spawned).value();
  last_lines_.clear();
  ready_text_.clear();
  killed_because_.clear();
  state_ = ChildState::kStarting;
  ready_by_ = now + ready_timeout;
  started_at_ = unix_now();
  return ok_status();
}

void Child::signal(int signal) {
  if (!alive()) return;
  // Not reaped yet, so the session's number is still its own. Reaches helpers that the process may have
  // started.
  if (signal == SIGKILL) kill(-process_.pid, SIGKILL);
  send_pidfd_signal(process_.pidfd.get(), signal);
}

void Child::kill_because(const std::string& why) {
  killed_because_ = why;
  signal(SIGKILL);
}

bool Child::plan_restart(Nanos now, double chance) {
  if (!limit_.allow(now)) return false;
  const Nanos wait = limit_.backoff(chance);
  state_ = ChildState::kBackingOff;
  restart_at_ = now + wait;
  restart_at_unix_ = unix_now() + wait;
  ++restarts_;
  return true;
}

void Child::take_line(std::string_view line, const TakeLine& take) {
  last_lines_.emplace_back(line);
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  take(spec_.name, line);
}

void Child::read_output(const TakeLine& take) {
  if (!process_.output) return;
  // Bounded, so that a child that only writes cannot keep the supervisor busy: the rest comes at the next
  // turn.
  constexpr int kReads = 16;
  char bytes[4096];
  for (int i = 0; i < kReads; ++i) {
    const ssize_t got = read(process_.output.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return;  // nothing more now
    if (got == 0) return process_.output.reset();
    splitter_.feed({bytes, static_cast<size_t>(got)}, [&](std::string_view line) { take_line(line, take); });
  }
}

bool Child::read_ready(Nanos now) {
  constexpr std::string_view kAnnouncement = "READY\n";
  constexpr int kReads = 16;  // as for output: the rest comes at the next turn
  for (int i = 0; i < kReads && process_.ready; ++i) {
    char bytes[512];
    const ssize_t got = read(process_.ready.get(), bytes, sizeof bytes);
    if (got < 0) return false;  // nothing more now
    if (got == 0) {
      process_.ready.reset();
      return false;
    }
    heard_at_ = now;
    if (state_ != ChildState::kStarting) continue;  // signs of life
    ready_text_.append(bytes, static_cast<size_t>(got));
    if (ready_text_.starts_with(kAnnouncement)) {
      state_ = ChildState::kReady;
      return true;  // what follows is read at the next turn
    }
    // Anything else said: no more to wait for here. A child that never announces runs into ready_by().
    if (!kAnnouncement.starts_with(ready_text_)) process_.ready.reset();
  }
  return false;
}

bool Child::reap(const TakeLine& take) {
  siginfo_t info{};
  if (!alive() || waitid(P_PIDFD, static_cast<id_t>(process_.pidfd.get()), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0)
    return false;
  read_output(take);
  splitter_.finish([&](std::string_view line) { take_line(line, take); });
  last_end_ = killed_because_.empty() ? how_it_ended(info) : "killed: " + killed_because_;
  process_ = Spawned{};
  return true;
}

ChildRecord Child::record() const {
  return {.name = spec_.name,
          .pid = process_.pid,
          .state = std::string(name(state_)),
          .restarts = restarts_,
          .started_at = started_at_,
          .last_end = last_end_,
          .restart_at = state_ == ChildState::kBackingOff ? restart_at_unix_ : 0};
}

}  // namespace ringmaster::launcher
