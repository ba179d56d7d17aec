#include "launcher/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "launcher/above_standard.h"
#include "shm/system_error.h"
#include "shm/unix_socket.h"

namespace ringmaster::launcher {
namespace {

enum class Stage : int { kCores, kSomeCores, kNice, kRedirect, kExec };

// What the child tells its parent before exec, over a pipe that exec closes.
struct Report {
  Stage stage;
  int error;
};

struct Pipe {
  UniqueFd read, write;
};

Result<Pipe> make_pipe(int flags) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | flags) != 0) return shm::system_error("no pipe", errno);
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string cores_text(const std::vector<int>& cores) {
  std::string out;
  for (const int core : cores) out += (out.empty() ? "" : ",") + std::to_string(core);
  return out;
}

// Everything the child needs, prepared before fork: between fork and exec nothing is allocated.
struct Prepared {
  std::vector<char*> argv;
  std::vector<unsigned long> cores;      // bit mask; empty: not bound
  std::vector<unsigned long> got_cores;  // scratch of the same size
  int nice = 0;
  int null_fd = -1, output_fd = -1, ready_fd = -1, report_fd = -1;
  pid_t parent = 0;
};

// The kernel ignores cores that do not exist as long as one does; the difference is reported.
template <typename ReportTo>
void bind_cores(Prepared& prepared, const ReportTo& report) {
  if (prepared.cores.empty()) return;
  const size_t bytes = prepared.cores.size() * sizeof(unsigned long);
  if (sched_setaffinity(0, bytes, reinterpret_cast<cpu_set_t*>(prepared.cores.data())) != 0)
    return report(Stage::kCores, errno);
  if (sched_getaffinity(0, bytes, reinterpret_cast<cpu_set_t*>(prepared.got_cores.data())) == 0 &&
      memcmp(prepared.cores.data(), prepared.got_cores.data(), bytes) != 0)
    report(Stage::kSomeCores, 0);
}

[[noreturn]] void run_child(Prepared& prepared) {
  const auto report = [&](Stage stage, int error) {
    const Report message{stage, error};
    [[maybe_unused]] const ssize_t written = write(prepared.report_fd, &message, sizeof message);
  };
  // Dies with the supervisor. It may have died already, before this line: then somebody else is the parent
  // now.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != prepared.parent) _exit(127);
  setsid();  // an interrupt typed at the terminal is the supervisor's to handle
  for (const int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  bind_cores(prepared, report);
  if (prepared.nice != 0 && setpriority(PRIO_PROCESS, 0, prepared.nice) != 0) report(Stage::kNice, errno);
  // All sources lie above kReadyFd (above_standard.h), so no dup2 overwrites one that is still needed.
  const int redirections[][2] = {{prepared.null_fd, STDIN_FILENO},
                                 {prepared.output_fd, STDOUT_FILENO},
                                 {prepared.output_fd, STDERR_FILENO},
                                 {prepared.ready_fd, kReadyFd}};
  for (const auto& [from, to] : redirections) {
    if (dup2(from, to) == to) continue;
    report(Stage::kRedirect, errno);  // it would run, but unheard
    _exit(127);
  }
  close_range(kReadyFd + 1, ~0u, CLOSE_RANGE_CLOEXEC);
  execv(prepared.argv[0], prepared.argv.data());
  report(Stage::kExec, errno);
  _exit(127);
}

// Ends when exec has closed the child's end. The limit is for file systems that hang.
Status read_reports(const UniqueFd& fd, const ChildSpec& spec, std::vector<std::string>& refusals) {
  constexpr Nanos kLimit = 10 * kSecond;
  const Nanos deadline = monotonic_now() + kLimit;
  for (;;) {
    pollfd entry{fd.get(), POLLIN, 0};
    const Nanos left = deadline - monotonic_now();
    if (left <= 0) return Error{Code::kDeadlineExceeded, spec.argv[0] + " did not start within 10 s"};
    if (poll(&entry, 1, static_cast<int>(left / kMillisecond) + 1) <= 0) continue;
    Report report{};
    const ssize_t got = read(fd.get(), &report, sizeof report);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof report) return ok_status();
    const std::string why = std::strerror(report.error);
    if (report.stage == Stage::kCores) refusals.push_back("cores " + cores_text(spec.cores) + ": " + why);
    if (report.stage == Stage::kSomeCores)
      refusals.push_back("cores " + cores_text(spec.cores) +
                         ": some of them do not exist or are not allowed here");
    if (report.stage == Stage::kNice) refusals.push_back("nice " + std::to_string(spec.nice) + ": " + why);
    if (report.stage == Stage::kRedirect)
      return Error{Code::kResourceExhausted, spec.argv[0] + " cannot get its input and output: " + why};
    if (report.stage == Stage::kExec)
      return Error{report.error == ENOENT ? Code::kNotFound : Code::kPermissionDenied,
                   spec.argv[0] + " cannot be started: " + why};
  }
}

std::vector<unsigned long> core_mask(const std::vector<int>& cores) {
  constexpr size_t kMaxCores = 8192;  // as base/config_values.cc allows
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  if (cores.empty()) return {};
  std::vector<unsigned long> mask(kMaxCores / kBits);
  for (const auto core : cores)
    if (core >= 0 && static_cast<size_t>(core) < kMaxCores) mask[core / kBits] |= 1ul << (core % kBits);
  return mask;
}

}  // namespace

Result<Spawned> spawn(const ChildSpec& spec) {
  Result<Pipe> output = make_pipe(O_NONBLOCK);
  Result<Pipe> ready = make_pipe(O_NONBLOCK);
  Result<Pipe> report = make_pipe(0);
  if (!output.ok()) return output.error();
  if (!ready.ok()) return ready.error();
  if (!report.ok()) return report.error();
  const UniqueFd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_fd) return shm::system_error("/dev/null cannot be opened", errno);
  UniqueFd high[] = {above_standard(null_fd), above_standard(output->write), above_standard(ready->write),
                     above_standard(report->write)};
  for (const UniqueFd& fd : high)
    if (!fd) return shm::system_error("no descriptor", errno);

  Prepared prepared;
  for (const std::string& argument : spec.argv) prepared.argv.push_back(const_cast<char*>(argument.c_str()));
  prepared.argv.push_back(nullptr);
  prepared.cores = core_mask(spec.cores);
  prepared.got_cores.resize(prepared.cores.size());
  prepared.nice = spec.nice;
  prepared.null_fd = high[0].get();
  prepared.output_fd = high[1].get();
  prepared.ready_fd = high[2].get();
  prepared.report_fd = high[3].get();
  prepared.parent = getpid();

  Spawned spawned;
  spawned.pid = fork();
  if (spawned.pid < 0) return shm::system_error("no process", errno);
  if (spawned.pid == 0) run_child(prepared);
  auto pidfd = shm::open_pidfd(spawned.pid);  // the child is not reaped yet, so the number is still its own
  for (UniqueFd& fd : high) fd.reset();
  report->write.reset();
  const Status started =
      pidfd ? read_reports(report->read, spec, spawned.refusals) : Status(std::move(pidfd).error());
  if (!started.ok()) {
    kill(spawned.pid, SIGKILL);
    waitpid(spawned.pid, nullptr, 0);
    return started.error();
  }
  spawned.pidfd = std::move(pidfd).value();
  spawned.output = std::move(output->read);
  spawned.ready = std::move(ready->read);
  return spawned;
}

}  // namespace ringmaster::launcher
