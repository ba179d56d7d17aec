#include "actor/loop.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actor/zmq_transport.h"
#include "tests/actor/recorder.h"

namespace ringmaster::actor {
namespace {

using shm::UniqueFd;
using testing::ElementsAre;

// A transport whose queue the test fills.
class QueueTransport final : public Transport {
 public:
  std::deque<std::string> queue;
  std::vector<size_t> budgets;
  int asked_ready = 0;
  std::function<void()> on_ready;

  Sent send(Channel, std::string_view, Bytes) override { return Sent::kOk; }
  size_t poll(Actor& actor, Nanos now, size_t budget) override {
    budgets.push_back(budget);
    size_t count = 0;
    for (; count < budget && !queue.empty(); ++count) {
      const std::string text = std::move(queue.front());
      queue.pop_front();
      actor.receive(0, "", bytes_of(text), now);
    }
    return count;
  }
  bool ready() override {
    ++asked_ready;
    if (on_ready) on_ready();
    return !queue.empty();
  }
  std::vector<int> fds() const override { return {}; }
};

struct Loops : testing::Test {
  std::unique_ptr<Loop> make(const LoopOptions& options = {}) {
    return Loop::create(actor, transport, bell, options).value();
  }
  static std::pair<UniqueFd, UniqueFd> make_pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
  static void drain(int fd) {
    char buffer[64];
    while (read(fd, buffer, sizeof buffer) > 0) {
    }
  }

