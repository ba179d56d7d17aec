// `ringmaster logs` over files that grow and rotate while it reads, with anything in them. A stream gives
// every whole line that is one of the log's, once and in order, whenever it looks; the merged log is the
// streams merged by time, and no line of it can move a terminal's cursor.
//   script: { 0: process, sized bytes to append | 1: process, time, text of a proper line | 2: process
//   rotates
//             | 3: the readers look } ...
#include "launcher/log_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <deque>
#include <filesystem>

#include "tests/fuzz/input.h"

namespace ringmaster::launcher {
namespace {

constexpr std::array<const char*, 3> kProcesses = {"gpu-worker.0", "gpu-worker.1", "router"};  // by name
constexpr size_t kMaxRotations = 20;  // fewer than the reader looks for
constexpr int kMaxLooks = 32;         // each compares everything that was written

const std::string& folder() {
  static const std::string path = [] {
    std::string pattern =
        (std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp") + std::string("/rm-fuzz-logs.XXXXXX");
    FUZZ_CHECK(mkdtemp(pattern.data()) != nullptr);
    static const std::string made = pattern;
    std::atexit([] { std::filesystem::remove_all(made); });
    return pattern;
  }();
  return path;
}

// The obvious slow way: all bytes of a process in memory, cut anew at every look.
class Written {
 public:
  explicit Written(std::string process) : process_(std::move(process)) {}
  ~Written() {
    for (size_t age = 0; age <= files_.size(); ++age) unlink(path(age).c_str());
  }

  void append(std::string_view bytes) {
    if (bytes.empty()) return;
    if (!open_) files_.emplace_back();
    open_ = true;
    files_.back() += bytes;
    const UniqueFd fd(open(path(0).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    FUZZ_CHECK(write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  void rotate() {
    if (!open_ || files_.size() > kMaxRotations) return;
    for (size_t age = files_.size(); age > 0; --age)
      FUZZ_CHECK(std::rename(path(age - 1).c_str(), path(age).c_str()) == 0);
    open_ = false;
  }
  void open_next() {
    if (!files_.empty() && !open_) append("\n");
  }
  std::deque<LogLine> lines() const {
    std::deque<LogLine> out;
    for (const std::string& file : files_) {
      size_t at = 0;
      for (size_t end; (end = file.find('\n', at)) != std::string::npos; at = end + 1)
        if (auto line = parse_log_line(file.substr(at, end - at))) out.push_back(std::move(*line));
    }
    return out;
  }

 private:
  std::string path(size_t age) const {
    if (age == 0) return folder() + "/" + process_ + ".jsonl";
    return folder() + "/" + process_ + "." + std::to_string(age) + ".jsonl";
  }
  std::string process_;
  std::deque<std::string> files_;  // oldest first
  bool open_ = false;              // files_.back() is the file without an age
};

void check_readable(const LogLine& line) {
  const std::string text = readable(line);
  FUZZ_CHECK(text.size() >= std::string_view("1970-01-01 00:00:00.000").size());
  for (const char c : text) FUZZ_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F);
}

struct Play {
  void run(fuzz::Input& input) {
    while (!input.empty()) {
      const uint8_t op = input.byte(), process = input.byte() % kProcesses.size();
      if (op % 4 == 0) written[process].append(input.sized_text());
      if (op % 4 == 1) {
        const auto time = input.number<int64_t>();
        const std::string text = std::to_string(input.byte());
        written[process].append("{\"t\":" + std::to_string(time) + ",\"text\":\"" + text + "\"}\n");
      }
      if (op % 4 == 2) written[process].rotate();
      if (op % 4 == 3 && ++looks <= kMaxLooks) look();
    }
    look();
    // A folder by itself does not say whose file NAME.1.jsonl is as long as there is no NAME.jsonl.
    for (Written& each : written) each.open_next();
    check_merged();
  }

  void look() {
    for (size_t i = 0; i < streams.size(); ++i) {
      while (auto line = streams[i].next()) {
        check_readable(*line);
        seen[i].push_back(std::move(line->json));
      }
      const std::deque<LogLine> all = written[i].lines();
      FUZZ_CHECK(seen[i].size() == all.size());
      for (size_t n = 0; n < all.size(); ++n) FUZZ_CHECK(seen[i][n] == all[n].json);
    }
  }
  // Of lines at the same time the process that comes first by name is first.
  void check_merged() {
    std::array<std::deque<LogLine>, kProcesses.size()> left;
    for (size_t i = 0; i < left.size(); ++i) left[i] = written[i].lines();
    LogReader reader(folder(), "");
    while (const auto line = reader.next()) {
      std::deque<LogLine>* first = nullptr;
      for (auto& lines : left)
        if (!lines.empty() && (first == nullptr || lines.front().t < first->front().t)) first = &lines;
      FUZZ_CHECK(first != nullptr && line->json == first->front().json);
      first->pop_front();
    }
    for (const auto& lines : left) FUZZ_CHECK(lines.empty());
  }

  std::array<Written, 3> written = {Written(kProcesses[0]), Written(kProcesses[1]), Written(kProcesses[2])};
  std::array<LogStream, 3> streams = {LogStream(folder(), kProcesses[0]), LogStream(folder(), kProcesses[1]),
                                      LogStream(folder(), kProcesses[2])};
  std::array<std::vector<std::string>, 3> seen;
  int looks = 0;
};

}  // namespace
}  // namespace ringmaster::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ringmaster::fuzz::Input input(data, size);
  ringmaster::launcher::Play().run(input);
  return 0;
}
