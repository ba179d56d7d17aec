#include "tests/process/support/kill_rounds.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "base/config.h"
#include "base/context_hash.h"
#include "base/gguf.h"
#include "tests/process/support/cluster.h"

namespace ringmaster::test {
namespace {

namespace fs = std::filesystem;

// A restart limit that a hundred kills do not reach, so that what is measured is one restart and not the
// back-off after many. 1 ms a step: a stream of 400 tokens is alive when the kill comes.
constexpr const char* kYaml = R"(model: smollm2
router:
  worker_timeout: 1s
tokenizer-worker:
  count: 2
gpu-worker:
  device: fake
  kv_memory: 256MiB
  fake:
    step_time: 1ms
supervisor:
  max_restarts: 1000
  restart_window: 100ms
)";
constexpr int kStreams = 8;
constexpr uint32_t kTokens = 400;
constexpr Nanos kGone = 2 * kSecond;  // issue: 0 leftovers after 2 s
// Only so that a round ends: on a machine that is many times slower than usual.
constexpr Nanos kPatience = 60 * kSecond;

struct Stream {
  std::vector<TokenId> expected, got;
  std::vector<client::Ending> endings;
};
using Streams = std::map<Uid, Stream>;

std::set<std::string> entries_of(const std::string& dir) {
  std::set<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) out.insert(entry.path().string());
  return out;
}

// New ones since `before`. The folder is everybody's: the fuzz targets of this project work in it, under
// names of their own, and may run at the same time.
std::vector<std::string> new_shared_memory(const std::set<std::string>& before) {
  std::vector<std::string> out;
  for (const std::string& path : entries_of("/dev/shm"))
    if (!before.contains(path) && !path.starts_with("/dev/shm/rm-fuzz-")) out.push_back("new " + path);
  return out;
}

// Processes that name `dir` in their command line, or hold a file in it open: also a janitor, which has no
// command line of its own.
std::set<pid_t> processes_of(const std::string& dir) {
  std::set<pid_t> out;
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string pid = it->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos || std::stoi(pid) == getpid()) continue;
    std::ifstream in(it->path() / "cmdline", std::ios::binary);
    std::string command;
    std::getline(in, command, '\n');  // of a process that ends the read fails, which an iterator would throw
    bool ours = command.find(dir) != std::string::npos;
    std::error_code gone;
    for (fs::directory_iterator fd(it->path() / "fd", gone), last; !ours && !gone && fd != last;
         fd.increment(gone))
      ours = fs::read_symlink(fd->path(), gone).string().starts_with(dir);
    if (ours && alive(std::stoi(pid))) out.insert(std::stoi(pid));
  }
  return out;
}

// Where the descriptors of a process point, without the numbers that differ from one object to the next:
// "socket", "/memfd:ringmaster.slot. (deleted)", "/tmp/.../lock".
std::map<std::string, int> descriptors_of(pid_t pid) {
  std::map<std::string, int> out;
  std::error_code error;
  const std::string dir = "/proc/" + std::to_string(pid) + "/fd";
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    std::string target = fs::read_symlink(it->path(), gone).string();
    if (!target.starts_with("/")) target = target.substr(0, target.find(':'));
    if (target.starts_with("/memfd:")) std::erase_if(target, [](char c) { return c >= '0' && c <= '9'; });
    if (!gone) ++out[target];
  }
  return out;
}

class Rounds {
 public:
  Rounds(std::string_view victim, uint32_t seed) : victim_(victim), random_(seed) {}

  KillResult run(int rounds) {
    if (!read_model()) return result_;
    for (; result_.rounds < rounds && result_.faults.empty(); ++result_.rounds) {
      if (!monitor_ && !start()) break;
      victim_ == "supervisor" ? supervisor_round() : child_round();
    }
    monitor_.reset();
    streaming_.reset();
    if (cluster_.supervisor() != 0 && cluster_.down() != 0) fault("`down` failed after the last round");
    return result_;
  }

 private:
  void fault(const std::string& what) {
    result_.faults.push_back(std::string(victim_) + ", round " + std::to_string(result_.rounds + 1) + ": " +
                             what);
  }

  bool read_model() {
    const auto path = resolve_model("smollm2");
    const auto gguf = path.ok() ? Gguf::open(*path) : Result<Gguf>(path.error());
    if (!gguf.ok()) return fault(gguf.error().message), false;
    silent_ = *context_hash::silent_ids(*gguf);
    vocab_size_ = static_cast<uint32_t>((*gguf->texts("tokenizer.ggml.tokens")).size());
    return true;
  }

