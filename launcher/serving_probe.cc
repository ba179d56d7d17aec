#include "launcher/serving_probe.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ringmaster::launcher {
namespace {

// Keeps nothing of the supervisor open but the pipe: not its lock, not the ends of its children's pipes.
[[noreturn]] void run(int answer_fd, pid_t supervisor, const std::function<Status()>& ask) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != supervisor) _exit(127);
  prctl(PR_SET_NAME, "rm-probe");
  const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null_fd, fd);
  constexpr int kAnswer = 3;
  dup2(answer_fd, kAnswer);
  close_range(kAnswer + 1, ~0u, 0);
  const Status status = ask();
  std::string text(1, static_cast<char>(status.ok() ? Code::kOk : status.error().code));
  if (!status.ok()) text += status.error().message;
  [[maybe_unused]] const ssize_t written = write(kAnswer, text.data(), text.size());
  _exit(0);
}

}  // namespace

Result<ServingProbe> ServingProbe::start(const std::function<Status()>& ask) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Error{Code::kResourceExhausted, std::string("no pipe: ") + std::strerror(errno)};
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  const pid_t supervisor = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Error{Code::kResourceExhausted, std::string("no process: ") + std::strerror(errno)};
  if (pid == 0) run(write_end.get(), supervisor, ask);
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
  ssize_t got = 0;
  while ((got = read(answer_.get(), bytes, sizeof bytes)) > 0) text_.append(bytes, static_cast<size_t>(got));
  if (got < 0) return std::nullopt;  // not all of it yet
  if (text_.empty())
    return Error{Code::kInternal, "the process that asks whether the cluster serves was killed"};
  if (text_[0] == static_cast<char>(Code::kOk)) return ok_status();
  return Error{static_cast<Code>(text_[0]), text_.substr(1)};
}

}  // namespace ringmaster::launcher
