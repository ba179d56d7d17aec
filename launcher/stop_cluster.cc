#include "launcher/stop_cluster.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/unique_fd.h"
#include "launcher/pidfd.h"
#include "launcher/record.h"
#include "launcher/state_dir.h"
#include "shm/system_error.h"
#include "shm/unix_socket.h"

namespace ringmaster::launcher {
namespace {

// The supervisor gives each of three stages 2 s beyond the drain time, kills, and waits up to 5 s for its
// janitor.
constexpr Nanos kBeyondDrain = 15 * kSecond;
constexpr Nanos kAfterKill = 5 * kSecond;

bool ended_within(const UniqueFd& pidfd, Nanos limit) {
  pollfd entry{pidfd.get(), POLLIN, 0};
  const Nanos deadline = monotonic_now() + limit;
  for (;;) {
    const Nanos left = std::max<Nanos>(0, deadline - monotonic_now());
    const int ready = poll(&entry, 1, static_cast<int>(std::min<Nanos>(left / kMillisecond, 1'000'000)));
    if (ready == 1) return true;
    if (ready == 0 && left == 0) return false;
  }
}

bool freed_within(const std::string& state_dir, Nanos limit) {
  const Nanos deadline = monotonic_now() + limit;
  while (state_dir_is_locked(state_dir)) {
    if (monotonic_now() >= deadline) return false;
    usleep(5'000);
  }
  return true;
}

struct Found {
  pid_t pid = 0;
  UniqueFd pidfd;
};

// The pidfd first, then the proof that it is the supervisor and not a later process with its number.
Result<Found> find_supervisor(const std::string& state_dir) {
  const Result<SupervisorRecord> record = read_record(state_dir);
  if (!record.ok()) return record.error();
  auto pidfd = shm::open_pidfd(record->pid);
  if (!pidfd && pidfd.error().code == Code::kResourceExhausted) return std::move(pidfd).error();
  if (pidfd && process_start_ticks(record->pid) == record->start_ticks)
    return Found{record->pid, std::move(pidfd).value()};
  return Error{Code::kNotFound,
               "the supervisor, process " + std::to_string(record->pid) + ", is not there any more"};
}

}  // namespace

Status stop_cluster(const std::string& state_dir, const StopOptions& options) {
  if (!state_dir_is_locked(state_dir)) return Error{Code::kNotFound, "no cluster runs in " + state_dir};
  // Locked, but nobody to ask: the janitor of a supervisor that died is at work, or a supervisor has just
  // begun and will write its record in a moment.
  Result<Found> supervisor = find_supervisor(state_dir);
  for (const Nanos deadline = monotonic_now() + kAfterKill; !supervisor.ok();
       supervisor = find_supervisor(state_dir)) {
    if (!state_dir_is_locked(state_dir)) return ok_status();
    if (monotonic_now() >= deadline)
      return Error{Code::kUnavailable,
                   supervisor.error().message + ", yet " + state_dir + "/lock is held; try again"};
    usleep(5'000);
  }
  const UniqueFd& pidfd = supervisor->pidfd;
  const std::string name = "process " + std::to_string(supervisor->pid);
  const auto send = [&](int signal) { return send_pidfd_signal(pidfd.get(), signal) == 0 || errno == ESRCH; };
  if (!send(SIGTERM)) return shm::system_error(name + " cannot be signalled", errno);
  // Two signals sent at once would arrive as one: the second follows once the first has been acted upon.
  constexpr Nanos kTaken = 50 * kMillisecond;
  bool ended = ended_within(pidfd, options.now ? kTaken : options.drain + kBeyondDrain);
  if (!ended && send(SIGTERM)) ended = ended_within(pidfd, kAfterKill);
  if (!ended && send(SIGKILL)) ended = ended_within(pidfd, kAfterKill);
  if (!ended) return Error{Code::kDeadlineExceeded, "the supervisor, " + name + ", does not end"};
  if (freed_within(state_dir, kAfterKill)) return ok_status();
  return Error{Code::kDeadlineExceeded, "the supervisor ended, but " + state_dir + "/lock is still held"};
}

}  // namespace ringmaster::launcher
