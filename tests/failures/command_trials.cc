// Trials of `ringmaster up` and `ringmaster generate`.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "launcher/state_dir.h"
#include "tests/failures/process_trials.h"
#include "tests/failures/trial.h"
#include "tests/process/support/cluster.h"

namespace ringmaster::failures {
namespace {

namespace fs = std::filesystem;
constexpr Nanos kLimit = 30 * kSecond;
constexpr Nanos kIdleWithin = 10 * kSecond;

constexpr const char* kYaml = R"(model: smollm2
tokenizer-worker:
  count: 1
gpu-worker:
  device: fake
  kv_memory: 192MiB
  slots: 4
  fake:
    step_time: 1ms
supervisor:
  drain_timeout: 1s
)";

class Directory {
 public:
  Directory() { fs::create_directories(path_); }
  ~Directory() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_ = "/tmp/rmfailures-" + std::to_string(getpid());
};

// The whole life of a cluster: up in the foreground, one request, SIGTERM.
class UpTrials final : public Trials {
 public:
  Judged run(const std::string& family, long n) override;

 private:
  void serve(const std::string& config, pid_t supervisor, Judged& judged) const;
  std::string leftovers(bool before_janitor) const;

  const Directory dir_;
};

class GenerateTrials final : public Trials {
 public:
  GenerateTrials() : cluster_(kYaml), up_(cluster_.up()) {}
  Judged run(const std::string& family, long n) override;

 private:
  const Directory dir_;
  test::Cluster cluster_;
  const bool up_;
  std::string expected_;
};

// What must not be there once a cluster has ended: its processes, sockets and state.
std::string UpTrials::leftovers(bool before_janitor) const {
  std::string found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string line = read_file(entry.path() / "cmdline");
    if (line.find(dir_.path()) != std::string::npos) found += " process " + entry.path().filename().string();
  }
  std::set<std::string> stays = {"cluster.yaml", "logs", "incarnation"};
  // As after kill -9 before there is a janitor, or where the lock itself is refused: nobody holds it, and the
  // next takes it.
  if (before_janitor && !launcher::state_dir_is_locked(dir_.path() + "/state"))
    stays.insert({"lock", "cluster.yaml.new"});
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(dir_.path() + "/state", none))
    if (stays.count(entry.path().filename()) == 0) found += " " + entry.path().filename().string();
  return found;
}

void UpTrials::serve(const std::string& config, pid_t supervisor, Judged& judged) const {
  const test::Ended answer = test::run(
      {path_of("ringmaster"), "generate", "-c", config, "--max-tokens", "10", "-p", "The fox"}, {}, kLimit);
  if (answer.exit_code != 0 && test::alive(supervisor)) {
    judged.outcome = Outcome::kRefused;
    judged.said += answer.err;
    if (answer.err.empty()) judged.violation = "the request fails without a word";
  }
  if (!test::alive(supervisor)) return;
  const std::string found = lines(audit(config, dir_.path() + "/first-audit.json", kIdleWithin));
  if (test::alive(supervisor)) judged.violation += found;
}

Judged UpTrials::run(const std::string& family, long n) {
  Judged judged;
  const std::string config = dir_.path() + "/cluster.yaml";
  fs::remove_all(dir_.path() + "/state");
  std::ofstream(config) << "name: u\nstate_dir: " << dir_.path() << "/state\n" << kYaml;
  const Shim shim({"ringmaster", family, n}, dir_.path());
  const std::string err = dir_.path() + "/stderr";
  fs::remove(err);  // says that the former cluster is ready
  const pid_t supervisor = spawn({path_of("ringmaster"), "up", "-c", config}, shim.environment(), err, -1);
  judged.outcome = Outcome::kAsUsual;
  const auto ready = [&] { return read_file(err).find("' is ready\n") != std::string::npos; };
  const Nanos deadline = monotonic_now() + kLimit;
  while (test::alive(supervisor) && !ready() && monotonic_now() < deadline) sleep_for(5 * kMillisecond);
  if (test::alive(supervisor) && !ready()) judged.violation = "neither ready nor at its end after 30 s";
  if (ready()) serve(config, supervisor, judged);
  kill(supervisor, SIGTERM);
  const std::optional<int> status = wait_for(supervisor, kLimit);
  if (!status) judged.violation = "it does not end within 30 s after SIGTERM";

  judged.said += complaints(read_file(err));
  judged.what = shim.note();
  judged.calls = shim.calls();
  if (n > 0 && judged.what.empty()) judged.outcome = Outcome::kNotReached;
  if (status && !WIFEXITED(*status)) judged.violation = "killed by signal " + std::to_string(*status & 0x7F);
  if (status && *status != 0) judged.outcome = Outcome::kEnded;
  if (status && *status != 0 && judged.said.empty()) judged.violation = "it fails and says nothing";
  std::string left;
  const Nanos gone_by = monotonic_now() + 10 * kSecond;  // the janitor's work
  const bool before_janitor =
      judged.outcome == Outcome::kEnded && (family == "memory" || judged.what.starts_with("flock"));
  while (!(left = leftovers(before_janitor)).empty() && monotonic_now() < gone_by)
    sleep_for(10 * kMillisecond);
  if (!left.empty()) judged.violation = "left behind:" + left;
  return judged;
}

Judged GenerateTrials::run(const std::string& family, long n) {
  Judged judged;
  const Shim shim({"ringmaster", family, n}, dir_.path());
  const std::string config = cluster_.config_file();
  const std::string runtime = "XDG_RUNTIME_DIR=" + fs::path(config).parent_path().string();
  std::vector<std::string> environment = shim.environment();
  environment.push_back(runtime);
  const test::Ended ended = test::run({path_of("ringmaster"), "generate", "-c", config, "--max-tokens", "10",
                                       "-p", "The quick brown fox", "--seed", "1"},
                                      environment, kLimit);
  judged.what = shim.note();
  judged.calls = shim.calls();
  judged.said = complaints(ended.err);
  judged.outcome = n > 0 && judged.what.empty() ? Outcome::kNotReached : Outcome::kAsUsual;
  judged.violation = lines(audit(config, dir_.path() + "/first-audit.json", kIdleWithin, {runtime}));
  if (n == 0) expected_ = ended.out;
  if (ended.exit_code < 0) {
    judged.violation = "killed by a signal, or it hangs";
  } else if (ended.exit_code > 0) {
    judged.outcome = Outcome::kEnded;
    if (ended.err.empty()) judged.violation = "a failure without a word";
  } else if (ended.out != expected_ && !expected_.empty()) {
    judged.violation = "it succeeds with the answer: " + ended.out;
  }
  return judged;
}

}  // namespace

std::unique_ptr<Trials> make_trials(const std::string& program) {
  if (program == "up") return std::make_unique<UpTrials>();
  if (program == "generate") return std::make_unique<GenerateTrials>();
  return std::make_unique<ProcessTrials>(program);
}

}  // namespace ringmaster::failures
