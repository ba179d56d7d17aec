// A producer that was stopped, and whose slot or partner is another's when it wakes up: what it writes then
// reaches nobody.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "tests/shm/slot_fixture.h"

namespace ringmaster::shm {
namespace {

using StoppedProducer = SlotSocket;

constexpr uint64_t kStale = 0xDEAD;

// Writes kStale into the command ring for ever; every pass rings `alive`.
int write_for_ever(TokenizerEnd& end, Doorbell& alive) {
  for (;;) {
    put_word(end.commands, kStale);
    alive.ring();
    usleep(100);
  }
}
bool goes_on(Doorbell& alive) {
  return alive.wait(alive.sequence(), monotonic_now() + 10 * kSecond);
}
bool stands_still(Doorbell& alive) {
  return eventually([&] {
    const uint32_t seen = alive.sequence();
    return !alive.wait(seen, monotonic_now() + 20 * kMillisecond);
  });
}

// The gpu-worker is replaced meanwhile. Its successor has other memory, so nothing of the old link arrives
// there, in no slot, though the sleeper goes on writing; and the sleeper can see that its peer is gone.
TEST_F(StoppedProducer, WakesUpAfterTheGpuWorkerWasReplaced) {
  auto alive = Doorbell::create().value();
  auto noticed = Doorbell::create().value();
  std::optional<Child> gpu;
  gpu.emplace([&] {
    auto server = serve(1, 2);
    for (; server; usleep(100)) server->poll([](GpuEnd&) {}, [](uint32_t) {});
    return 1;
  });
  Child sleeper([&] {
    auto own = Doorbell::create().value();
    std::optional<TokenizerEnd> end;
    if (!eventually([&] {
          if (auto got = attach(1, own)) end = std::move(got).value();
          return end.has_value();
        })) {
      return 1;
    }
    for (;; usleep(100)) {
      put_word(end->commands, kStale);
      alive.ring();
      if (readable(end->gpu_pidfd.get())) noticed.ring();
    }
  });
  ASSERT_TRUE(goes_on(alive));
  sleeper.signal(SIGSTOP);
  ASSERT_TRUE(stands_still(alive));
  gpu->signal(SIGKILL);
  ASSERT_EQ(gpu->wait(), 128 + SIGKILL);

  auto server = serve(2, 2);
  ASSERT_TRUE(server);
  GpuEnd* end = nullptr;
  const auto poll = [&] { server->poll([&](GpuEnd& got) { end = &got; }, [](uint32_t) {}); };
  Child successor([&] {
    auto own = Doorbell::create().value();
    auto got = attach(2, own);
    if (!got) return 1;
    for (uint64_t n = 0;; usleep(50))
      if (put_word(got->commands, n)) ++n;
  });
  ASSERT_TRUE(eventually([&] { return poll(), end != nullptr; }));
  EXPECT_EQ(noticed.sequence(), 0u);
  sleeper.signal(SIGCONT);
  ASSERT_TRUE(goes_on(alive));
  uint64_t expected = 0;
  ASSERT_TRUE(eventually(
      [&] {
        poll();
        while (const auto word = take_word(end->commands)) {
          EXPECT_EQ(*word, expected++);
        }
        return expected > 1000 || HasFailure();
      },
      30 * kSecond));
  EXPECT_TRUE(goes_on(alive));  // it has written all the while
  EXPECT_EQ(server->held(), 1u);
  EXPECT_TRUE(noticed.wait(0, monotonic_now() + 10 * kSecond))
      << "the sleeper never learns that its peer is gone";
  EXPECT_FALSE(end->commands.broken()) << end->commands.fault();
}

// The slot of a stopped process is only taken by killing it, which also ends a stopped one: SIGCONT finds
// nobody. The successor gets the same slot, empty, and is its only producer.
TEST_F(StoppedProducer, ItsSlotIsTakenOnlyWithItsLife) {
  auto alive = Doorbell::create().value();
  auto server = serve(1);
  ASSERT_TRUE(server);
  GpuEnd* end = nullptr;
  const auto poll = [&] { server->poll([&](GpuEnd& got) { end = &got; }, [&](uint32_t) { end = nullptr; }); };
  const auto writer = [&](uint64_t word) {
    return [&, word] {
      auto own = Doorbell::create().value();
      auto got = attach(1, own);
      if (!got) return 1;
      if (word == kStale) return write_for_ever(*got, alive);
      for (uint64_t n = 0;; usleep(50))
        if (put_word(got->commands, n)) ++n;
    };
  };
  Child sleeper(writer(kStale));
  ASSERT_TRUE(eventually([&] { return poll(), end != nullptr; }));
  ASSERT_TRUE(goes_on(alive));
  sleeper.signal(SIGSTOP);
  ASSERT_TRUE(stands_still(alive));
  const Nanos until = monotonic_now() + 100 * kMillisecond;
  while (monotonic_now() < until) poll();
  ASSERT_EQ(server->held(), 1u) << "taken from a process that can still write";
  sleeper.signal(SIGKILL);
  ASSERT_TRUE(eventually([&] { return poll(), server->held() == 0; }));
  Child successor(writer(0));
  ASSERT_TRUE(eventually([&] { return poll(), end != nullptr; }));
  sleeper.signal(SIGCONT);  // not waited for yet: the pid is still its own
  uint64_t expected = 0;
  ASSERT_TRUE(eventually(
      [&] {
        poll();
        while (const auto word = take_word(end->commands)) EXPECT_EQ(*word, expected++);
        return expected > 1000 || HasFailure();
      },
      30 * kSecond));
  EXPECT_EQ(sleeper.wait(), 128 + SIGKILL);
  EXPECT_FALSE(end->commands.broken()) << end->commands.fault();
}

// The holder's death is its slot's end, so nobody may inherit the mapping: a child that it forked cannot
// touch the slot, and a slot that was given on has one producer.
TEST_F(StoppedProducer, AForkedChildOfTheHolderCannotWrite) {
  auto server = serve(1);
  ASSERT_TRUE(server);
  auto forked = Doorbell::create().value();
  GpuEnd* end = nullptr;
  const auto poll = [&] { server->poll([&](GpuEnd& got) { end = &got; }, [&](uint32_t) { end = nullptr; }); };
  Child holder([&] {
    auto own = Doorbell::create().value();
    auto got = attach(1, own);
    if (!got) return 1;
    Child child([&] {
      forked.ring();
      ::signal(SIGSEGV, SIG_DFL);  // a sanitizer would report it
      put_word(got->commands, kStale);
      return 0;
    });
    return child.wait() == 128 + SIGSEGV ? 0 : 2;
  });
  ASSERT_TRUE(eventually([&] { return poll(), end != nullptr; }));
  ASSERT_TRUE(forked.wait(0, monotonic_now() + 10 * kSecond));
  EXPECT_EQ(holder.wait(), 0);
  EXPECT_FALSE(take_word(end->commands));
  EXPECT_TRUE(eventually([&] { return poll(), server->held() == 0; }));
}

}  // namespace
}  // namespace ringmaster::shm
