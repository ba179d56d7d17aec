// `ringmaster up`: checks, then becomes the supervisor, in the foreground or (--detach) in a process of its
// own.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "client/cpp/ringmaster.h"
#include "launcher/commands.h"
#include "launcher/preflight.h"
#include "launcher/state_dir.h"
#include "launcher/supervisor.h"
#include "shm/system_error.h"

namespace ringmaster::launcher {
namespace {

struct UpOptions {
  bool detach = false;
  bool json = false;
};

// How the supervisor answers the question "is it up?": printed in the foreground, sent through a pipe when
// detached.
using Answer = std::function<void(const Status&)>;

void print_endpoints(const ClusterConfig& config, pid_t supervisor, bool json) {
  if (json) {
    const nlohmann::ordered_json line = {{"name", config.name},
                                         {"client_endpoint", config.client_endpoint()},
                                         {"state_dir", config.state_dir},
                                         {"supervisor", supervisor}};
    std::printf("%s\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::printf("cluster '%s' is ready\n  clients     %s\n  state       %s\n  supervisor  process %d\n",
                config.name.c_str(), config.client_endpoint().c_str(), config.state_dir.c_str(), supervisor);
  }
  std::fflush(stdout);
}

// The processes say they are ready; asks the router whether it serves, as a client would. Runs in a process
// of its own (serving_probe.h).
Status wait_until_serving(const ClusterConfig& config) {
  Result<client::Client> client = client::Client::connect(config.client_endpoint());
  if (!client.ok()) return client.error();
  const Nanos deadline = monotonic_now() + config.supervisor.ready_timeout;
  std::string last = "no answer";
  while (monotonic_now() < deadline) {
    const Result<client::ClusterStatus> status =
        client->status(std::min(kSecond, deadline - monotonic_now()));
    if (status.ok() && status.value().ready) return ok_status();
    last = status.ok() ? "not ready; `ringmaster logs` says what each process waits for"
                       : status.error().message;
    usleep(5'000);
  }
  return Error{Code::kDeadlineExceeded, "the router says: " + last};
}

// Runs the cluster from lock to clean-up. `answer` is called exactly once.
Status supervise(const ClusterConfig& config, const std::vector<ChildSpec>& children, const Answer& answer) {
  Result<UniqueFd> lock = lock_state_dir(config.state_dir);
  if (!lock.ok()) return answer(lock.error()), lock.error();
  std::vector<std::string> sockets;
  if (config.router.endpoint.starts_with("ipc://")) sockets.push_back(config.router.endpoint.substr(6));
  // What fails before there is a janitor leaves nothing behind either.
  const auto refuse = [&](const Status& why) {
    remove_runtime_files(config.state_dir, sockets);
    return answer(why), why;
  };
  const Status written = write_atomically(config.state_dir + "/cluster.yaml", to_yaml(config));
  if (!written.ok()) return refuse(written);

  std::vector<std::string> names = {"supervisor"};
  for (const ChildSpec& child : children) names.push_back(child.name);
  MergedOutput output(STDERR_FILENO, isatty(STDERR_FILENO) == 1, names);
  log::set_stderr_prefix(output.prefix("supervisor"));
  const Status opened = log::open("supervisor", config.log_file("supervisor"), config.log);
  if (!opened.ok()) return refuse(opened);

  SupervisorOptions options{.cluster = config.name,
                            .client_endpoint = config.client_endpoint(),
                            .worker_endpoint = config.worker_endpoint(),
                            .duties = {.state_dir = config.state_dir,
                                       .sockets = sockets,
                                       .lock_fd = lock.value().get(),
                                       .log = config.log},
                            .limits = config.supervisor,
                            .serves = [&] { return wait_until_serving(config); }};
  bool answered = false;
  Supervisor supervisor(std::move(options), children, output, [&] {
    answered = true;
    answer(ok_status());
  });
  Status ended = supervisor.run();
  if (!answered && ended.ok()) ended = Error{Code::kCancelled, "interrupted before the cluster was ready"};
  if (!answered) answer(ended);
  return ended;
}

void run_in_foreground(const ClusterConfig& config, const std::vector<ChildSpec>& children, bool json,
                       Exit& exit) {
  const Status ended = supervise(config, children, [&](const Status& up) {
    if (up.ok()) print_endpoints(config, getpid(), json);
  });
  if (!ended.ok()) fail(exit, ended.error().message);
}

// The answer of a detached supervisor: code and message, then the end of the pipe.
void send_answer(int fd, const Status& up) {
  std::string text(1, static_cast<char>(up.ok() ? Code::kOk : up.error().code));
  if (!up.ok()) text += up.error().message;
  [[maybe_unused]] const ssize_t written = write(fd, text.data(), text.size());
  close(fd);
}

Status receive_answer(int fd, Nanos limit) {
  const Nanos deadline = monotonic_now() + limit;
  std::string text;
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    const Nanos left = deadline - monotonic_now();
    if (left <= 0) return Error{Code::kDeadlineExceeded, "the supervisor does not answer"};
    if (poll(&entry, 1, static_cast<int>(left / kMillisecond) + 1) <= 0) continue;
    std::array<char, 4096> bytes;
    const ssize_t got = read(fd, bytes.data(), bytes.size());
    if (got <= 0) break;
    text.append(bytes.data(), static_cast<size_t>(got));
  }
  if (text.empty())
    return Error{Code::kInternal, "the supervisor died during the start; see `ringmaster logs`"};
  if (text[0] == 0) return ok_status();
  return Error{static_cast<Code>(text[0]), text.substr(1)};
}

// In the detached process: nothing of the caller's terminal, pipes or folder stays in use.
[[noreturn]] void run_detached(const ClusterConfig& config, const std::vector<ChildSpec>& children,
                               int answer_fd) {
  setsid();
  [[maybe_unused]] const int moved = chdir("/");
  const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null_fd, fd);
  const Status ended = supervise(config, children, [&](const Status& up) { send_answer(answer_fd, up); });
  _exit(static_cast<int>(ended.ok() ? ExitCode::kOk : ExitCode::kFailed));
}

void run_and_leave(const ClusterConfig& config, const std::vector<ChildSpec>& children, bool json,
                   Exit& exit) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return fail(exit, shm::system_error("no pipe", errno).message);
  const pid_t supervisor = fork();
  if (supervisor < 0) return fail(exit, shm::system_error("no process", errno).message);
  if (supervisor == 0) {
    close(ends[0]);
    run_detached(config, children, ends[1]);
  }
  close(ends[1]);
  // The supervisor keeps its own limits; this one only covers a supervisor that hangs.
  const Nanos limit = 3 * config.supervisor.ready_timeout + 10 * kSecond;
  const Status up = receive_answer(ends[0], limit);
  if (!up.ok()) return fail(exit, up.error().message);
  print_endpoints(config, supervisor, json);
}

void up(const ClusterChoice& choice, const UpOptions& options, Exit& exit) {
  const Result<ClusterConfig> config = chosen_config(choice);
  if (!config.ok()) return fail(exit, config.error());
  const std::vector<ChildSpec> children = plan_children(config.value(), own_folder());
  if (state_dir_is_locked(config.value().state_dir))
    return fail(exit, lock_state_dir(config.value().state_dir).error());
  Status checked = preflight(config.value(), children);
  if (checked.ok()) checked = create_state_dir(config.value().state_dir);
  if (!checked.ok()) return fail(exit, checked.error().message);
  if (options.detach) return run_and_leave(config.value(), children, options.json, exit);
  run_in_foreground(config.value(), children, options.json, exit);
}

}  // namespace

void add_up(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("up", "start a cluster and supervise it");
  auto choice = add_cluster_options(*command);
  auto options = std::make_shared<UpOptions>();
  command->add_flag("--detach,-d", options->detach, "return when the cluster is ready and leave it running");
  command->add_flag("--json", options->json, "print the endpoints as one JSON line");
  command->callback([choice, options, &exit] { up(*choice, *options, exit); });
}

}  // namespace ringmaster::launcher
