#include "base/ready.h"

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

void ReadyLine::announce() {
  say(fd_, "READY\n");
}

void ReadyLine::alive(Nanos now) {
  if (now < next_) return;
  next_ = now + kPeriod;
  say(fd_, ".");
}

}  // namespace ringmaster
