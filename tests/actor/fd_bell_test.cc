#include "actor/fd_bell.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "shm/unix_socket.h"

namespace ringmaster::actor {
namespace {

using shm::UniqueFd;

struct FdBells : testing::Test {
  // The next descriptors with an edge; empty after `limit`.
  std::vector<int> next(Nanos limit = 5 * kSecond) {
    const Nanos deadline = monotonic_now() + limit;
    for (;;) {
      const uint32_t seen = bell.sequence();
      if (const auto& ready = fds->take_ready(); !ready.empty()) return ready;
      if (!bell.wait(seen, deadline)) return {};
    }
  }
  std::pair<UniqueFd, UniqueFd> make_pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
  static void put(const UniqueFd& fd) { ASSERT_EQ(write(fd.get(), "x", 1), 1); }

  shm::Doorbell bell = shm::Doorbell::create().value();
  std::unique_ptr<FdBell> fds = FdBell::start(bell).value();
};

TEST_F(FdBells, ReadyOnceAfterAddAndOnceAnEdge) {
  auto [in, out] = make_pipe();
  ASSERT_TRUE(fds->add(in.get()).ok());
  EXPECT_EQ(next(), std::vector<int>{in.get()});
  EXPECT_EQ(next(30 * kMillisecond), std::vector<int>{});
  put(out);
  EXPECT_EQ(next(), std::vector<int>{in.get()});
  EXPECT_EQ(next(30 * kMillisecond), std::vector<int>{}) << "edges, not levels";
  put(out);
  EXPECT_EQ(next(), std::vector<int>{in.get()});
}

TEST_F(FdBells, WhatWasThereBeforeAddIsReported) {
  auto [in, out] = make_pipe();
  put(out);
  ASSERT_TRUE(fds->add(in.get()).ok());
  EXPECT_EQ(next(), std::vector<int>{in.get()});
}

TEST_F(FdBells, HangUpIsAnEdge) {
  auto [in, out] = make_pipe();
  ASSERT_TRUE(fds->add(in.get()).ok());
  EXPECT_EQ(next().size(), 1u);
  out.reset();
  EXPECT_EQ(next(), std::vector<int>{in.get()});
}

TEST_F(FdBells, RemovedIsSilentAndItsNumberMayComeAgain) {
  auto [in, out] = make_pipe();
  ASSERT_TRUE(fds->add(in.get()).ok());
  ASSERT_FALSE(fds->add(in.get()).ok());
  put(out);
  usleep(20'000);  // the thread has noted the edge
  fds->remove(in.get());
  fds->remove(in.get());
  EXPECT_EQ(next(30 * kMillisecond), std::vector<int>{});
  put(out);
  EXPECT_EQ(next(30 * kMillisecond), std::vector<int>{});
  ASSERT_TRUE(fds->add(in.get()).ok());
  EXPECT_EQ(next(), std::vector<int>{in.get()});
}

TEST_F(FdBells, ManyAtOnceInOrderOfAdd) {
  std::vector<std::pair<UniqueFd, UniqueFd>> pipes;
  std::vector<int> all;
  for (int i = 0; i < 100; ++i) {
    pipes.push_back(make_pipe());
    all.push_back(pipes.back().first.get());
    ASSERT_TRUE(fds->add(all.back()).ok());
  }
  EXPECT_EQ(next(), all);
  for (auto it = pipes.rbegin(); it != pipes.rend(); ++it) put(it->second);
  std::vector<int> seen;
  while (seen.size() < all.size()) {
    const auto more = next();
    ASSERT_FALSE(more.empty());
    seen.insert(seen.end(), more.begin(), more.end());
  }
  std::sort(seen.begin(), seen.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(seen, all);
}

TEST_F(FdBells, AClosedDescriptorIsAnErrorOfAdd) {
  const auto added = fds->add(12345);
  ASSERT_FALSE(added.ok());
  EXPECT_NE(added.error().message.find("12345"), std::string::npos);
}

TEST_F(FdBells, DeathOfAProcess) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    for (;;) pause();
  }
  UniqueFd pidfd = shm::open_pidfd(child).value();
  ASSERT_TRUE(fds->add(pidfd.get()).ok());
  EXPECT_EQ(next().size(), 1u);
  EXPECT_EQ(next(30 * kMillisecond), std::vector<int>{});
  kill(child, SIGKILL);
  EXPECT_EQ(next(), std::vector<int>{pidfd.get()});
  waitpid(child, nullptr, 0);
}

TEST_F(FdBells, StopsWithinItsDeadlineAndTwice) {
  const Nanos start = monotonic_now();
  EXPECT_TRUE(fds->stop(start + 5 * kSecond));
  EXPECT_TRUE(fds->stop(start + 5 * kSecond));
  EXPECT_LT(monotonic_now() - start, 2 * kSecond);
}

TEST_F(FdBells, LeavesNoDescriptorsBehind) {
  const auto count = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = count();
  for (int i = 0; i < 10; ++i) {
    auto other = FdBell::start(bell).value();
    auto [in, out] = make_pipe();
    ASSERT_TRUE(other->add(in.get()).ok());
    other->remove(in.get());
  }
  EXPECT_EQ(count(), before);
}

// The owner sleeps for each edge: one lost and the wait runs into its deadline.
TEST_F(FdBells, NoEdgeIsLost) {
  auto [in, out] = make_pipe();
  ASSERT_TRUE(fds->add(in.get()).ok());
  EXPECT_EQ(next().size(), 1u);
  for (int i = 0; i < 5000; ++i) {
    put(out);
    ASSERT_EQ(next(), std::vector<int>{in.get()}) << i;
    char byte;
    ASSERT_EQ(read(in.get(), &byte, 1), 1);
  }
}

}  // namespace
}  // namespace ringmaster::actor
