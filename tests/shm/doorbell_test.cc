#include "shm/doorbell.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/shm/process.h"

namespace ringmaster::shm {
namespace {

UniqueFd duplicate(int fd) {
  return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

TEST(Doorbell, DeadlineEndsTheWait) {
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell.ok());
  const Nanos start = monotonic_now();
  EXPECT_FALSE(bell->wait(bell->sequence(), start + 20 * kMillisecond));
  const Nanos took = monotonic_now() - start;
  EXPECT_GE(took, 20 * kMillisecond);
  EXPECT_LT(took, kSecond);
}

TEST(Doorbell, DeadlineInThePastReturnsAtOnce) {
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell.ok());
  const Nanos start = monotonic_now();
  EXPECT_FALSE(bell->wait(bell->sequence(), 0));
  EXPECT_FALSE(bell->wait(bell->sequence(), -5));
  EXPECT_FALSE(bell->wait(bell->sequence(), start - kSecond, kSecond));
  EXPECT_LT(monotonic_now() - start, 500 * kMillisecond);
}

TEST(Doorbell, RungSinceSeenReturnsAtOnceAndSpinEndsAtTheDeadline) {
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell.ok());
  const uint32_t seen = bell->sequence();
  bell->ring();
  EXPECT_TRUE(bell->wait(seen, 0));
  EXPECT_TRUE(bell->wait(seen, kNever));
  const Nanos start = monotonic_now();
  EXPECT_FALSE(bell->wait(bell->sequence(), start + 10 * kMillisecond, kNever));
  EXPECT_LT(monotonic_now() - start, kSecond);
}

TEST(Doorbell, SleepingUsesNoCpu) {
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell.ok());
  rusage before{}, after{};
  getrusage(RUSAGE_THREAD, &before);
  EXPECT_FALSE(bell->wait(bell->sequence(), monotonic_now() + 300 * kMillisecond));
  getrusage(RUSAGE_THREAD, &after);
  const auto micros = [](const timeval& t) { return t.tv_sec * 1'000'000 + t.tv_usec; };
  EXPECT_LT(
      micros(after.ru_utime) + micros(after.ru_stime) - micros(before.ru_utime) - micros(before.ru_stime),
      20'000);
}

TEST(Doorbell, WakesASleeperInAnotherProcess) {
  auto bell = Doorbell::create();
  auto ready = Doorbell::create();
  ASSERT_TRUE(bell.ok() && ready.ok());
  Child sleeper([&] {
    const uint32_t seen = bell->sequence();
    ready->ring();
    return bell->wait(seen, monotonic_now() + 20 * kSecond) ? 7 : 1;
  });
  ASSERT_TRUE(ready->wait(0, monotonic_now() + 10 * kSecond));
  usleep(20'000);  // most likely asleep by now; if not, the ring must be seen all the same
  const Nanos start = monotonic_now();
  bell->ring();
  EXPECT_EQ(sleeper.wait(), 7);
  EXPECT_LT(monotonic_now() - start, 5 * kSecond);
}

TEST(Doorbell, AttachedFromItsDescriptor) {
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell.ok());
  auto other = Doorbell::attach(duplicate(bell->fd()));
  ASSERT_TRUE(other.ok());
  const uint32_t seen = bell->sequence();
  other->ring();
  EXPECT_EQ(bell->sequence(), seen + 1);
}

TEST(Doorbell, AttachRefusesOtherFiles) {
  auto file = MemoryFile::create("test", kPage);
  ASSERT_TRUE(file.ok());
  auto no_magic = Doorbell::attach(duplicate(file->fd()));
  ASSERT_FALSE(no_magic.ok());
  EXPECT_EQ(no_magic.error().code, Code::kMalformed);
  const uint32_t version = kLayoutVersion + 1;
  std::memcpy(file->bytes().data(), &kBellMagic, sizeof kBellMagic);
  std::memcpy(file->bytes().data() + 8, &version, sizeof version);
  auto newer = Doorbell::attach(duplicate(file->fd()));
  ASSERT_FALSE(newer.ok());
  EXPECT_EQ(newer.error().code, Code::kUnsupportedVersion);
}

// Two processes hand a number back and forth, each sleeping for the other: one lost wake-up and a wait runs
// into its deadline of 10 s, which the test counts.
TEST(Doorbell, NoLostWakeUpsInPingPong) {
  constexpr uint32_t kRounds = 30'000;
  auto memory = MemoryFile::create("test", kPage);
  auto here = Doorbell::create();
  auto there = Doorbell::create();
  ASSERT_TRUE(memory.ok() && here.ok() && there.ok());
  auto* ball = new (memory->bytes().data()) std::atomic<uint32_t>(0);
  const auto play = [&](uint32_t parity, Doorbell& own, Doorbell& other) {
    for (;;) {
      const uint32_t seen = own.sequence();
      const uint32_t value = ball->load(std::memory_order_relaxed);  // the bell orders it
      if (value >= kRounds) return 0;
      if (value % 2 == parity) {
        ball->store(value + 1, std::memory_order_relaxed);
        other.ring();
      } else if (!own.wait(seen, monotonic_now() + 10 * kSecond)) {
        return 1;
      }
    }
  };
  Child child([&] { return play(1, *there, *here); });
  EXPECT_EQ(play(0, *here, *there), 0);
  there->ring();
  EXPECT_EQ(child.wait(), 0);
}

// Many ringers, one owner that sleeps as often as it can: every published number is seen.
TEST(Doorbell, NoLostWakeUpsWithManyRingers) {
  constexpr int kRingers = 3;
  constexpr int kEach = 20'000;
  auto bell = Doorbell::create();
  ASSERT_TRUE(bell.ok());
  std::atomic<int> published{0};
  std::atomic<int> seen_by_owner{0};
  std::vector<std::thread> ringers;
  for (int i = 0; i < kRingers; ++i) {
    ringers.emplace_back([&] {
      for (int k = 0; k < kEach; ++k) {
        const int mine = published.fetch_add(1, std::memory_order_relaxed) + 1;
        bell->ring();
        // Wait for the owner now and then, so that it finds nothing and sleeps.
        while (k % 16 == 0 && seen_by_owner.load(std::memory_order_relaxed) < mine) std::this_thread::yield();
      }
    });
  }
  int timeouts = 0;
  while (seen_by_owner.load(std::memory_order_relaxed) < kRingers * kEach) {
    const uint32_t seen = bell->sequence();
    const int now = published.load(std::memory_order_relaxed);
    if (now > seen_by_owner.load(std::memory_order_relaxed)) {
      seen_by_owner.store(now, std::memory_order_relaxed);
    } else if (!bell->wait(seen, monotonic_now() + 5 * kSecond)) {
      ++timeouts;
    }
  }
  for (auto& ringer : ringers) ringer.join();
  EXPECT_EQ(timeouts, 0);
}

}  // namespace
}  // namespace ringmaster::shm