  // Of a cluster that serves and has nothing to do: what every round must come back to.
  bool start() {
    shm_ = entries_of("/dev/shm");
    if (!cluster_.up(kPatience)) return fault("`up` failed:\n" + cluster_.log()), false;
    // A request that goes down with a connection is asked for again soon, so that what is measured is the
    // cluster.
    monitor_.emplace(
        cluster_.connect({.ping_interval = 100 * kMillisecond, .ask_again_after = 200 * kMillisecond}));
    if (!streaming_) streaming_.emplace(cluster_.connect());
    if (!serves()) return false;
    usleep(200'000);  // the connections of up() are closed
    processes_ = processes_of(cluster_.state_dir()).size();
    files_ = entries_of(cluster_.state_dir());
    for (const auto& [name, pid] : processes()) descriptors_[name] = descriptors_of(pid);
    return true;
  }

  std::map<std::string, pid_t> processes() const {
    std::map<std::string, pid_t> out{{"supervisor", cluster_.supervisor()}};
    for (const Child& child : cluster_.children()) out[child.name] = child.pid;
    return out;
  }

  client::Request request(Stream& stream, uint32_t tokens) {
    std::vector<TokenId> prompt(1 + random_() % 40);
    for (TokenId& id : prompt) id = random_() % vocab_size_;
    stream.expected = context_hash::expected(prompt, vocab_size_, silent_, tokens);
    client::Request out;
    out.prompt = std::move(prompt);
    out.max_tokens = tokens;
    out.resume_grace_ms = 60'000;
    return out;
  }

  // A request that is refused, or lost with a worker that is just found to be dead, is asked again.
  bool serves() {
    const Nanos deadline = monotonic_now() + kPatience;
    std::string last = "no answer";
    while (monotonic_now() < deadline) {
      Stream stream;
      const auto answer = monitor_->generate(request(stream, 20), nullptr, deadline - monotonic_now());
      if (!answer.ok()) {
        last = answer.error().message;
      } else if (answer->ending.reason == client::FinishReason::kLength) {
        if (answer->ids != stream.expected) return fault("an answer with wrong ids"), false;
        return true;
      } else {
        last = answer->ending.message;
      }
      usleep(1'000);
    }
    return fault("does not serve again: " + last), false;
  }

  void take(const client::Event& event, Streams& streams) {
    Stream& stream = streams[event.uid];
    if (const auto* piece = std::get_if<client::Piece>(&event.what)) {
      if (piece->first_token != stream.got.size())
        fault("token " + std::to_string(piece->first_token) + " after " + std::to_string(stream.got.size()));
      stream.got.insert(stream.got.end(), piece->ids.begin(), piece->ids.end());
    }
    if (const auto* ending = std::get_if<client::Ending>(&event.what)) stream.endings.push_back(*ending);
  }

  void read(Streams& streams, const std::function<bool()>& done, Nanos deadline) {
    while (!done() && monotonic_now() < deadline) {
      const auto event = streaming_->next(std::min(deadline, monotonic_now() + 10 * kMillisecond));
      if (event.ok() && event->has_value()) take(**event, streams);
    }
  }

  // Starts streams, and returns at a moment when all of them have begun.
  bool begin(Streams& streams) {
    for (int i = 0; i < kStreams; ++i) {
      Stream stream;
      const auto uid = streaming_->start(request(stream, kTokens));
      if (!uid.ok()) return fault(uid.error().message), false;
      streams[*uid] = std::move(stream);
    }
    const auto begun = [&] {
      return std::all_of(streams.begin(), streams.end(),
                         [](const auto& s) { return !s.second.got.empty() || !s.second.endings.empty(); });
    };
    read(streams, begun, monotonic_now() + kPatience);
    if (!begun()) return fault("streams did not begin"), false;
    const Nanos moment = monotonic_now() + static_cast<Nanos>(random_() % 150) * kMillisecond;
    read(
        streams, [] { return false; }, moment);
    return true;
  }

  // `may_be_lost`: a dead worker ends its streams with worker_lost.
  void check(const Streams& streams, bool may_be_lost) {
    result_.streams += streams.size();
    if (streams.size() != kStreams) fault("events of a stream that nobody started");
    for (const auto& [uid, stream] : streams) {
      const std::string name = "stream " + to_string(uid);
      if (stream.endings.size() != 1) {
        fault(name + " ended " + std::to_string(stream.endings.size()) + " times");
        continue;
      }
      const client::Ending& ending = stream.endings[0];
      if (stream.got.size() > stream.expected.size() ||
          !std::equal(stream.got.begin(), stream.got.end(), stream.expected.begin()))
        fault(name + " has wrong ids");
      const bool lost = ending.reason == client::FinishReason::kError && ending.code == Code::kWorkerLost;
      if (lost && may_be_lost) {
        ++result_.worker_lost;
      } else if (ending.reason != client::FinishReason::kLength || stream.got.size() != kTokens) {
        fault(name + " ended with " + std::string(name_of(ending)) + " after " +
              std::to_string(stream.got.size()) + " tokens: " + ending.message);
      }
    }
  }
  static std::string_view name_of(const client::Ending& ending) { return client::name(ending.reason); }

  // Everything that differs from the idle cluster of start(); `dead` is the killed process.
  std::vector<std::string> left(pid_t dead) {
    std::vector<std::string> out;
    if (alive(dead)) out.push_back("the killed process");
    for (const std::string& path : new_shared_memory(shm_)) out.push_back(path);
    if (entries_of(cluster_.state_dir()) != files_)
      out.push_back("files in the state directory have changed");
    if (const size_t now = processes_of(cluster_.state_dir()).size(); now != processes_)
      out.push_back(std::to_string(now) + " processes instead of " + std::to_string(processes_));
    for (const auto& [name, pid] : processes())
      for (const auto& [target, count] : descriptors_of(pid))
        if (const int before = descriptors_[name][target]; count > before)
          out.push_back(name + " holds " + std::to_string(count) + " descriptors of " + target +
                        " instead of " + std::to_string(before));
    const auto status = monitor_->status(kSecond);
    if (!status.ok()) return out.push_back(status.error().message), out;
    if (!status->ready) out.push_back("not ready");
    if (status->live_requests != 0) out.push_back(std::to_string(status->live_requests) + " live requests");
    for (const client::WorkerStatus& w : status->workers) {
      if (w.state != "ready") out.push_back(w.name + " is " + w.state);
      if (w.live + w.running + w.waiting != 0 || w.blocks_free != w.blocks_total)
        out.push_back(w.name + " has requests or blocks");
    }
    return out;
  }

  // Waits until `left` finds nothing, until `limit`; what it still finds then is a leftover.
  template <typename Left>
  void wait_until_clean(const Left& look, Nanos limit) {
    std::vector<std::string> found = look();
    while (!found.empty() && monotonic_now() < limit) {
      usleep(10'000);
      found = look();
    }
    for (const std::string& what : found)
      result_.leftovers.push_back(std::string(victim_) + ", round " + std::to_string(result_.rounds + 1) +
                                  ": " + what);
  }

  void child_round() {
    Streams streams;
    if (!begin(streams)) return;
    const pid_t victim = processes()[std::string(victim_)];
    if (victim <= 0) return fault("it does not run");
    const Nanos killed = monotonic_now();
    kill(victim, SIGKILL);
    if (!serves()) return;
    result_.back_after.push_back(monotonic_now() - killed);
    read(
        streams, [&] { return streaming_->open_streams() == 0; }, monotonic_now() + kPatience);
    // A second ending, or a piece after it, would come now.
    read(
        streams, [] { return false; }, monotonic_now() + 20 * kMillisecond);
    check(streams, /*may_be_lost=*/victim_ != "router");
    wait_until_clean([&] { return left(victim); }, std::max(killed, monotonic_now()) + kGone);
  }

  void supervisor_round() {
    Streams streams;
    if (!begin(streams)) return;
    const std::string state = cluster_.state_dir();
    const Nanos killed = monotonic_now();
    cluster_.kill_supervisor();
    wait_until_clean(
        [&] {
          std::vector<std::string> out;
          for (const pid_t pid : processes_of(state)) out.push_back("process " + std::to_string(pid));
          for (const std::string& path : entries_of(state))
            if (fs::is_socket(path) || path.ends_with("/lock") || path.find("/supervisor.json") != path.npos)
              out.push_back(path);
          for (const std::string& path : new_shared_memory(shm_)) out.push_back(path);
          return out;
        },
        killed + kGone);
    monitor_.reset();
    const Nanos again = monotonic_now();
    if (!start()) return;
    result_.back_after.push_back(monotonic_now() - again - 200 * kMillisecond);  // start() waits that long
    read(
        streams, [&] { return streaming_->open_streams() == 0; }, monotonic_now() + kPatience);
    read(
        streams, [] { return false; }, monotonic_now() + 20 * kMillisecond);
    // The processes die one after the other: a tokenizer-worker may still tell of a gpu-worker that went
    // first.
    check(streams, /*may_be_lost=*/true);
  }

  std::string_view victim_;
  std::mt19937 random_;
  Cluster cluster_{kYaml};
  KillResult result_;
  std::optional<client::Client> monitor_;    // none: the cluster is to be started
  std::optional<client::Client> streaming_;  // outlives the cluster: its streams go on with the next one
  std::vector<TokenId> silent_;
  uint32_t vocab_size_ = 0;
  std::set<std::string> shm_, files_;
  size_t processes_ = 0;
  std::map<std::string, std::map<std::string, int>> descriptors_;
};

}  // namespace

KillResult kill_rounds(std::string_view victim, int rounds, uint32_t seed) {
  return Rounds(victim, seed).run(rounds);
}

}  // namespace ringmaster::test
