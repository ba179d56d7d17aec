#include "actor/loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "shm/memory_file.h"
#include "shm/system_error.h"

namespace ringmaster::actor {
namespace {

constexpr int kReadAgain = 8;  // of a descriptor that should not fail at all

sigset_t loop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

struct Loop::Watch {
  int fd;
  std::function<void(Nanos)> readable;
  bool removed = false;
};

struct Loop::Signals {
  shm::UniqueFd fd;
  std::function<void(int, Nanos)> callback;
};

Status Loop::block_signals() {
  const sigset_t set = loop_signals();
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    return shm::system_error("block SIGTERM and SIGINT", error);
  }
  if (signal(SIGPIPE, SIG_IGN) == SIG_ERR) return shm::system_error("ignore SIGPIPE", errno);
  return ok_status();
}

Loop::Loop(Actor& actor, Transport& transport, const LoopOptions& options, std::unique_ptr<Waiter> waiter)
    : actor_(actor), transport_(transport), options_(options), waiter_(std::move(waiter)) {}

Loop::~Loop() = default;

Result<std::unique_ptr<Loop>> Loop::create(Actor& actor, Transport& transport, shm::Doorbell& bell,
                                           const LoopOptions& options) {
  return create(actor, transport, options, Waiter::on_bell(bell));
}

Result<std::unique_ptr<Loop>> Loop::create(Actor& actor, Transport& transport, const LoopOptions& options) {
  return create(actor, transport, options, Waiter::on_descriptors());
}

Result<std::unique_ptr<Loop>> Loop::create(Actor& actor, Transport& transport, const LoopOptions& options,
                                           Result<std::unique_ptr<Waiter>> waiter) {
  if (!waiter) return std::move(waiter).error();
  for (const int fd : transport.fds()) {
    if (auto ok = (*waiter)->add(fd); !ok) return std::move(ok).error();
  }
  return std::unique_ptr<Loop>(new Loop(actor, transport, options, std::move(waiter).value()));
}

Status Loop::on_signal(std::function<void(int, Nanos)> callback) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  if (sigismember(&blocked, SIGTERM) != 1 || sigismember(&blocked, SIGINT) != 1) {
    return Error{Code::kInternal, "Loop::on_signal needs Loop::block_signals() before any thread is started"};
  }
  if (signals_) return Error{Code::kAlreadyExists, "Loop::on_signal was called twice"};
  const sigset_t set = loop_signals();
  shm::UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return shm::system_error("make a signalfd", errno);
  signals_ = std::make_unique<Signals>(Signals{std::move(fd), std::move(callback)});
  return watch(signals_->fd.get(), [this](Nanos now) {
    // Until it is empty: a signal left behind by a read that failed for once would wait for the next one.
    signalfd_siginfo info;
    for (int failed = 0; failed < kReadAgain;) {
      if (read(signals_->fd.get(), &info, sizeof info) == sizeof info)
        signals_->callback(static_cast<int>(info.ssi_signo), now);
      else if (errno == EAGAIN)
        return;
      else
        ++failed;
    }
  });
}

Status Loop::watch(int fd, std::function<void(Nanos)> readable) {
  if (auto ok = waiter_->add(fd); !ok) return ok;
  watches_.push_back(std::make_shared<Watch>(Watch{fd, std::move(readable)}));
  return ok_status();
}

void Loop::unwatch(int fd) {
  const auto found =
      std::find_if(watches_.begin(), watches_.end(), [&](const auto& w) { return w->fd == fd; });
  if (found == watches_.end()) return;
  waiter_->remove(fd);
  (*found)->removed = true;  // call_ready() may hold it
  watches_.erase(found);
}

void Loop::add_source(std::function<bool(Nanos)> poll) {
  sources_.push_back(std::move(poll));
}
void Loop::add_flush(std::function<void()> flush) {
  flushes_.push_back(std::move(flush));
}

size_t Loop::call_ready(Nanos now) {
  const std::vector<int>& ready = waiter_->take_ready();
  if (ready.empty()) return 0;
  // Callbacks may change the watches, so those to be called are held first.
  std::vector<std::shared_ptr<Watch>> due;
  for (const int fd : ready) {
    for (const auto& w : watches_) {
      if (w->fd == fd) due.push_back(w);
    }
  }
  for (const auto& w : due) {
    if (!w->removed) w->readable(now);
  }
  return due.size();
}

bool Loop::turn(Nanos now) {
  ++counters_.turns;
  const size_t messages = transport_.poll(actor_, now, options_.budget);
  counters_.messages += messages;
  bool work = messages > 0;
  work |= call_ready(now) > 0;
  for (const auto& source : sources_) work |= source(now);
  next_timer_ = actor_.run_timers(now);
  for (const auto& flush : flushes_) flush();
  return work;
}

void Loop::run() {
  // Deadlines are met to the microsecond. The 50 us by which Linux may delay a timer of an ordinary thread
  // would lengthen every step of a device that is driven by one.
  constexpr unsigned long kTimerSlackNanos = 1000;
  prctl(PR_SET_TIMERSLACK, kTimerSlackNanos, 0, 0, 0);
  while (!stop_.load(std::memory_order_acquire)) {  // pairs with: release in stop
    // Read before looking at anything: whatever arrives behind our back makes the wait below return at once.
    const uint32_t seen = waiter_->sequence();
    const Nanos now = monotonic_now();
    if (turn(now) || next_timer_ <= now || stop_.load(std::memory_order_acquire) || transport_.ready())
      continue;
    ++counters_.sleeps;
    waiter_->wait(seen, std::min(next_timer_, now + options_.max_sleep), options_.spin);
  }
  stop_.store(false, std::memory_order_relaxed);
}

void Loop::stop() {
  stop_.store(true, std::memory_order_release);  // pairs with: acquire in run
  waiter_->wake();
}

}  // namespace ringmaster::actor
