// What the tests of launcher/ share: folders that vanish, waiting with a limit, /proc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "base/clock.h"

namespace ringmaster::launcher {

class Folder {
 public:
  Folder() {
    std::string pattern = "/tmp/launcher_test.XXXXXX";
    path = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& name) const { return path + "/" + name; }
  std::string path;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void spill(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline bool wait_until(const std::function<bool()>& done, Nanos limit = 5 * kSecond) {
  const Nanos deadline = monotonic_now() + limit;
  while (!done()) {
    if (monotonic_now() > deadline) return false;
    usleep(2'000);
  }
  return true;
}

// Gone, or a zombie that only its parent keeps.
inline bool process_is_gone(pid_t pid) {
  const std::string stat = slurp("/proc/" + std::to_string(pid) + "/stat");
  const size_t end = stat.rfind(')');
  return end == std::string::npos || stat.substr(end + 2, 1) == "Z";
}

}  // namespace ringmaster::launcher
