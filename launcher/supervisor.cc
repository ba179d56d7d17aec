#include "launcher/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/log.h"
#include "launcher/state_dir.h"

namespace ringmaster::launcher {
namespace {

// Beyond the drain time, which the processes know too and after which they end what still runs: time for last
// words. A later stage gets as long even when an earlier one used up everything, since it has nothing left to
// drain.
constexpr Nanos kStageGrace = 2 * kSecond;

// Lines of base/log.cc ("12:00:00.123 I text") are on disk already, written by the process itself.
bool is_log_line(std::string_view line) {
  constexpr std::string_view kShape = "00:00:00.000 L ";
  if (line.size() < kShape.size()) return false;
  for (size_t i = 0; i < kShape.size(); ++i) {
    const char c = line[i];
    if (kShape[i] == '0' ? (c < '0' || c > '9') : kShape[i] == 'L' ? (c < 'A' || c > 'Z') : c != kShape[i])
      return false;
  }
  return true;
}

int64_t unix_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options, std::vector<ChildSpec> specs, MergedOutput& output,
                       std::function<void()> on_ready)
    : options_(std::move(options)), output_(output), on_ready_(std::move(on_ready)) {
  for (ChildSpec& spec : specs)
    children_.emplace_back(std::move(spec),
                           RestartLimit(options_.limits.max_restarts, options_.limits.restart_window));
  take_line_ = [this](const std::string& name, std::string_view line) {
    if (is_log_line(line))
      output_.line(name, line);
    else  // a crash report, a library's complaint: keep it on disk too
      log::warning("{} says: {}", name, line);
  };
  record_ = {.name = options_.cluster,
             .pid = getpid(),
             .start_ticks = process_start_ticks(getpid()),
             .started_at = unix_now(),
             .state = "starting",
             .client_endpoint = options_.client_endpoint,
             .worker_endpoint = options_.worker_endpoint,
             .children = {}};
}

Status Supervisor::run() {
  Status prepared = prepare();
  if (!prepared.ok()) return prepared;
  start_stage();
  const auto anyone_alive = [&] {
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.alive(); });
  };
  while (phase_ != Phase::kStopping || anyone_alive()) turn();
  const Status cleaned = clean_up();
  if (failure_) return *failure_;
  return cleaned;
}

Status Supervisor::clean_up() {
  constexpr Nanos kJanitorLimit = 5 * kSecond;
  if (janitor_) return janitor_->finish(kJanitorLimit);
  remove_runtime_files(options_.duties.state_dir, options_.duties.sockets);
  return ok_status();
}

Status Supervisor::prepare() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return Error{Code::kResourceExhausted, std::string("no signalfd: ") + std::strerror(errno)};
  return start_janitor();
}

Status Supervisor::start_janitor() {
  std::vector<Janitor::Watched> watched;
  for (const Child& child : children_)
    if (child.alive()) watched.push_back({child.spec().name, child.pidfd()});
  Result<Janitor> janitor = Janitor::start(options_.duties, watched);
  if (!janitor.ok()) return janitor.error();
  janitor_ = std::move(janitor).value();
  return ok_status();
}

void Supervisor::turn() {
  std::vector<pollfd> entries = {{signals_.get(), POLLIN, 0}, {janitor_ ? janitor_->pidfd() : -1, POLLIN, 0}};
  for (const Child& child : children_)
    for (const int fd : {child.pidfd(), child.output_fd(), child.ready_fd()})
      if (fd >= 0) entries.push_back({fd, POLLIN, 0});
  poll(entries.data(), entries.size(), timeout_ms());
  // All handlers read without blocking, so each simply looks; the descriptors only decide when.
  if (entries[0].revents != 0) handle_signals();
  if (entries[1].revents != 0) handle_janitor();
  handle_children();
  handle_time();
}

int Supervisor::timeout_ms() const {
  Nanos next = stage_by_;
  for (const Child& child : children_) next = std::min(next, child.ready_by());
  constexpr int kLongest = 60'000;
  if (next == kNever) return kLongest;
  return static_cast<int>(std::clamp<Nanos>((next - monotonic_now()) / kMillisecond + 1, 0, kLongest));
}

void Supervisor::handle_signals() {
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof info) == sizeof info) {
    const std::string signal = strsignal(static_cast<int>(info.ssi_signo));
    if (++stop_requests_ == 1) {
      log::info("{}: draining, at most {} s; once more ends everything now", signal,
                options_.limits.drain_timeout / kSecond);
      begin_stop(options_.limits.drain_timeout);
    } else if (stop_requests_ == 2) {
      log::warning("{} again: ending everything now", signal);
      begin_stop(0);
      kill_all();
    }
  }
}

void Supervisor::handle_janitor() {
  log::warning("the janitor process was killed; starting another");
  janitor_.reset();
  const Status started = start_janitor();
  if (started.ok()) return;
  // Without a janitor a kill of this process could leave something behind, so it ends while it can do so in
  // order.
  log::error("{}", started.error().message);
  if (!failure_) failure_ = started.error();
  begin_stop(options_.limits.drain_timeout);
}

void Supervisor::handle_children() {
  for (Child& child : children_) {
    child.read_output(take_line_);
    if (child.read_ready()) child_is_ready(child);
    if (child.alive() && child.reap(take_line_)) child_has_ended(child);
  }
}

