#include "router/incarnation.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>

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

bool write_all(int fd, const std::string& text) {
  return ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
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

  // Written aside and renamed: a crash leaves the former number or the new one, never half of it.
  const std::string aside = path + ".new";
  const int fd = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return failed("cannot create", aside);
  const bool written = write_all(fd, std::to_string(next) + "\n");
  const bool closed = ::close(fd) == 0;
  if (!written || !closed) return failed("cannot write", aside);
  if (std::rename(aside.c_str(), path.c_str()) != 0) return failed("cannot replace", path);
  return next;
}

}  // namespace ringmaster::router
