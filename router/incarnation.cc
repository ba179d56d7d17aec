#include "router/incarnation.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>

#include "base/unique_fd.h"

namespace ringmaster::router {
namespace {

Error failed(const std::string& what, const std::string& path) {
  const Code code = errno == EACCES || errno == EPERM ? Code::kPermissionDenied : Code::kInternal;
  return {code, what + " " + path + ": " + std::strerror(errno)};
}

Result<uint32_t> read_former(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return 0u;
    return failed("cannot open", path);
  }
  std::array<char, 32> text{};
  const ssize_t size = ::read(fd, text.data(), text.size());
  ::close(fd);
  if (size < 0) return failed("cannot read", path);
  const char* end = text.data() + size;
  if (size > 0 && end[-1] == '\n') --end;
  uint32_t value = 0;
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || parsed != end || value == 0)
    return Error{Code::kMalformed,
                 path + " does not hold a number from 1 to 4294967295; if no worker of this cluster runs, " +
                     "delete the file and start again"};
  return value;
}

Status write(const std::string& path, int flags, const std::string& text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | flags, 0600));
  if (!fd) return failed("cannot open", path);
  const bool written = ::pwrite(fd.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (!written || ::fsync(fd.get()) != 0) return failed("cannot write", path);
  return ok_status();
}

// Aside and renamed: a crash leaves no file or the whole number.
Status write_first(const std::string& path, const std::string& text) {
  const std::string aside = path + ".new";
  if (auto written = write(aside, O_CREAT | O_TRUNC, text); !written) return written;
  if (std::rename(aside.c_str(), path.c_str()) != 0) return failed("cannot replace", path);
  return ok_status();
}

}  // namespace

Result<uint32_t> next_incarnation(const std::string& state_dir) {
  const std::string path = state_dir + "/incarnation";
  const auto former = read_former(path);
  if (!former) return former.error();
  if (*former == std::numeric_limits<uint32_t>::max())
    return Error{Code::kResourceExhausted,
                 path + " has reached the last incarnation; take the cluster down, delete the file"};
  const uint32_t next = *former + 1;
  // Later numbers go in the place of the former one, whose block is there: a router must come back although
  // the disk is full. A kill cannot halve so short a write, and nothing is left over: numbers only get
  // longer.
  const std::string text = std::to_string(next) + "\n";
  if (auto written = *former == 0 ? write_first(path, text) : write(path, 0, text); !written)
    return written.error();
  return next;
}

}  // namespace ringmaster::router
