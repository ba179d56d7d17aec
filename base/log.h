// Logging of a process: text lines to stderr (the supervisor adds the process's name and merges) and JSON
// lines to its own file, through spdlog. Set up once in main(); before that, and in tests, lines go to
// stderr.
//
//   log::info("slot {} attached to {}", slot, holder);
//   log::with(uid_text, epoch).warning("...");       // lines about a request carry its ids
//
// JSON lines: {"t":unix ns,"level":"info","process":"router","pid":1,"uid":"...","epoch":1,"text":"..."}; uid
// and epoch only in lines about a request. The file rotates by size (FILE.jsonl, FILE.1.jsonl, ...).
//
// Any thread. A line never blocks on a reader that stopped (it is dropped from stderr and counted there) and
// never ends the process: a full disk, a closed stderr or a text that is not UTF-8 costs that line only.
// open() ignores SIGPIPE. Never put prompt or output text in a line.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/config.h"
#include "base/ids.h"

namespace ringmaster::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// `process` is the log prefix ("gpu-worker.0"); `json_file` may be empty: stderr only. Not concurrent with
// write(). Errors: a level that does not exist, a file that cannot be opened; lines then still go to stderr.
Status open(const std::string& process, const std::string& json_file, const LogConfig& config);

// Put before every line on stderr from now on; the supervisor, which merges the lines of all, names its own
// this way.
void set_stderr_prefix(std::string_view prefix);

// Writes nothing at all while muted: for a program that plays thousands of processes at once
// (tests/simulate).
void mute(bool muted);

std::string_view name(Level level);  // as in the JSON lines: "info"
bool enabled(Level level);
// `uid` empty and `epoch` 0: not about a request.
void write(Level level, std::string_view uid, Epoch epoch, std::string_view text);
void write_formatted(Level level, std::string_view uid, Epoch epoch, fmt::string_view format,
                     fmt::format_args args);

// What lines about one request carry. Cheap to make; holds a view of `uid`.
struct About {
  std::string_view uid;
  Epoch epoch = 0;

  template <typename... Args>
  void at(Level level, fmt::format_string<Args...> format, Args&&... args) const {
    if (enabled(level)) write_formatted(level, uid, epoch, format, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void debug(fmt::format_string<Args...> f, Args&&... a) const {
    at(Level::kDebug, f, std::forward<Args>(a)...);
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> f, Args&&... a) const {
    at(Level::kInfo, f, std::forward<Args>(a)...);
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> f, Args&&... a) const {
    at(Level::kWarning, f, std::forward<Args>(a)...);
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> f, Args&&... a) const {
    at(Level::kError, f, std::forward<Args>(a)...);
  }
};

inline About with(std::string_view uid, Epoch epoch) {
  return {uid, epoch};
}
template <typename... Args>
void debug(fmt::format_string<Args...> f, Args&&... a) {
  About{}.debug(f, std::forward<Args>(a)...);
}
template <typename... Args>
void info(fmt::format_string<Args...> f, Args&&... a) {
  About{}.info(f, std::forward<Args>(a)...);
}
template <typename... Args>
void warning(fmt::format_string<Args...> f, Args&&... a) {
  About{}.warning(f, std::forward<Args>(a)...);
}
template <typename... Args>
void error(fmt::format_string<Args...> f, Args&&... a) {
  About{}.error(f, std::forward<Args>(a)...);
}

}  // namespace ringmaster::log
