#include "tests/failures/stage.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "launcher/record.h"
#include "launcher/state_dir.h"
#include "tests/process/support/cluster.h"

namespace ringmaster::failures {
namespace {

namespace fs = std::filesystem;

// A request takes milliseconds; a worker that ended is missed soon, on a slow machine too.
constexpr const char* kYaml = R"(name: f
model: smollm2
router:
  worker_timeout: 400ms
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

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

pid_t spawn(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
            const std::string& output, int ready_fd) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  require(pid >= 0, "start a process");
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);
  const int err = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  dup2(err, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (ready_fd == 3) fcntl(3, F_SETFD, 0);
  if (ready_fd >= 0 && ready_fd != 3) dup2(ready_fd, 3);
  for (const std::string& entry : environment) putenv(strdup(entry.c_str()));
  std::vector<char*> args;
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  execv(args[0], args.data());
  _exit(127);
}

std::optional<int> wait_for(pid_t pid, Nanos limit) {
  const Nanos deadline = monotonic_now() + limit;
  for (int status = 0; monotonic_now() < deadline; sleep_for(kMillisecond))
    if (waitpid(pid, &status, WNOHANG) == pid) return status;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return std::nullopt;
}

std::string path_of(const std::string& program) {
  return fs::read_symlink("/proc/self/exe").parent_path() / program;
}

std::vector<Finding> audit(const std::string& config, const std::string& first, Nanos idle_within,
                           const std::vector<std::string>& environment) {
  constexpr Nanos kAuditLimit = 30 * kSecond;
  std::vector<std::string> argv = {path_of("ringmaster"),
                                   "audit",
                                   "-c",
                                   config,
                                   "--json",
                                   "--wait-idle",
                                   std::to_string(idle_within / kSecond)};
  if (fs::exists(first)) argv.insert(argv.end(), {"--since", first});
  const test::Ended ended = test::run(argv, environment, kAuditLimit);
  const auto json = nlohmann::json::parse(ended.out, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {{"audit", "none", ended.out + ended.err}};
  std::vector<Finding> found;
  for (const auto& finding : json.at("findings"))
    found.push_back({finding.at("process"), finding.at("rule"), finding.dump() + "\n"});
  if (found.empty() && !fs::exists(first)) std::ofstream(first) << ended.out;
  return found;
}

std::string lines(const std::vector<Finding>& findings) {
  std::string all;
  for (const Finding& finding : findings) all += finding.line;
  return all;
}

std::string complaints(const std::string& text) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);)
    if (line.find(" I ") == std::string::npos && !line.empty()) out += line + "\n";
  return out;
}

Shim::Shim(const Failure& failure, const std::string& dir) : note_(dir + "/note"), count_(dir + "/count") {
  fs::remove(note_);
  fs::remove(count_);
  environment_ = {"LD_PRELOAD=" RINGMASTER_FAIL_NTH,
                  "FAIL_PROGRAM=" + failure.program,
                  "FAIL_FAMILY=" + failure.family,
                  "FAIL_AT=" + std::to_string(failure.n),
                  "FAIL_NOTE=" + note_,
                  "FAIL_COUNT=" + count_};
}

std::string Shim::note() const {
  return read_file(note_);
}

long Shim::calls() const {
  const std::string text = read_file(count_);
  return text.empty() ? -1 : std::stol(text);
}

