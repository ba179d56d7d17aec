#include "tests/process/support/cluster.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

namespace ringmaster::test {

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void sleep_for(Nanos time) {
  const timespec t{time / kSecond, time % kSecond};
  nanosleep(&t, nullptr);
}

namespace {

namespace fs = std::filesystem;

// Starts argv with stdout and stderr into files; the child dies with the test.
pid_t spawn(const std::vector<std::string>& argv, const std::vector<std::string>& env, const std::string& in,
            const std::string& out, const std::string& err) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const auto redirect = [](const std::string& path, int flags, int target) {
    const int fd = open(path.c_str(), flags | O_CLOEXEC, 0600);
    if (fd < 0 || dup2(fd, target) < 0) _exit(126);
  };
  redirect(in, O_RDONLY, 0);
  redirect(out, O_WRONLY | O_CREAT | O_APPEND, 1);
  redirect(err, O_WRONLY | O_CREAT | O_APPEND, 2);
  for (const std::string& entry : env) putenv(strdup(entry.c_str()));
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);
  std::vector<char*> args;
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  execv(args[0], args.data());
  _exit(127);
}

// Exit code; -1 if a signal ended it; nothing while it runs at the deadline.
std::optional<int> wait_for(pid_t pid, Nanos timeout) {
  const Nanos deadline = monotonic_now() + timeout;
  while (true) {
    int state = 0;
    if (waitpid(pid, &state, WNOHANG) == pid) return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
    if (monotonic_now() >= deadline) return std::nullopt;
    sleep_for(2 * kMillisecond);
  }
}

std::string make_dir() {
  std::string path = "/tmp/rmtest-XXXXXX";
  if (!mkdtemp(path.data())) abort();
  return path;
}

}  // namespace

Ended run(const std::vector<std::string>& argv, const std::vector<std::string>& env, Nanos timeout,
          const std::string& input) {
  const std::string dir = make_dir();
  std::ofstream(dir + "/in") << input;
  const pid_t pid = spawn(argv, env, dir + "/in", dir + "/out", dir + "/err");
  auto code = wait_for(pid, timeout);
  if (!code) {
    kill(pid, SIGKILL);
    (void)wait_for(pid, 5 * kSecond);
  }
  Ended ended{code.value_or(-1), read_file(dir + "/out"), read_file(dir + "/err")};
  fs::remove_all(dir);
  return ended;
}

Cluster::Cluster(const std::string& yaml) : dir_(make_dir()) {
  std::ofstream(config_file()) << "name: t\n" << yaml;
  std::ofstream(dir_ + "/empty");
}

Cluster::~Cluster() {
  if (supervisor_ != 0) down();
  if (testing::Test::HasFailure()) std::cerr << "---- log of the cluster ----\n" << log() << "----\n";
  fs::remove_all(dir_);
}

bool Cluster::up(Nanos timeout) {
  const Nanos deadline = monotonic_now() + timeout;
  supervisor_ = spawn({RINGMASTER_BIN "/ringmaster", "up", "-c", config_file()}, {"XDG_RUNTIME_DIR=" + dir_},
                      dir_ + "/empty", dir_ + "/log", dir_ + "/log");
  auto client = connect();
  while (monotonic_now() < deadline) {
    if (!alive(supervisor_)) {
      ADD_FAILURE() << "the supervisor ended during start";
      return false;
    }
    const auto status = client.status(200 * kMillisecond);
    const bool all_ready =
        status && status->ready &&
        std::all_of(status->workers.begin(), status->workers.end(),
                    [](const client::WorkerStatus& worker) { return worker.state == "ready"; });
    if (all_ready && record()["state"] == "ready") {
      // What the processes hold before anybody comes; whether that balances, expect_balanced() says.
      std::ofstream(dir_ + "/audit.json") << command({"audit", "--json", "--wait-idle", "10"}).out;
      return true;
    }
    sleep_for(5 * kMillisecond);
  }
  ADD_FAILURE() << "the cluster was not ready in time";
  return false;
}

int Cluster::down(Nanos timeout) {
  kill(supervisor_, SIGTERM);
  return wait(timeout);
}

int Cluster::wait(Nanos timeout) {
  auto code = wait_for(supervisor_, timeout);
  if (!code) {
    ADD_FAILURE() << "the supervisor did not end in time";
    kill(supervisor_, SIGKILL);
    (void)wait_for(supervisor_, 5 * kSecond);
  }
  supervisor_ = 0;
  return code.value_or(-1);
}

void Cluster::kill_supervisor() {
  kill(supervisor_, SIGKILL);
  (void)wait_for(supervisor_, 5 * kSecond);
  supervisor_ = 0;
}

Ended Cluster::command(std::vector<std::string> args, Nanos timeout) const {
  args.insert(args.begin(), RINGMASTER_BIN "/ringmaster");
  args.push_back("-c");
  args.push_back(config_file());
  return run(args, {"XDG_RUNTIME_DIR=" + dir_}, timeout);
}

client::Client Cluster::connect(client::Options options) const {
  auto client = client::Client::connect(endpoint(), options);
  if (!client) abort();
  return std::move(client).value();
}

client::ClusterStatus Cluster::status() const {
  auto client = connect();
  auto status = client.status(5 * kSecond);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return status.ok() ? *status : client::ClusterStatus{};
}

bool Cluster::eventually(const std::function<bool(const client::ClusterStatus&)>& good, Nanos timeout) const {
  auto client = connect();
  const Nanos deadline = monotonic_now() + timeout;
  while (monotonic_now() < deadline) {
    const auto status = client.status(kSecond);
    if (status && good(*status)) return true;
    sleep_for(20 * kMillisecond);
  }
  return false;
}

void Cluster::expect_balanced(Nanos wait_idle) const {
  const Ended audit =
      command({"audit", "--wait-idle", std::to_string(wait_idle / kSecond), "--since", dir_ + "/audit.json"},
              wait_idle + 20 * kSecond);
  EXPECT_EQ(audit.exit_code, 0) << audit.out << audit.err;
}

std::string Cluster::state_dir() const {
  return dir_ + "/ringmaster/t";
}
std::string Cluster::endpoint() const {
  return "ipc://" + state_dir() + "/clients.sock";
}
std::string Cluster::log() const {
  return read_file(dir_ + "/log");
}

nlohmann::json Cluster::record() const {
  auto json = nlohmann::json::parse(read_file(state_dir() + "/supervisor.json"), nullptr, false);
  return json.is_object()
             ? json
             : nlohmann::json::object({{"state", "none"}, {"children", nlohmann::json::array()}});
}

std::vector<Child> Cluster::children() const {
  std::vector<Child> out;
  const auto json = record();
  for (const auto& child : json["children"]) out.push_back({child.value("name", ""), child.value("pid", 0)});
  return out;
}

size_t Cluster::open_descriptors(pid_t pid) const {
  std::error_code error;
  const auto entries = fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error);
  return error ? 0 : static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

bool alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return false;
  const size_t name_end = text.rfind(')');  // "pid (name) state"
  return name_end != std::string::npos && text[name_end + 2] != 'Z';
}

}  // namespace ringmaster::test
