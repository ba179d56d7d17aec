#include "launcher/serving_probe.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "launcher/above_standard.h"
#include "shm/system_error.h"

namespace ringmaster::launcher {
namespace {

[[noreturn]] void end_with(int answer_fd, const Status& status) {
  std::string text(1, static_cast<char>(status.ok() ? Code::kOk : status.error().code));
  if (!status.ok()) text += status.error().message;
  [[maybe_unused]] const ssize_t written = write(answer_fd, text.data(), text.size());
  _exit(0);
}

// Keeps nothing of the supervisor open but the pipe: not its lock, not the ends of its children's pipes.
[[noreturn]] void run(int null_fd, int answer_fd, pid_t supervisor, const std::function<Status()>& ask) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != supervisor) _exit(127);
  prctl(PR_SET_NAME, "rm-probe");
  const int redirections[][2] = {
      {null_fd, STDIN_FILENO}, {null_fd, STDOUT_FILENO}, {null_fd, STDERR_FILENO}, {answer_fd, kGivenFd}};
  for (const auto& [from, to] : redirections)
    if (dup2(from, to) != to) end_with(answer_fd, shm::system_error("no descriptor", errno));
  close_range(kGivenFd + 1, ~0u, 0);
  end_with(kGivenFd, ask());
}

}  // namespace

Result<ServingProbe> ServingProbe::start(const std::function<Status()>& ask) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return shm::system_error("no pipe", errno);
  UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  if (fcntl(read_end.get(), F_SETFL, O_NONBLOCK) != 0)
    return shm::system_error("the pipe cannot be set", errno);
  const UniqueFd null_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd) return shm::system_error("/dev/null cannot be opened", errno);
  const UniqueFd silence = above_standard(null_fd), answer = above_standard(write_end);
  if (!silence || !answer) return shm::system_error("no descriptor", errno);
  const pid_t supervisor = getpid();
  const pid_t pid = fork();
  if (pid < 0) return shm::system_error("no process", errno);
  if (pid == 0) run(silence.get(), answer.get(), supervisor, ask);
  return ServingProbe(pid, std::move(read_end));
}

ServingProbe::ServingProbe(ServingProbe&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), answer_(std::move(other.answer_)), text_(std::move(other.text_)) {}

ServingProbe::~ServingProbe() {
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::optional<Status> ServingProbe::answer() {
  char bytes[512];
  for (;;) {
    const ssize_t got = read(answer_.get(), bytes, sizeof bytes);
    if (got > 0) text_.append(bytes, static_cast<size_t>(got));
    if (got == 0) break;
    if (got > 0 || errno == EINTR) continue;
    if (errno == EAGAIN) return std::nullopt;  // not all of it yet
    return shm::system_error("whether the cluster serves cannot be read", errno);
  }
  if (text_.empty())
    return Error{Code::kInternal, "the process that asks whether the cluster serves was killed"};
  if (text_[0] == static_cast<char>(Code::kOk)) return ok_status();
  return Error{static_cast<Code>(text_[0]), text_.substr(1)};
}

}  // namespace ringmaster::launcher
