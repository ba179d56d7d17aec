// Reads the JSON lines that base/log.h leaves in STATE/logs: the files of one process in order of age, across
// rotation, and several processes merged by time. Tolerates what a crash or a full disk leaves: lines that do
// not parse are skipped. Thread: one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace ringmaster::launcher {

struct LogLine {
  int64_t t = 0;  // unix nanoseconds
  std::string process;
  std::string level;
  std::string uid;  // empty: not about a request
  std::string text;
  std::string json;  // the line as it stands
};
std::optional<LogLine> parse_log_line(const std::string& json);
std::string readable(const LogLine& line);  // "2026-01-02 03:04:05.678 router I text"

// One process's files: NAME.N.jsonl (oldest) ... NAME.1.jsonl, NAME.jsonl.
class LogStream {
 public:
  LogStream(std::string folder, std::string process);
  // The next whole line; nothing: none there now, perhaps later.
  std::optional<LogLine> next();
  const std::string& process() const { return process_; }

 private:
  std::string file(uint32_t age) const;
  bool open_oldest();
  bool open_newer();  // the file that followed the present one, if there is one
  bool read_more();

  std::string folder_;
  std::string process_;
  UniqueFd fd_;
  uint64_t inode_ = 0;
  std::string buffer_;
  size_t at_ = 0;  // of the first byte in buffer_ not handed out
};

// All processes of a folder (`filter` empty) or those of one name or kind ("gpu-worker.0", "gpu-worker").
class LogReader {
 public:
  LogReader(std::string folder, std::string filter);
  // Looks for processes that began to log since; call now and then when following.
  void find_streams();
  size_t streams() const { return heads_.size(); }
  std::vector<std::string> processes() const;
  // The oldest of the lines that are there.
  std::optional<LogLine> next();

 private:
  struct Head {
    LogStream stream;
    std::optional<LogLine> line;
  };
  std::string folder_;
  std::string filter_;
  std::vector<Head> heads_;
};

}  // namespace ringmaster::launcher