bool End::in_order() const {
  return WIFEXITED(status);
}
int End::code() const {
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Stage::Stage() : dir_("/tmp/rmfail-XXXXXX") {
  require(mkdtemp(dir_.data()) != nullptr, "make a directory in /tmp");
  fs::create_directories(dir_ + "/logs");
  std::ofstream(dir_ + "/cluster.yaml") << kYaml << "state_dir: " << dir_ << "\n";
  auto lock = launcher::lock_state_dir(dir_);
  if (!lock) throw std::runtime_error(lock.error().message);
  lock_ = std::move(lock).value();
}

Stage::~Stage() {
  for (auto& [name, process] : processes_) {
    kill(process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
  }
  fs::remove_all(dir_);
}

void Stage::start(const std::string& program, const std::vector<std::string>& environment) {
  Process process;
  process.name = program == kRouter ? program : program + ".0";
  fs::remove(log_file(process.name));
  process.stderr_file = dir_ + "/stderr." + std::to_string(++started_);
  int ends[2];
  require(pipe2(ends, O_CLOEXEC) == 0, "make a pipe");
  process.ready = UniqueFd(ends[0]);
  const UniqueFd ready_write(ends[1]);
  process.pid =
      spawn({path_of(program), "--config", dir_ + "/cluster.yaml", "--name", process.name, "--ready-fd", "3"},
            environment, process.stderr_file, ready_write.get());
  processes_[program] = std::move(process);
}

bool Stage::wait_ready(const std::string& program, Nanos limit) {
  const UniqueFd ready = std::move(processes_.at(program).ready);
  pollfd entry{ready.get(), POLLIN, 0};
  if (poll(&entry, 1, static_cast<int>(limit / kMillisecond)) != 1) return false;
  char text[8];
  return read(ready.get(), text, sizeof text) > 0;
}

std::optional<End> Stage::ended(const std::string& program) {
  const auto found = processes_.find(program);
  if (found == processes_.end()) return std::nullopt;
  End end;
  if (waitpid(found->second.pid, &end.status, WNOHANG) != found->second.pid) return std::nullopt;
  end.complaint = last_words(found->second);
  processes_.erase(found);
  return end;
}

std::optional<End> Stage::stop(const std::string& program, Nanos limit) {
  const Process process = std::move(processes_.at(program));
  processes_.erase(program);
  kill(process.pid, SIGTERM);
  const std::optional<int> status = wait_for(process.pid, limit);
  if (!status) return std::nullopt;
  return End{*status, last_words(process)};
}

// A line that stderr did not take is in the log file all the same.
std::string Stage::last_words(const Process& process) const {
  std::string words = complaints(read_file(process.stderr_file));
  fs::remove(process.stderr_file);
  if (!words.empty()) return words;
  std::istringstream lines(read_file(log_file(process.name)));
  for (std::string line; std::getline(lines, line);)
    if (line.find("\"level\":\"error\"") != std::string::npos) words += line + "\n";
  return words;
}

std::string Stage::log_file(const std::string& name) const {
  return dir_ + "/logs/" + name + ".jsonl";
}

// What the audit is told by a supervisor. Here that is this process, of which it knows better.
void Stage::write_record() const {
  launcher::SupervisorRecord record{.name = "f",
                                    .pid = getpid(),
                                    .start_ticks = launcher::process_start_ticks(getpid()),
                                    .state = "ready",
                                    .client_endpoint = "ipc://" + dir_ + "/clients.sock",
                                    .worker_endpoint = "ipc://" + dir_ + "/workers.sock"};
  for (const auto& [program, process] : processes_)
    record.children.push_back({.name = process.name, .pid = process.pid, .state = "ready"});
  std::ofstream(launcher::record_path(dir_)) << launcher::to_json(record);
}

std::vector<Finding> Stage::audit(Nanos idle_within) {
  write_record();
  std::vector<Finding> found =
      failures::audit(dir_ + "/cluster.yaml", dir_ + "/first-audit.json", idle_within);
  std::erase_if(found, [](const Finding& finding) { return finding.process == "supervisor"; });
  return found;
}

// One that misses the router soon: its default is for people.
client::Client Stage::connect() const {
  client::Options options;
  options.ping_interval = 100 * kMillisecond;
  options.ask_again_after = 300 * kMillisecond;
  auto client = client::Client::connect("ipc://" + dir_ + "/clients.sock", options);
  if (!client) throw std::runtime_error(client.error().message);
  return std::move(client).value();
}

}  // namespace ringmaster::failures
