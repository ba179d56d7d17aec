#include "bench/support/bench_cluster.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

namespace ringmaster::bench {

void die(const std::string& what) {
  std::fprintf(stderr, "bench: %s\n", what.c_str());
  std::exit(1);
}

void sleep_for(Nanos time) {
  const timespec t{time / kSecond, time % kSecond};
  nanosleep(&t, nullptr);
}

double first_token_ms(client::Client& client, decltype(client::Request::prompt) prompt, Nanos timeout) {
  client::Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = 1;
  const Nanos start = monotonic_now();
  Nanos first = 0;
  const auto answer = client.generate(
      request, [&](const client::Piece&) { first = first ? first : monotonic_now() - start; }, timeout);
  if (!answer || first == 0) die("no first token");
  return static_cast<double>(first) / kMillisecond;
}

double quantile(std::vector<double>& values, double p) {
  const auto at = values.begin() + std::lround(p * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

void figure(const char* name, double value, const char* unit) {
  std::printf("%s %.6g %s\n", name, value, unit);
  std::fflush(stdout);
}

BenchCluster::BenchCluster(std::string ringmaster, const std::string& yaml)
    : ringmaster_(std::move(ringmaster)), dir_("/tmp/rmbench-XXXXXX") {
  if (!mkdtemp(dir_.data())) die("no temporary directory");
  config_file_ = dir_ + "/cluster.yaml";
  std::ofstream(config_file_) << "name: bench\nstate_dir: " << dir_ << "/state\n" << yaml;
}

BenchCluster::~BenchCluster() {
  down();
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

void BenchCluster::exec() {
  supervisor_ = fork();
  if (supervisor_ != 0) return;
  if (!freopen((dir_ + "/log").c_str(), "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(126);
  execl(ringmaster_.c_str(), ringmaster_.c_str(), "up", "-c", config_file_.c_str(),
        static_cast<char*>(nullptr));
  _exit(127);
}

void BenchCluster::up() {
  exec();
  auto client = connect();
  const Nanos deadline = monotonic_now() + 60 * kSecond;
  while (monotonic_now() < deadline) {
    const auto status = client.status(200 * kMillisecond);
    if (status && status->ready &&
        std::all_of(status->workers.begin(), status->workers.end(),
                    [](const auto& w) { return w.state == "ready"; }))
      return;
    if (waitpid(supervisor_, nullptr, WNOHANG) == supervisor_) {
      supervisor_ = 0;
      std::stringstream log;
      log << std::ifstream(dir_ + "/log").rdbuf();
      die("the cluster did not start:\n" + log.str());
    }
    sleep_for(10 * kMillisecond);
  }
  die("the cluster was not ready in 60 s");
}

void BenchCluster::down() {
  if (supervisor_ == 0) return;
  kill(supervisor_, SIGTERM);
  waitpid(supervisor_, nullptr, 0);
  supervisor_ = 0;
}

client::Client BenchCluster::connect() const {
  auto client = client::Client::connect(endpoint());
  if (!client) die(client.error().message);
  return std::move(client).value();
}

std::vector<Process> BenchCluster::processes() const {
  std::vector<Process> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream stat(entry.path() / "stat");
    std::string text((std::istreambuf_iterator<char>(stat)), {});
    const size_t open = text.find('('), close = text.rfind(')');
    if (close == std::string::npos) continue;
    const pid_t parent = std::atoi(text.c_str() + close + 4);  // ") S PPID"
    if (pid == supervisor_ || parent == supervisor_)
      out.push_back({pid == supervisor_ ? "supervisor" : text.substr(open + 1, close - open - 1), pid});
  }
  return out;
}

double cpu_seconds(pid_t pid) {
  // schedstat counts nanoseconds on the CPU; stat would count ticks of 10 ms. One line a thread.
  double total = 0;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
    std::ifstream in(task.path() / "schedstat");
    double nanoseconds = 0;
    if (in >> nanoseconds) total += nanoseconds * 1e-9;
  }
  return total;
}

double pss_mebibytes(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/smaps_rollup");
  std::string line;
  while (std::getline(in, line))
    if (line.rfind("Pss:", 0) == 0) return std::atof(line.c_str() + 4) / 1024;
  return 0;
}

}  // namespace ringmaster::bench
