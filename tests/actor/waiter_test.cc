// Both kinds of waiter, held to the same rules.
#include "actor/waiter.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

namespace ringmaster::actor {
namespace {

using shm::UniqueFd;

constexpr Nanos kLong = 20 * kSecond;  // a wait that ends sooner was ended

enum class Kind { kBell, kDescriptors };

class Waiters : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Waiter> make() {
    return GetParam() == Kind::kDescriptors ? Waiter::on_descriptors().value()
                                            : Waiter::on_bell(bell).value();
  }
  // As a loop waits: looks, and sleeps when there is nothing. Empty after `limit`.
  std::vector<int> next(Nanos limit = kLong) {
    const Nanos deadline = monotonic_now() + limit;
    for (;;) {
      const uint32_t seen = waiter->sequence();
      if (const auto& ready = waiter->take_ready(); !ready.empty()) return ready;
      if (monotonic_now() >= deadline) return {};
      waiter->wait(seen, deadline, spin);
    }
  }
  static std::pair<UniqueFd, UniqueFd> make_pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
  static void put(const UniqueFd& fd) { ASSERT_EQ(write(fd.get(), "x", 1), 1); }

  shm::Doorbell bell = shm::Doorbell::create().value();
  std::unique_ptr<Waiter> waiter = make();
  Nanos spin = 0;
};

TEST_P(Waiters, ReadyOnceAfterAddAndOnceAnEdge) {
  auto [in, out] = make_pipe();
  ASSERT_TRUE(waiter->add(in.get()).ok());
  EXPECT_EQ(next(), std::vector<int>{in.get()});
  EXPECT_EQ(next(30 * kMillisecond), std::vector<int>{});
  for (int i = 0; i < 3; ++i) {
    put(out);
    EXPECT_EQ(next(), std::vector<int>{in.get()});
    EXPECT_EQ(next(30 * kMillisecond), std::vector<int>{}) << "edges, not levels";
  }
}

TEST_P(Waiters, AnEdgeDuringTheWaitEndsItAlsoWhileSpinning) {
  for (const Nanos time : {Nanos{0}, kLong}) {
    spin = time;
    auto [in, out] = make_pipe();
    ASSERT_TRUE(waiter->add(in.get()).ok());
    next();
    std::thread writer([&out = out] {
      usleep(20'000);
      put(out);
    });
    const Nanos start = monotonic_now();
    EXPECT_EQ(next(), std::vector<int>{in.get()});
    EXPECT_LT(monotonic_now() - start, kLong / 2);
    writer.join();
    waiter->remove(in.get());
  }
}

// A loop that always has work never waits; its descriptors must be noticed all the same.
TEST_P(Waiters, EdgesAreSeenWithoutWaiting) {
  auto [in, out] = make_pipe();
  ASSERT_TRUE(waiter->add(in.get()).ok());
  next();
  put(out);
  const Nanos deadline = monotonic_now() + kLong;
  while (waiter->take_ready().empty()) ASSERT_LT(monotonic_now(), deadline);
}

TEST_P(Waiters, RemovedIsSilentAndMayComeAgain) {
  auto [in, out] = make_pipe();
  ASSERT_TRUE(waiter->add(in.get()).ok());
  EXPECT_EQ(waiter->add(in.get()).error().code, Code::kAlreadyExists);
  waiter->remove(in.get());
  waiter->remove(in.get());
  put(out);
  EXPECT_EQ(next(30 * kMillisecond), std::vector<int>{});
  ASSERT_TRUE(waiter->add(in.get()).ok());
  EXPECT_EQ(next(), std::vector<int>{in.get()});
  EXPECT_FALSE(waiter->add(-1).ok());
}

TEST_P(Waiters, ManyMoreThanOneLookTakes) {
  std::vector<std::pair<UniqueFd, UniqueFd>> pipes;
  std::vector<int> all, seen;
  for (int i = 0; i < 80; ++i) {
    pipes.push_back(make_pipe());
    all.push_back(pipes.back().first.get());
    ASSERT_TRUE(waiter->add(all.back()).ok());
  }
  EXPECT_EQ(next(), all);
  for (const auto& [in, out] : pipes) put(out);
  while (seen.size() < all.size()) {
    const auto some = next();
    ASSERT_FALSE(some.empty());
    seen.insert(seen.end(), some.begin(), some.end());
  }
  std::sort(seen.begin(), seen.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(seen, all);
}

TEST_P(Waiters, WakeEndsTheNextWaitAndTheOneThatRuns) {
  const Nanos start = monotonic_now();
  uint32_t seen = waiter->sequence();
  waiter->wake();
  waiter->wait(seen, start + kLong, 0);
  seen = waiter->sequence();
  std::thread other([&] {
    usleep(20'000);
    waiter->wake();
  });
  waiter->wait(seen, start + kLong, 0);
  EXPECT_LT(monotonic_now() - start, kLong / 2);
  other.join();
}

TEST_P(Waiters, AWakeThatALookAtTheDescriptorsMeetsEndsTheWaitAllTheSame) {
  next(kMillisecond);
  const uint32_t seen = waiter->sequence();
  waiter->wake();
  EXPECT_TRUE(waiter->take_ready().empty());
  const Nanos start = monotonic_now();
  waiter->wait(seen, start + kLong, 0);
  EXPECT_LT(monotonic_now() - start, kLong / 2);
}

TEST_P(Waiters, ARingEndsTheNextWaitAndTheOneThatRuns) {
  if (GetParam() == Kind::kDescriptors) return;  // has no bell
  auto ringer = shm::Doorbell::attach(UniqueFd(fcntl(bell.fd(), F_DUPFD_CLOEXEC, 0))).value();
  for (const Nanos spin_time : {Nanos{0}, kLong}) {
    const Nanos start = monotonic_now();
    uint32_t seen = waiter->sequence();
    ringer.ring();
    waiter->wait(seen, start + kLong, spin_time);
    seen = waiter->sequence();
    std::thread other([&] {
      usleep(20'000);
      ringer.ring();
    });
    while (waiter->sequence() == seen && monotonic_now() < start + kLong)
      waiter->wait(seen, start + kLong, spin_time);
    EXPECT_LT(monotonic_now() - start, kLong / 2);
    other.join();
  }
}

// Two threads, each sleeping for the other: one lost ring and a wait runs into its deadline.
TEST_P(Waiters, NoRingIsLostInPingPong) {
  if (GetParam() == Kind::kDescriptors) return;  // has no bell
  constexpr uint32_t kRounds = 20'000;
  auto answer = shm::Doorbell::create().value();
  std::atomic<uint32_t> ball{0};
  std::thread other([&] {
    for (uint32_t round = 1; round < kRounds; round += 2) {
      const Nanos deadline = monotonic_now() + kLong;
      for (;;) {
        const uint32_t seen = answer.sequence();
        if (ball.load() == round || monotonic_now() >= deadline) break;
        answer.wait(seen, deadline);
      }
      ball = round + 1;
      bell.ring();
    }
  });
  int late = 0;
  for (uint32_t round = 0; round < kRounds; round += 2) {
    ball = round + 1;
    answer.ring();
    const Nanos deadline = monotonic_now() + kLong;
    for (;;) {
      const uint32_t seen = waiter->sequence();
      if (ball.load() == round + 2) break;
      if (monotonic_now() >= deadline) {
        ++late;
        break;
      }
      waiter->wait(seen, deadline, 0);
    }
    if (late > 0) break;
  }
  ball = kRounds;  // ends the other side in any case
  other.join();
  EXPECT_EQ(late, 0);
}

TEST_P(Waiters, TheDeadlineEndsAWait) {
  next(kMillisecond);
  for (const Nanos deadline : {Nanos{0}, monotonic_now() - kSecond, monotonic_now() + 5 * kMillisecond}) {
    const Nanos start = monotonic_now();
    waiter->wait(waiter->sequence(), deadline, 0);
    EXPECT_GE(monotonic_now(), deadline);
    EXPECT_LT(monotonic_now() - start, kLong / 2);
  }
}

TEST_P(Waiters, LeavesNoDescriptorsBehind) {
  const auto count = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = count();
  for (int i = 0; i < 5; ++i) make()->take_ready();
  EXPECT_EQ(count(), before);
}

std::string kind_name(const testing::TestParamInfo<Kind>& kind) {
  constexpr const char* kNames[] = {"OnBell", "OnDescriptors"};
  return kNames[static_cast<int>(kind.param)];
}

INSTANTIATE_TEST_SUITE_P(All, Waiters, testing::Values(Kind::kBell, Kind::kDescriptors), kind_name);

}  // namespace
}  // namespace ringmaster::actor
