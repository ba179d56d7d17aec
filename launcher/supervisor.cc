#include "launcher/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "base/ids.h"
#include "base/log.h"
#include "launcher/state_dir.h"
#include "shm/system_error.h"

namespace ringmaster::launcher {
namespace {

// Beyond the drain time, which the processes know too and after which they end what still runs: time for last
// words. A later stage gets as long even when an earlier one used up everything, since it has nothing left to
// drain.
constexpr Nanos kStageGrace = 2 * kSecond;

// A turn that begins later than this was held up, by a stopped supervisor or a stopped host: then the
// children's silence may be its own.
constexpr Nanos kLate = kSecond;

// What `status` shows is tried again so often while it cannot be written.
constexpr Nanos kSaveAgain = kSecond;

// Room on the disk for supervisor.json: what its longest line a child takes, with all that a last_end may
// hold.
constexpr size_t kRecordBytes = 1024, kRecordBytesPerChild = 1024;

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

}  // namespace

Supervisor::Supervisor(SupervisorOptions options, std::vector<ChildSpec> specs, MergedOutput& output,
                       std::function<void()> on_ready)
    : options_(std::move(options)),
      output_(output),
      on_ready_(std::move(on_ready)),
      record_file_(options_.duties.state_dir, kRecordBytes + kRecordBytesPerChild * specs.size()),
      random_(static_cast<uint32_t>(random_number())) {
  for (ChildSpec& spec : specs)
    children_.emplace_back(std::move(spec),
                           RestartLimit(options_.limits.max_restarts, options_.limits.restart_window,
                                        options_.limits.restart_delay));
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
  if (!prepared.ok()) {
    (void)clean_up();
    return prepared;
  }
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
  if (!signals_) return shm::system_error("no signalfd", errno);
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
  std::vector<pollfd> entries = {{signals_.get(), POLLIN, 0},
                                 {janitor_ ? janitor_->pidfd() : -1, POLLIN, 0},
                                 {probe_ ? probe_->fd() : -1, POLLIN, 0}};
  for (const Child& child : children_)
    for (const int fd : {child.pidfd(), child.output_fd(), child.ready_fd()})
      if (fd >= 0) entries.push_back({fd, POLLIN, 0});
  const int timeout = timeout_ms();
  promised_ = monotonic_now() + timeout * kMillisecond;
  poll(entries.data(), entries.size(), timeout);
  // All handlers read without blocking, so each simply looks; the descriptors only decide when.
  if (entries[0].revents != 0) handle_signals();
  if (entries[1].revents != 0) handle_janitor();
  handle_children();
  handle_probe();
  handle_time();
}

int Supervisor::timeout_ms() const {
  Nanos next = std::min(stage_by_, save_by_);
  for (const Child& child : children_)
    next =
        std::min({next, child.ready_by(), child.restart_at(), child.silent_by(options_.limits.hang_timeout)});
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
    if (child.read_ready(monotonic_now())) child_is_ready(child);
    if (child.alive() && child.reap(take_line_)) child_has_ended(child);
  }
}

void Supervisor::handle_probe() {
  if (!probe_) return;
  const std::optional<Status> answer = probe_->answer();
  if (!answer) return;
  probe_.reset();
  answer->ok() ? begin_running() : fail_start("all processes run, but " + answer->error().message);
}

void Supervisor::handle_time() {
  const Nanos now = monotonic_now();
  if (now >= save_by_) save();
  handle_silence(now);
  for (Child& child : children_) {
    if (now >= child.restart_at()) {
      start_child(child);
      save();
    }
    if (now < child.ready_by() || !child.alive()) continue;
    const std::string limit = std::to_string(options_.limits.ready_timeout / kMillisecond) + " ms";
    log::error("{} was not ready within {} (supervisor.ready_timeout)", child.spec().name, limit);
    if (phase_ == Phase::kStarting) fail_start(child, "was not ready within " + limit);
    child.set_state(ChildState::kStopping);  // its end is handled like any other
    child.kill_because("not ready within " + limit);
  }
  if (now < stage_by_) return;
  stage_by_ = kNever;
  for (Child& child : children_)
    if (child.alive() && child.spec().stop_stage <= stop_stage_) {
      log::warning("{} has not ended in time: killed", child.spec().name);
      child.signal(SIGKILL);
    }
}

// Their words have been read before: a silence is not that of a pipe that nobody looked into.
void Supervisor::handle_silence(Nanos now) {
  const Nanos limit = options_.limits.hang_timeout;
  const bool late = now > promised_ + kLate;
  for (Child& child : children_) {
    if (late) child.forgive(now);
    if (now < child.silent_by(limit) || !child.alive()) continue;
    const std::string text = "no sign of life for " + std::to_string(limit / kMillisecond) + " ms";
    log::error("{} hangs, {} (supervisor.hang_timeout): killing it", child.spec().name, text);
    child.set_state(ChildState::kStopping);
    child.kill_because(text);
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
  all_are_ready();
}

void Supervisor::all_are_ready() {
  save();
  if (!options_.serves) return begin_running();
  if (probe_) return;
  Result<ServingProbe> probe = ServingProbe::start(options_.serves);
  if (!probe.ok()) return fail_start(probe.error().message);
  probe_.emplace(std::move(probe).value());
}

void Supervisor::begin_running() {
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
    child.failed_to_start(started.error().message);
    return restart_or_give_up(child);
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
  restart_or_give_up(child);
  save();
}

// A restart that is due now begins in handle_time, in this turn.
void Supervisor::restart_or_give_up(Child& child) {
  const std::string& name = child.spec().name;
  const Nanos now = monotonic_now();
  const double chance = std::uniform_real_distribution<>(0, 1)(random_);
  if (!child.plan_restart(now, chance)) {
    log::error("{} {}; given up after {} restarts within {} s", name, child.last_end(),
               options_.limits.max_restarts, options_.limits.restart_window / kSecond);
    return child.set_state(ChildState::kGivenUp);
  }
  const Nanos wait = child.restart_at() - now;
  log::warning("{} {}; restarting{}", name, child.last_end(),
               wait == 0 ? "" : " in " + std::to_string(wait / kMillisecond) + " ms");
}

void Supervisor::fail_start(const Child& child, const std::string& what) {
  std::string message = child.spec().name + " " + what;
  if (!child.last_lines().empty()) message += "; its last lines:";
  for (const std::string& line : child.last_lines()) message += "\n  " + line;
  fail_start(message);
}

void Supervisor::fail_start(const std::string& message) {
  if (!failure_) failure_ = Error{Code::kUnavailable, message};
  begin_stop(0);  // nobody is being served
}

void Supervisor::begin_stop(Nanos drain_limit) {
  drain_by_ = std::min(drain_by_, monotonic_now() + drain_limit);
  if (phase_ == Phase::kStopping) return;
  phase_ = Phase::kStopping;
  probe_.reset();
  record_.state = "stopping";
  for (Child& child : children_)
    if (child.state() == ChildState::kBackingOff) child.set_state(ChildState::kStopped);
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
  const Status written = record_file_.write(record_);
  if (!written.ok() && save_by_ == kNever)
    log::warning("status is out of date until this is over: {}", written.error().message);
  if (written.ok() && save_by_ != kNever) log::info("status is up to date again");
  save_by_ = written.ok() ? kNever : monotonic_now() + kSaveAgain;
}

}  // namespace ringmaster::launcher
