#include "base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

namespace ringmaster::log {
namespace {

constexpr std::string_view kTextPattern = "%H:%M:%S.%e %L %v";  // L: one letter for the level
constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warning", "error"};
// A write of at most PIPE_BUF bytes to a pipe is one piece, so lines of several threads and processes stay
// whole.
constexpr size_t kMaxStderrLine = 4096;
constexpr size_t kMaxJsonText = 16'384;  // a line is a message for a person, not a place for data

spdlog::level::level_enum spdlog_level(Level level) {
  constexpr std::array kLevels = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                  spdlog::level::err};
  return kLevels[static_cast<size_t>(level)];
}

// One write() a line, to a descriptor that may be a pipe whose reader stopped or left.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (line.size() > kMaxStderrLine) {
      line.resize(kMaxStderrLine - 1);
      line.push_back('\n');
    }
    if (dropped_ > 0) {
      const std::string note = fmt::format("({} log lines dropped: stderr was not read)\n", dropped_);
      if (!put(note)) return void(++dropped_);
      dropped_ = 0;
    }
    if (!put({line.data(), line.size()})) ++dropped_;
  }
  void flush_() override {}

 private:
  static bool put(std::string_view line) {
    pollfd poll_stderr{STDERR_FILENO, POLLOUT, 0};
    if (poll(&poll_stderr, 1, 0) != 1 || (poll_stderr.revents & POLLOUT) == 0) return false;
    // poll() promises PIPE_BUF bytes of room in a pipe, so this neither blocks nor writes half a line.
    return ::write(STDERR_FILENO, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  }

  uint64_t dropped_ = 0;
};

// The two streams of this process. Written by open() only, before other threads exist.
struct Streams {
  std::string process;
  std::atomic<Level> level{Level::kInfo};
  std::atomic<bool> muted{false};
  std::shared_ptr<spdlog::logger> text;
  std::shared_ptr<spdlog::logger> json;
  std::atomic<Nanos> next_complaint{0};  // about the JSON file
};

Streams make_streams() {
  auto sink = std::make_shared<StderrSink>();
  sink->set_pattern(std::string(kTextPattern));
  auto logger = std::make_shared<spdlog::logger>("text", std::move(sink));
  logger->set_level(spdlog::level::trace);
  logger->set_error_handler([](const std::string&) {});
  return {.process = {}, .text = std::move(logger), .json = nullptr};
}

Streams& streams() {
  // Never destroyed: a thread may log while static objects are taken down.
  static Streams& instance = *new Streams(make_streams());
  return instance;
}

// Texts may quote names from files and messages: no line of them may break out of its line or steer a
// terminal.
std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = c == '\t' ? ' ' : '?';
  return out;
}

std::string json_line(Level level, std::string_view uid, Epoch epoch, std::string_view text) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  nlohmann::ordered_json line = {{"t", now.tv_sec * kSecond + now.tv_nsec},
                                 {"level", name(level)},
                                 {"process", streams().process},
                                 {"pid", getpid()}};
  if (!uid.empty()) line["uid"] = uid;
  if (epoch != 0) line["epoch"] = epoch;
  line["text"] = text.substr(0, kMaxJsonText);
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// On the other stream, and not for every line of a full disk.
void complain(const std::string& json_file, const std::string& why) {
  constexpr Nanos kPause = 60 * kSecond;
  const Nanos now = monotonic_now();
  if (now < streams().next_complaint.load()) return;
  streams().next_complaint = now + kPause;
  streams().text->warn("log file {} cannot be written: {}", json_file, printable(why));
}

Result<Level> parse_level(const std::string& text) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == text) return static_cast<Level>(i);
  return Error{Code::kInvalidArgument, "log level is '" + text + "'; allowed: debug, info, warning, error"};
}

}  // namespace

std::string_view name(Level level) {
  return kNames[static_cast<size_t>(level)];
}

Status open(const std::string& process, const std::string& json_file, const LogConfig& config) {
  Streams& s = streams();
  s.process = process;
  s.json = nullptr;
  std::signal(SIGPIPE, SIG_IGN);
  const Result<Level> level = parse_level(config.level);
  if (!level.ok()) return level.error();
  s.level = level.value();
  if (json_file.empty()) return ok_status();
  try {
    // max_files counts the current file too.
    const size_t old_files = config.max_files > 0 ? config.max_files - 1 : 0;
    auto sink =
        std::make_shared<spdlog::sinks::rotating_file_sink_mt>(json_file, config.max_file_bytes, old_files);
    sink->set_pattern("%v");
    auto logger = std::make_shared<spdlog::logger>("json", std::move(sink));
    logger->set_level(spdlog::level::trace);
    logger->flush_on(spdlog::level::trace);  // a killed process leaves every line it wrote
    logger->set_error_handler([json_file](const std::string& why) { complain(json_file, why); });
    s.json = std::move(logger);
  } catch (const std::exception& error) {
    return Error{Code::kUnavailable, "log file " + json_file + " cannot be opened: " + error.what()};
  }
  return ok_status();
}

void set_stderr_prefix(std::string_view prefix) {
  std::string pattern;
  for (const char c : prefix) pattern += c == '%' ? std::string("%%") : std::string(1, c);
  streams().text->sinks().front()->set_pattern(pattern + std::string(kTextPattern));
}

bool enabled(Level level) {
  const Streams& s = streams();
  return level >= s.level.load(std::memory_order_relaxed) && !s.muted.load(std::memory_order_relaxed);
}

void mute(bool muted) {
  streams().muted = muted;
}

void write(Level level, std::string_view uid, Epoch epoch, std::string_view text) {
  if (!enabled(level)) return;
  Streams& s = streams();
  try {
    const spdlog::level::level_enum at = spdlog_level(level);
    if (uid.empty())
      s.text->log(at, "{}", printable(text));
    else
      s.text->log(at, "[{} {:x}] {}", printable(uid), epoch, printable(text));
    if (s.json != nullptr) s.json->log(at, "{}", json_line(level, uid, epoch, text));
  } catch (const std::exception&) {
    // Out of memory for a log line: the line is lost, the process is not.
  }
}

void write_formatted(Level level, std::string_view uid, Epoch epoch, fmt::string_view format,
                     fmt::format_args args) {
  try {
    write(level, uid, epoch, fmt::vformat(format, args));
  } catch (const std::exception&) {
    // The same.
  }
}

}  // namespace ringmaster::log
