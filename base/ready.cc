#include "base/ready.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string_view>

namespace ringmaster {
namespace {

void say(const UniqueFd& fd, std::string_view text) {
  if (!fd) return;
  // The parent may have died; this process must then end by its parent-death signal, not by SIGPIPE here.
  struct sigaction ignore {};
  struct sigaction before {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &before);
  [[maybe_unused]] const ssize_t written = write(fd.get(), text.data(), text.size());
  sigaction(SIGPIPE, &before, nullptr);
}

}  // namespace

// A parent that reads the line and no more leaves a pipe that fills up in hours: it must not stop the loop.
ReadyLine::ReadyLine(int ready_fd) : fd_(ready_fd) {
  if (fd_) fcntl(fd_.get(), F_SETFL, fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
}

void ReadyLine::announce() {
  say(fd_, "READY\n");
}

void ReadyLine::alive(Nanos now) {
  if (now < next_) return;
  next_ = now + kPeriod;
  say(fd_, ".");
}

}  // namespace ringmaster
