// The small readers of the supervisor and the processes' command line: supervisor.json, arguments, the output
// of children, what the host says about memory. What is accepted is what was written.
//   input: which, then its text
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/process.h"
#include "launcher/memory.h"
#include "launcher/merged_output.h"
#include "launcher/record.h"
#include "tests/fuzz/input.h"

namespace ringmaster::launcher {
namespace {

void read_supervisor_json(const std::string& text) {
  const auto record = parse_record(text);
  if (!record) {
    FUZZ_CHECK(!record.error().message.empty());
    return;
  }
  FUZZ_CHECK(record->pid > 0);
  const auto json = nlohmann::ordered_json::parse(text);
  FUZZ_CHECK(json.at("pid") == record->pid && json.at("start_ticks") == record->start_ticks);
  FUZZ_CHECK(json.at("children").size() == record->children.size());
  const std::string written = to_json(*record);
  const auto again = parse_record(written);
  FUZZ_CHECK(again.ok() && to_json(*again) == written);
}

// Arguments between zero bytes.
void read_arguments(const std::string& text) {
  std::vector<const char*> argv = {"router"};
  for (size_t at = 0; at < text.size() && argv.size() < 64; at += std::strlen(text.c_str() + at) + 1)
    argv.push_back(text.c_str() + at);
  const auto arguments = parse_process_arguments(static_cast<int>(argv.size()), argv.data());
  if (!arguments) {
    FUZZ_CHECK(arguments.error().message.find("usage: router") != std::string::npos);
    return;
  }
  FUZZ_CHECK(!arguments->config_path.empty() && !arguments->name.empty());
  FUZZ_CHECK(arguments->ready_fd >= -1);
}

// A child writes the text in pieces of any size.
void split_lines(fuzz::Input& input) {
  const size_t limit = 1 + input.byte(), piece = 1 + input.byte();
  const std::string text = input.rest();
  std::string left = text, joined;
  LineSplitter splitter(limit);
  const auto take = [&](std::string_view line) {
    FUZZ_CHECK(!line.empty() && line.size() <= limit && line.find('\n') == std::string_view::npos);
    joined += line;
  };
  while (!left.empty()) {
    splitter.feed(std::string_view(left).substr(0, piece), take);
    left.erase(0, piece);
  }
  splitter.finish(take);
  left = text;
  left.erase(std::remove(left.begin(), left.end(), '\n'), left.end());
  FUZZ_CHECK(joined == left);
}

void print_line(const std::string& text) {
  static const int fd = memfd_create("merged", MFD_CLOEXEC);
  MergedOutput output(fd, false, {"router", "gpu-worker.0"});
  output.line("router", text);
  std::string printed(text.size() + 64, '\0');
  const ssize_t size = pread(fd, printed.data(), printed.size(), 0);
  const std::string_view prefix = "router       | ";
  FUZZ_CHECK(static_cast<size_t>(size) == prefix.size() + text.size() + 1 && printed.starts_with(prefix));
  for (size_t i = 0; i < prefix.size() + text.size(); ++i)
    FUZZ_CHECK(static_cast<unsigned char>(printed[i]) >= 0x20 && printed[i] != 0x7F);
  FUZZ_CHECK(printed[prefix.size() + text.size()] == '\n');
  FUZZ_CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
}

// A host of four files; the control group is /a unless the text says otherwise.
void read_memory(fuzz::Input& input) {
  namespace fs = std::filesystem;
  static const std::string root = [] {
    std::string pattern =
        (fs::exists("/dev/shm") ? "/dev/shm" : "/tmp") + std::string("/rm-fuzz-host.XXXXXX");
    FUZZ_CHECK(mkdtemp(pattern.data()) != nullptr);
    fs::create_directories(pattern + "/proc/self");
    fs::create_directories(pattern + "/sys/fs/cgroup/a");
    static const std::string made = pattern;
    std::atexit([] { fs::remove_all(made); });
    return pattern;
  }();
  for (const char* file : {"/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup/a/memory.max",
                           "/sys/fs/cgroup/a/memory.current", "/sys/fs/cgroup/a/memory.stat"})
    std::ofstream(root + file, std::ios::binary) << input.sized_text();
  const auto available = available_memory(root);
  if (available) FUZZ_CHECK(!available->limit.empty());
}

}  // namespace
}  // namespace ringmaster::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringmaster;
  fuzz::Input input(data, size);
  switch (input.byte() % 5) {
    case 0:
      launcher::read_supervisor_json(input.rest());
      break;
    case 1:
      launcher::read_arguments(input.rest());
      break;
    case 2:
      launcher::split_lines(input);
      break;
    case 3:
      launcher::print_line(input.rest());
      break;
    case 4:
      launcher::read_memory(input);
      break;
  }
  return 0;
}
