// The merged log on the supervisor's stderr: one prefix a process, coloured on a terminal. Lines are whole or
// not there: a reader that stopped costs lines (counted), never the supervisor's time. Thread: the
// supervisor's only one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringmaster::launcher {

class MergedOutput {
 public:
  // `names`: all processes, for the width of the prefix and stable colours.
  MergedOutput(int fd, bool colour, const std::vector<std::string>& names);

  std::string prefix(std::string_view name) const;  // "gpu-worker.0 | ", perhaps with colour codes
  // Control characters of `text` are replaced: it comes from another process.
  void line(std::string_view name, std::string_view text);

 private:
  bool put(std::string_view text);
  int fd_;
  bool colour_;
  std::vector<std::string> names_;
  size_t width_ = 0;
  uint64_t dropped_ = 0;
};

// Cuts a byte stream into lines. A line longer than `max_bytes` is cut there.
class LineSplitter {
 public:
  explicit LineSplitter(size_t max_bytes) : max_bytes_(max_bytes) {}
  template <typename Take>  // Take(std::string_view line)
  void feed(std::string_view bytes, Take take) {
    for (const char c : bytes) {
      if (c != '\n') partial_ += c;
      if (c == '\n' || partial_.size() >= max_bytes_) finish(take);
    }
  }
  template <typename Take>
  void finish(Take take) {  // what has no newline yet
    if (partial_.empty()) return;
    take(std::string_view(partial_));
    partial_.clear();
  }

 private:
  size_t max_bytes_;
  std::string partial_;
};

}  // namespace ringmaster::launcher
