#include "launcher/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.h"

namespace ringmaster::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".jsonl";
constexpr uint32_t kMaxAge = 100;     // log.max_files is at most 100
constexpr size_t kMaxLine = 1 << 20;  // base/log.cc writes at most some 100 KiB (16 KiB, escaped)

uint64_t inode_of(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

bool selected(const std::string& process, const std::string& filter) {
  return filter.empty() || process == filter || process.starts_with(filter + ".");
}

std::string text_field(const nlohmann::json& json, const char* key) {
  const auto at = json.find(key);
  return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
}

}  // namespace

std::optional<LogLine> parse_log_line(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto t = json.find("t");
  if (t == json.end() || !t->is_number_integer()) return std::nullopt;
  return LogLine{.t = t->get<int64_t>(),
                 .process = text_field(json, "process"),
                 .level = text_field(json, "level"),
                 .uid = text_field(json, "uid"),
                 .text = text_field(json, "text"),
                 .json = text};
}

std::string readable(const LogLine& line) {
  const int64_t part = line.t % kSecond;  // of a second; below 0 before 1970
  const time_t seconds = line.t / kSecond - (part < 0 ? 1 : 0);
  tm local{};
  localtime_r(&seconds, &local);
  char time[64];
  const size_t size = strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S", &local);
  std::snprintf(time + size, sizeof time - size, ".%03d",
                static_cast<int>((part + kSecond) % kSecond / kMillisecond));
  const auto level = static_cast<unsigned char>(line.level.empty() ? '?' : line.level[0]);
  std::string out = std::string(time) + " " + line.process + " ";
  out += std::isalpha(level) != 0 ? static_cast<char>(std::toupper(level)) : '?';
  if (!line.uid.empty()) out += " [" + line.uid + "]";
  out += " " + line.text;
  // Each field comes from a file: none of them may speak to the terminal.
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
  return out;
}

LogStream::LogStream(std::string folder, std::string process)
    : folder_(std::move(folder)), process_(std::move(process)) {
  open_oldest();
}

std::string LogStream::file(uint32_t age) const {
  return folder_ + "/" + process_ + (age == 0 ? "" : "." + std::to_string(age)) + std::string(kSuffix);
}

bool LogStream::open_oldest() {
  uint32_t age = 0;
  while (age < kMaxAge && inode_of(file(age + 1)) != 0) ++age;
  fd_ = UniqueFd(open(file(age).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  inode_ = fd_ && fstat(fd_.get(), &info) == 0 ? info.st_ino : 0;
  return static_cast<bool>(fd_);
}

bool LogStream::open_newer() {
  if (inode_of(file(0)) == inode_) return false;
  // Rotated since: the present file now has an age, the next one is one younger. Rotated out of the folder:
  // the oldest.
  uint32_t age = 1;
  while (age <= kMaxAge && inode_of(file(age)) != inode_) ++age;
  if (age > kMaxAge) return open_oldest();
  UniqueFd next(open(file(age - 1).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!next || fstat(next.get(), &info) != 0 || info.st_ino == inode_)
    return false;  // in the middle of a rotation
  fd_ = std::move(next);
  inode_ = info.st_ino;
  return true;
}

bool LogStream::read_more() {
  buffer_.erase(0, at_);
  at_ = 0;
  if (buffer_.size() > kMaxLine) buffer_.clear();  // not a line of ours
  constexpr size_t kChunk = 64 * 1024;
  const size_t before = buffer_.size();
  buffer_.resize(before + kChunk);
  const ssize_t got = read(fd_.get(), buffer_.data() + before, kChunk);
  buffer_.resize(before + static_cast<size_t>(std::max<ssize_t>(0, got)));
  return got > 0;
}

std::optional<LogLine> LogStream::next() {
  for (;;) {
    const size_t end = buffer_.find('\n', at_);
    if (end == std::string::npos) {
      if (!fd_) {
        if (!open_oldest()) return std::nullopt;
        buffer_.clear();
        at_ = 0;
      }
      if (read_more()) continue;
      // Once rotated a file grows no more; but it may have grown between our last look at it and its
      // rotation.
      if (inode_of(file(0)) == inode_ || read_more()) {
        if (at_ < buffer_.size() && buffer_.find('\n', at_) != std::string::npos) continue;
        return std::nullopt;
      }
      if (!open_newer()) return std::nullopt;
      // What has no newline at the end of a rotated file was cut by a crash.
      buffer_.clear();
      at_ = 0;
      continue;
    }
    std::optional<LogLine> line = parse_log_line(buffer_.substr(at_, end - at_));
    at_ = end + 1;
    if (line) return line;
  }
}

LogReader::LogReader(std::string folder, std::string filter)
    : folder_(std::move(folder)), filter_(std::move(filter)) {
  find_streams();
}

void LogReader::find_streams() {
  std::set<std::string> stems;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kSuffix)) stems.insert(name.substr(0, name.size() - kSuffix.size()));
  }
  for (const std::string& stem : stems) {
    // "router.1" is an old file of "router"; "gpu-worker.1" is a process, as there is no "gpu-worker".
    const size_t dot = stem.rfind('.');
    if (dot != std::string::npos && stems.contains(stem.substr(0, dot))) continue;
    const bool known = std::any_of(heads_.begin(), heads_.end(),
                                   [&](const Head& head) { return head.stream.process() == stem; });
    if (!known && selected(stem, filter_)) heads_.push_back({LogStream(folder_, stem), std::nullopt});
  }
}

std::vector<std::string> LogReader::processes() const {
  std::vector<std::string> out;
  for (const Head& head : heads_) out.push_back(head.stream.process());
  return out;
}

std::optional<LogLine> LogReader::next() {
  Head* first = nullptr;
  for (Head& head : heads_) {
    if (!head.line) head.line = head.stream.next();
    if (head.line && (first == nullptr || head.line->t < first->line->t)) first = &head;
  }
  if (first == nullptr) return std::nullopt;
  std::optional<LogLine> line = std::move(first->line);
  first->line.reset();
  return line;
}

}  // namespace ringmaster::launcher
