#include "actor/fd_bell.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "shm/memory_file.h"
#include "shm/system_error.h"

namespace ringmaster::actor {
namespace {

constexpr int kStop = -1;    // in place of a descriptor: the event that ends the thread
constexpr int kEvents = 32;  // a round; the rest comes with the next

struct Watched {
  int fd;
  bool ready;
};

}  // namespace

struct FdBell::State {
  explicit State(shm::Doorbell& doorbell) : bell(doorbell) {}

  void run();

  shm::Doorbell& bell;
  shm::UniqueFd epoll, wake;
  std::thread thread;
  std::vector<int> taken;  // owner only
  std::atomic<bool> any{false};

  std::mutex mutex;
  std::condition_variable ended_changed;
  std::vector<Watched> watched;  // GUARDED_BY(mutex), in order of add()
  bool ended = false;            // GUARDED_BY(mutex)
};

void FdBell::State::run() {
  epoll_event events[kEvents];
  for (bool stopping = false; !stopping;) {
    const int count = epoll_wait(epoll.get(), events, kEvents, -1);  // its end is the event of `wake`
    if (count < 0 && errno != EINTR) break;
    if (count <= 0) continue;
    {
      const std::lock_guard lock(mutex);
      for (int i = 0; i < count; ++i) {
        stopping |= events[i].data.fd == kStop;
        // An edge of a former use of the same number may land here too: a report that finds nothing is
        // allowed.
        for (Watched& w : watched) w.ready |= w.fd == events[i].data.fd;
      }
      any.store(true, std::memory_order_release);  // pairs with: acquire in take_ready
    }
    bell.ring();
  }
  const std::lock_guard lock(mutex);
  ended = true;
  ended_changed.notify_all();
}

FdBell::FdBell(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<FdBell>> FdBell::start(shm::Doorbell& bell) {
  auto state = std::make_unique<State>(bell);
  state->epoll = shm::UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  state->wake = shm::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state->epoll || !state->wake) return shm::system_error("make the epoll of the doorbell thread", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = kStop;
  if (epoll_ctl(state->epoll.get(), EPOLL_CTL_ADD, state->wake.get(), &event) != 0) {
    return shm::system_error("watch the doorbell thread's own event", errno);
  }
  // Signals are for the loop's thread, never for this one.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  state->thread = std::thread([s = state.get()] { s->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return std::unique_ptr<FdBell>(new FdBell(std::move(state)));
}

FdBell::~FdBell() {
  stop(kNever);
  state_->thread.join();
}

Status FdBell::add(int fd) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  for (const Watched& w : s.watched) {
    if (w.fd == fd) {
      return Error{Code::kAlreadyExists, "descriptor " + std::to_string(fd) + " is watched already"};
    }
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  event.data.fd = fd;
  if (epoll_ctl(s.epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return shm::system_error("watch descriptor " + std::to_string(fd), errno);
  }
  s.watched.push_back({fd, true});
  s.any.store(true, std::memory_order_relaxed);
  s.bell.ring();
  return ok_status();
}

void FdBell::remove(int fd) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const auto found =
      std::find_if(s.watched.begin(), s.watched.end(), [&](const Watched& w) { return w.fd == fd; });
  if (found == s.watched.end()) return;
  s.watched.erase(found);
  epoll_ctl(s.epoll.get(), EPOLL_CTL_DEL, fd, nullptr);  // fails only when it is closed already
}

const std::vector<int>& FdBell::take_ready() {
  State& s = *state_;
  s.taken.clear();
  if (!s.any.load(std::memory_order_acquire)) return s.taken;  // pairs with: release in State::run
  const std::lock_guard lock(s.mutex);
  s.any.store(false, std::memory_order_relaxed);
  for (Watched& w : s.watched) {
    if (std::exchange(w.ready, false)) s.taken.push_back(w.fd);
  }
  return s.taken;
}

bool FdBell::stop(Nanos deadline) {
  State& s = *state_;
  // Sooner or later it is written, or full and therefore readable already: without it nothing ends the thread.
  const uint64_t one = 1;
  while (write(s.wake.get(), &one, sizeof one) < 0 && errno != EAGAIN) {
    if (deadline != kNever && monotonic_now() >= deadline) return false;
  }
  std::unique_lock lock(s.mutex);
  if (deadline == kNever) {
    s.ended_changed.wait(lock, [&] { return s.ended; });
    return true;
  }
  const std::chrono::steady_clock::time_point until{
      std::chrono::nanoseconds(deadline)};  // CLOCK_MONOTONIC as well
  return s.ended_changed.wait_until(lock, until, [&] { return s.ended; });
}

}  // namespace ringmaster::actor