  shm::Doorbell bell = shm::Doorbell::create().value();
  Recorder actor;
  QueueTransport transport;
};

TEST_F(Loops, OrderOfATurn) {
  auto loop = make();
  std::vector<std::string> order;
  auto [in, out] = make_pipe();
  transport.queue = {"m"};
  actor.on_receive = [&](auto...) { order.push_back("message"); };
  actor.on_timers = [&](Nanos) {
    order.push_back("timers");
    return kNever;
  };
  ASSERT_TRUE(loop->watch(in.get(), [&](Nanos) { order.push_back("readable"); }).ok());
  loop->add_source([&](Nanos) {
    order.push_back("source");
    return false;
  });
  loop->add_flush([&] { order.push_back("flush"); });
  EXPECT_TRUE(loop->turn(7));
  EXPECT_THAT(order, ElementsAre("message", "readable", "source", "timers", "flush"));
  EXPECT_THAT(actor.received_at, ElementsAre(7));
  EXPECT_FALSE(loop->turn(8));
  EXPECT_EQ(loop->counters().turns, 2u);
  EXPECT_EQ(loop->counters().messages, 1u);
}

TEST_F(Loops, TheBudgetBoundsATurn) {
  auto loop = make({.budget = 3});
  transport.queue = {"1", "2", "3", "4", "5"};
  EXPECT_TRUE(loop->turn(0));
  EXPECT_EQ(actor.got.size(), 3u);
  EXPECT_TRUE(loop->turn(0));
  EXPECT_EQ(actor.got.size(), 5u);
}

TEST_F(Loops, AnIdleLoopSleepsAndATimerWakesItInTime) {
  auto loop = make();
  const Nanos due = monotonic_now() + 50 * kMillisecond;
  actor.on_timers = [&](Nanos now) {
    if (now < due) return due;
    loop->stop();
    return kNever;
  };
  loop->run();
  EXPECT_GE(actor.timers_ran_at.back(), due);
  EXPECT_LT(actor.timers_ran_at.back(), due + kSecond);
  EXPECT_LT(loop->counters().turns, 10u);
}

TEST_F(Loops, SleepIsBoundedEvenWithoutTimers) {
  auto loop = make({.max_sleep = 10 * kMillisecond});
  actor.on_timers = [&](Nanos) {
    if (loop->counters().turns >= 5) loop->stop();
    return kNever;
  };
  const Nanos start = monotonic_now();
  loop->run();
  EXPECT_GE(monotonic_now() - start, 30 * kMillisecond);
  EXPECT_EQ(loop->counters().turns, 5u);
}

// A send in run_timers or a flush may swallow the edge of a message: the loop has to ask before it sleeps.
TEST_F(Loops, AsksTheTransportBeforeSleeping) {
  auto loop = make({.max_sleep = 20 * kSecond});
  transport.on_ready = [&] {
    if (transport.asked_ready == 1) transport.queue.push_back("swallowed edge");
  };
  actor.on_receive = [&](auto...) { loop->stop(); };
  const Nanos start = monotonic_now();
  loop->run();
  EXPECT_LT(monotonic_now() - start, 5 * kSecond);
  EXPECT_THAT(actor.got, ElementsAre("0  swallowed edge"));
}

TEST_F(Loops, SourcesAreWokenByTheirRing) {
  auto loop = make({.max_sleep = 20 * kSecond});
  std::atomic<int> published{0};
  int seen = 0;
  loop->add_source([&](Nanos) {
    const bool work = published.load() > seen;
    seen = published.load();
    if (seen == 3) loop->stop();
    return work;
  });
  std::thread other([&] {
    for (int i = 0; i < 3; ++i) {
      usleep(10'000);
      ++published;
      bell.ring();
    }
  });
  const Nanos start = monotonic_now();
  loop->run();
  other.join();
  EXPECT_LT(monotonic_now() - start, 5 * kSecond);
}

TEST_F(Loops, StopFromAnotherThreadAndRunAgain) {
  auto loop = make({.max_sleep = 20 * kSecond});
  for (int i = 0; i < 3; ++i) {
    std::thread other([&] {
      usleep(10'000);
      loop->stop();
    });
    const Nanos start = monotonic_now();
    loop->run();
    EXPECT_LT(monotonic_now() - start, 5 * kSecond);
    other.join();
  }
  loop->stop();
  loop->run();  // a stop before run() counts
}

TEST_F(Loops, CallbacksMayChangeTheWatches) {
  auto loop = make();
  auto [a_in, a_out] = make_pipe();
  auto [b_in, b_out] = make_pipe();
  std::vector<std::string> calls;
  const int a = a_in.get(), b = b_in.get();
  ASSERT_TRUE(loop->watch(a,
                          [&](Nanos) {
                            calls.push_back("a");
                            drain(a);
                            loop->unwatch(a);  // itself
                            loop->unwatch(b);  // one that is due in the same turn
                          })
                  .ok());
  ASSERT_TRUE(loop->watch(b, [&](Nanos) { calls.push_back("b"); }).ok());
  EXPECT_TRUE(loop->turn(0));
  EXPECT_THAT(calls, ElementsAre("a"));
  ASSERT_EQ(write(a_out.get(), "x", 1), 1);
  ASSERT_EQ(write(b_out.get(), "x", 1), 1);
  usleep(20'000);
  EXPECT_FALSE(loop->turn(0));
  EXPECT_THAT(calls, ElementsAre("a"));
  ASSERT_TRUE(loop->watch(b, [&](Nanos) { calls.push_back("b again"); }).ok());
  EXPECT_TRUE(loop->turn(0));
  EXPECT_THAT(calls, ElementsAre("a", "b again"));
}

TEST_F(Loops, AReadableDescriptorEndsTheSleep) {
  auto loop = make({.max_sleep = 20 * kSecond});
  auto [in, out] = make_pipe();
  int calls = 0;
  ASSERT_TRUE(loop->watch(in.get(),
                          [&](Nanos) {
                            drain(in.get());
                            if (++calls == 2) loop->stop();
                          })
                  .ok());
  std::thread other([&] {
    usleep(20'000);
    ASSERT_EQ(write(out.get(), "x", 1), 1);
  });
  const Nanos start = monotonic_now();
  loop->run();
  other.join();
  EXPECT_LT(monotonic_now() - start, 5 * kSecond);
}

TEST_F(Loops, SignalsArriveAsCalls) {
  auto ready = shm::Doorbell::create().value();
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    if (!Loop::block_signals().ok()) _exit(1);
    auto own = shm::Doorbell::create().value();
    auto loop = Loop::create(actor, transport, own, {.max_sleep = 20 * kSecond}).value();
    int terms = 0, ints = 0;
    const auto ok = loop->on_signal([&](int signal, Nanos) {
      terms += signal == SIGTERM;
      ints += signal == SIGINT;
      if (terms >= 1 && ints >= 1) loop->stop();
    });
    if (!ok.ok()) _exit(2);
    ready.ring();
    loop->run();
    _exit(40 + terms + ints);
  }
  ASSERT_TRUE(ready.wait(0, monotonic_now() + 10 * kSecond));
  kill(child, SIGTERM);
  usleep(10'000);
  kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST_F(Loops, OnSignalWithoutBlockedSignalsIsRefused) {
  auto loop = make();
  const auto ok = loop->on_signal([](int, Nanos) {});
  ASSERT_FALSE(ok.ok());
  EXPECT_EQ(ok.error().code, Code::kInternal);
}

TEST_F(Loops, LeavesNoDescriptorsBehind) {
  const auto count = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = count();
  for (int i = 0; i < 5; ++i) make()->turn(0);
  EXPECT_EQ(count(), before);
}

// Two loops in two threads over real sockets, one of each kind. Each answers and then sleeps; the timers send as well, which is
// what swallows edges. With one lost, a side sleeps for 20 s and the deadline below is missed.
TEST(LoopOverZmq, NoMessageWaitsForASleeper) {
  constexpr int kRounds = 3000;
  char name[] = "/tmp/rm-loop-test.XXXXXX";
  const std::string directory = mkdtemp(name);
  const std::string endpoint = "ipc://" + directory + "/s";
  auto router = ZmqTransport::router({{endpoint, true}}).value();
  auto worker = ZmqTransport::worker(endpoint, "w").value();
  auto worker_bell = shm::Doorbell::create().value();
  Recorder router_actor, worker_actor;
  const LoopOptions options{.max_sleep = 20 * kSecond};
  auto router_loop = Loop::create(router_actor, *router, options).value();
  auto worker_loop = Loop::create(worker_actor, *worker, worker_bell, options).value();

  router_actor.on_receive = [&](Channel, std::string_view peer, Bytes message, Nanos) {
    if (text_of(message) != "noise") router->send(0, peer, message);
  };
  router_actor.on_timers = [&](Nanos now) {
    router->send(0, "w", bytes_of("noise"));  // touches the socket behind poll()
    return now + 100 * kMicrosecond;
  };
  int rounds = 0;
  worker_actor.on_receive = [&](Channel, std::string_view, Bytes message, Nanos) {
    if (text_of(message) == "noise") return;
    if (++rounds == kRounds) return worker_loop->stop();
    worker->send(0, "", bytes_of("ball"));
  };
  worker_actor.on_timers = [&](Nanos now) {
    worker->send(0, "", bytes_of("noise"));
    return now + 10 * kMillisecond;
  };
  worker->send(0, "", bytes_of("ball"));
  std::thread thread([&] { router_loop->run(); });
  const Nanos start = monotonic_now();
  worker_loop->run();
  const Nanos took = monotonic_now() - start;
  router_loop->stop();
  thread.join();
  EXPECT_EQ(rounds, kRounds);
  EXPECT_LT(took, 15 * kSecond);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace ringmaster::actor
