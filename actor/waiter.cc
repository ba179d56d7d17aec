#include "actor/waiter.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "actor/fd_bell.h"
#include "shm/memory_file.h"
#include "shm/system_error.h"

namespace ringmaster::actor {
namespace {

class BellWaiter final : public Waiter {
 public:
  BellWaiter(shm::Doorbell& bell, std::unique_ptr<FdBell> fds) : bell_(bell), fds_(std::move(fds)) {}

  Status add(int fd) override { return fds_->add(fd); }
  void remove(int fd) override { fds_->remove(fd); }
  const std::vector<int>& take_ready() override { return fds_->take_ready(); }
  uint32_t sequence() override { return bell_.sequence(); }
  void wait(uint32_t seen, Nanos deadline, Nanos spin) override { bell_.wait(seen, deadline, spin); }
  void wake() override { bell_.ring(); }

 private:
  shm::Doorbell& bell_;
  std::unique_ptr<FdBell> fds_;
};

class EpollWaiter final : public Waiter {
 public:
  Status open();

  Status add(int fd) override;
  void remove(int fd) override;
  const std::vector<int>& take_ready() override;
  uint32_t sequence() override { return 0; }  // epoll keeps the edges
  void wait(uint32_t seen, Nanos deadline, Nanos spin) override;
  void wake() override {
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof one);  // full: nobody has taken 2^64 - 2 wake-ups, it is readable
  }

 private:
  static constexpr int kWake = -1;    // in place of a descriptor
  static constexpr int kEvents = 32;  // a look; the rest comes with the next
  struct Watched {
    int fd;
    bool ready;
  };

  Status watch(int fd, int name);
  bool look(Nanos timeout);
  void sleep(Nanos deadline, Nanos spin);

  shm::UniqueFd epoll_, wake_;
  std::vector<Watched> watched_;  // in order of add()
  std::vector<int> taken_;
  bool woken_ = false;  // since the last wait(); a look between may have taken the edge
};

Status EpollWaiter::open() {
  epoll_ = shm::UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = shm::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !wake_) return shm::system_error("make the epoll of the loop", errno);
  if (auto ok = watch(wake_.get(), kWake); !ok) return ok;
  const timespec none{};
  epoll_event event;
  if (epoll_pwait2(epoll_.get(), &event, 1, &none, nullptr) >= 0) return ok_status();
  if (errno == ENOSYS)
    return Error{Code::kUnsupported, "this kernel has no epoll_pwait2; Linux 5.11 or later is needed"};
  return shm::system_error("wait in the epoll of the loop", errno);
}

Status EpollWaiter::watch(int fd, int name) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  event.data.fd = name;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return ok_status();
  if (errno == EEXIST)
    return Error{Code::kAlreadyExists, "descriptor " + std::to_string(fd) + " is watched already"};
  return shm::system_error("watch descriptor " + std::to_string(fd), errno);
}

Status EpollWaiter::add(int fd) {
  if (auto ok = watch(fd, fd); !ok) return ok;
  watched_.push_back({fd, true});
  return ok_status();
}

void EpollWaiter::remove(int fd) {
  if (std::erase_if(watched_, [&](const Watched& w) { return w.fd == fd; }) > 0)
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);  // fails only when it is closed already
}

// Takes the edges that are there, waiting up to `timeout` for the first; whether there was one.
bool EpollWaiter::look(Nanos timeout) {
  const timespec time{static_cast<time_t>(timeout / kSecond), static_cast<long>(timeout % kSecond)};
  epoll_event events[kEvents];
  const int count = epoll_pwait2(epoll_.get(), events, kEvents, &time, nullptr);
  for (int i = 0; i < count; ++i) {
    woken_ |= events[i].data.fd == kWake;
    for (Watched& w : watched_) w.ready |= w.fd == events[i].data.fd;
  }
  return count > 0;
}

const std::vector<int>& EpollWaiter::take_ready() {
  look(0);
  taken_.clear();
  for (Watched& w : watched_)
    if (std::exchange(w.ready, false)) taken_.push_back(w.fd);
  return taken_;
}

void EpollWaiter::wait(uint32_t, Nanos deadline, Nanos spin) {
  if (!woken_) sleep(deadline, spin);
  woken_ = false;
}

void EpollWaiter::sleep(Nanos deadline, Nanos spin) {
  const Nanos start = monotonic_now();
  const Nanos spin_until = std::min(deadline, spin < kNever - start ? start + spin : kNever);
  for (Nanos now = start; now < spin_until; now = monotonic_now())
    if (look(0)) return;
  look(std::max<Nanos>(deadline - monotonic_now(), 0));
}

}  // namespace

Result<std::unique_ptr<Waiter>> Waiter::on_bell(shm::Doorbell& bell) {
  auto fds = FdBell::start(bell);
  if (!fds) return std::move(fds).error();
  return std::unique_ptr<Waiter>(std::make_unique<BellWaiter>(bell, std::move(fds).value()));
}

Result<std::unique_ptr<Waiter>> Waiter::on_descriptors() {
  auto waiter = std::make_unique<EpollWaiter>();
  if (auto ok = waiter->open(); !ok) return std::move(ok).error();
  return std::unique_ptr<Waiter>(std::move(waiter));
}

}  // namespace ringmaster::actor