void Supervisor::handle_time() {
  const Nanos now = monotonic_now();
  for (Child& child : children_) {
    if (now < child.ready_by() || !child.alive()) continue;
    const std::string limit = std::to_string(options_.limits.ready_timeout / kMillisecond) + " ms";
    log::error("{} was not ready within {} (supervisor.ready_timeout)", child.spec().name, limit);
    if (phase_ == Phase::kStarting) fail_start(child, "was not ready within " + limit);
    child.set_state(ChildState::kStopping);  // its end is handled like any other
    child.signal(SIGKILL);
  }
  if (now < stage_by_) return;
  stage_by_ = kNever;
  for (Child& child : children_)
    if (child.alive() && child.spec().stop_stage <= stop_stage_) {
      log::warning("{} has not ended in time: killed", child.spec().name);
      child.signal(SIGKILL);
    }
}

void Supervisor::start_stage() {
  for (;;) {
    int next = std::numeric_limits<int>::max();
    for (const Child& child : children_)
      if (child.state() != ChildState::kReady) next = std::min(next, child.spec().start_stage);
    if (next == std::numeric_limits<int>::max()) break;  // all are ready
    start_stage_ = next;
    for (Child& child : children_) {
      if (child.spec().start_stage != next || child.state() != ChildState::kWaiting) continue;
      start_child(child);
      if (phase_ == Phase::kStopping) return;
    }
    return save();
  }
  phase_ = Phase::kRunning;
  record_.state = "ready";
  save();
  on_ready_();
}

void Supervisor::start_child(Child& child) {
  const Status started = child.start(monotonic_now(), options_.limits.ready_timeout);
  if (!started.ok()) {
    log::error("{}: {}", child.spec().name, started.error().message);
    if (phase_ == Phase::kStarting) return fail_start(child, started.error().message);
    child.set_state(ChildState::kGivenUp);
    return;
  }
  log::info("{} started, process {}", child.spec().name, child.record().pid);
  for (const std::string& refusal : child.refusals())
    log::warning("{}: the host refused {}", child.spec().name, refusal);
  const Status watched = janitor_ ? janitor_->watch({child.spec().name, child.pidfd()}) : ok_status();
  // Its death will be noticed, and its successor gets the whole list.
  if (!watched.ok()) log::warning("{}", watched.error().message);
}

void Supervisor::child_is_ready(Child& child) {
  log::info("{} is ready", child.spec().name);
  if (phase_ == Phase::kStarting) return start_stage();
  save();
}

void Supervisor::child_has_ended(Child& child) {
  const std::string& name = child.spec().name;
  if (phase_ == Phase::kStopping) {
    log::info("{} {}", name, child.last_end());
    child.set_state(ChildState::kStopped);
    save();
    return advance_stop();
  }
  if (phase_ == Phase::kStarting)
    return fail_start(child, child.last_end() + " before the cluster was ready");
  if (!child.may_restart(monotonic_now())) {
    log::error("{} {}; given up after {} restarts within {} s", name, child.last_end(),
               options_.limits.max_restarts, options_.limits.restart_window / kSecond);
    child.set_state(ChildState::kGivenUp);
  } else {
    log::warning("{} {}; restarting", name, child.last_end());
    child.count_restart();
    start_child(child);
  }
  save();
}

void Supervisor::fail_start(const Child& child, const std::string& what) {
  if (!failure_) {
    std::string message = child.spec().name + " " + what;
    if (!child.last_lines().empty()) message += "; its last lines:";
    for (const std::string& line : child.last_lines()) message += "\n  " + line;
    failure_ = Error{Code::kUnavailable, message};
  }
  begin_stop(0);  // nobody is being served
}

void Supervisor::begin_stop(Nanos drain_limit) {
  drain_by_ = std::min(drain_by_, monotonic_now() + drain_limit);
  if (phase_ == Phase::kStopping) return;
  phase_ = Phase::kStopping;
  record_.state = "stopping";
  stop_stage_ = std::numeric_limits<int>::min();
  advance_stop();
}

// Goes on to the next stage that still has a process, once the present one has none.
void Supervisor::advance_stop() {
  int next = std::numeric_limits<int>::max();
  for (const Child& child : children_)
    if (child.alive()) next = std::min(next, child.spec().stop_stage);
  if (next <= stop_stage_ || next == std::numeric_limits<int>::max()) return save();
  stop_stage_ = next;
  stage_by_ = std::max(drain_by_, monotonic_now()) + kStageGrace;
  for (Child& child : children_) {
    if (!child.alive() || child.spec().stop_stage != next) continue;
    child.set_state(ChildState::kStopping);
    child.signal(SIGTERM);
  }
  save();
}

void Supervisor::kill_all() {
  for (Child& child : children_) child.signal(SIGKILL);
}

void Supervisor::save() {
  record_.children.clear();
  for (const Child& child : children_) record_.children.push_back(child.record());
  const Status written = write_atomically(record_path(options_.duties.state_dir), to_json(record_));
  if (!written.ok()) log::warning("status is out of date: {}", written.error().message);
}

}  // namespace ringmaster::launcher
