#include "actor/mailbox.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace ringmaster::actor {
namespace {

TEST(Mailbox, FullRefusesAndLeavesTheValue) {
  auto bell = shm::Doorbell::create().value();
  Mailbox<std::unique_ptr<int>> mailbox(2, bell);
  const uint32_t before = bell.sequence();
  EXPECT_TRUE(mailbox.push(std::make_unique<int>(1)));
  EXPECT_TRUE(mailbox.push(std::make_unique<int>(2)));
  EXPECT_EQ(bell.sequence(), before + 2);
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(mailbox.push(std::move(third)));
  ASSERT_TRUE(third);  // NOLINT(bugprone-use-after-move): refused means untouched
  EXPECT_EQ(**mailbox.pop(), 1);
  EXPECT_TRUE(mailbox.push(std::move(third)));
  EXPECT_EQ(**mailbox.pop(), 2);
  EXPECT_EQ(**mailbox.pop(), 3);
  EXPECT_FALSE(mailbox.pop());
}

TEST(Mailbox, ManySendersOneSleepingOwner) {
  constexpr int kSenders = 4;
  constexpr int kEach = 20'000;
  auto bell = shm::Doorbell::create().value();
  Mailbox<std::pair<int, int>> mailbox(64, bell);
  std::vector<std::thread> senders;
  for (int s = 0; s < kSenders; ++s) {
    senders.emplace_back([&, s] {
      for (int k = 0; k < kEach; ++k) {
        while (!mailbox.push({s, k})) std::this_thread::yield();
      }
    });
  }
  std::vector<int> next(kSenders, 0);
  int timeouts = 0;
  for (int got = 0; got < kSenders * kEach && timeouts == 0;) {
    const uint32_t seen = bell.sequence();
    bool any = false;
    while (auto value = mailbox.pop()) {
      EXPECT_EQ(value->second, next[value->first]++);
      ++got;
      any = true;
    }
    if (!any && !bell.wait(seen, monotonic_now() + 10 * kSecond)) ++timeouts;
  }
  for (auto& sender : senders) sender.join();
  EXPECT_EQ(timeouts, 0);
  EXPECT_EQ(next, std::vector<int>(kSenders, kEach));
}

}  // namespace
}  // namespace ringmaster::actor
