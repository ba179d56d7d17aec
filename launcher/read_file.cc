#include "launcher/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace ringmaster::launcher {

std::string read_file(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char bytes[4096];
  for (;;) {
    const ssize_t got = read(fd.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return {};
    if (got == 0) return text;
    text.append(bytes, static_cast<size_t>(got));
  }
}

}  // namespace ringmaster::launcher
