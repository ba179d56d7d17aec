// This process in want, while such an object lives: what the system then refuses is refused for real.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace ringmaster::shm {

class LoweredLimit {
 public:
  LoweredLimit(decltype(RLIMIT_AS) what, rlim_t to) : what_(what) {
    EXPECT_EQ(getrlimit(what_, &former_), 0);
    rlimit lowered = former_;
    lowered.rlim_cur = to;
    EXPECT_EQ(setrlimit(what_, &lowered), 0);
  }
  LoweredLimit(const LoweredLimit&) = delete;
  LoweredLimit& operator=(const LoweredLimit&) = delete;
  ~LoweredLimit() { setrlimit(what_, &former_); }

 private:
  const decltype(RLIMIT_AS) what_;
  rlimit former_{};
};

// Half a MiB more than it has: enough for the heap, not for the mapping of a slot of 1 MiB.
class LittleMemory {
 public:
  LittleMemory() : limit_(RLIMIT_AS, mapped() + (512 << 10)) {}

 private:
  static rlim_t mapped() {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  }
  const LoweredLimit limit_;
};

// So many more descriptors than it has.
class FewDescriptors {
 public:
  explicit FewDescriptors(int more) : limit_(RLIMIT_NOFILE, static_cast<rlim_t>(lowest_free() + more)) {}

 private:
  static int lowest_free() {
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(fd);
    return fd;
  }
  const LoweredLimit limit_;
};

}  // namespace ringmaster::shm
