#include "actor/timers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace ringmaster::actor {
namespace {

std::string take_all(Timers<std::string>& timers, Nanos now) {
  std::string all;
  while (auto id = timers.take_due(now)) all += *id + " ";
  return all;
}

TEST(Timers, InOrderOfDeadlineThenOfSet) {
  Timers<std::string> timers;
  EXPECT_EQ(timers.next(), kNever);
  timers.set("late", 30);
  timers.set("b", 20);
  timers.set("a", 20);
  timers.set("early", 10);
  timers.set("c", 20);
  EXPECT_EQ(timers.next(), 10);
  EXPECT_EQ(take_all(timers, 9), "");
  EXPECT_EQ(take_all(timers, 20), "early b a c ");
  EXPECT_EQ(timers.next(), 30);
  EXPECT_EQ(take_all(timers, 1000), "late ");
  EXPECT_TRUE(timers.empty());
}

TEST(Timers, SetMovesAndCancelRemoves) {
  Timers<std::string> timers;
  timers.set("a", 10);
  timers.set("b", 10);
  timers.set("a", 10);  // goes behind b: it was set later
  EXPECT_EQ(timers.size(), 2u);
  EXPECT_EQ(take_all(timers, 10), "b a ");
  timers.set("a", 10);
  timers.set("a", 50);
  EXPECT_EQ(timers.deadline("a"), 50);
  EXPECT_EQ(take_all(timers, 10), "");
  EXPECT_TRUE(timers.cancel("a"));
  EXPECT_FALSE(timers.cancel("a"));
  EXPECT_EQ(timers.deadline("a"), std::nullopt);
  timers.set("b", 5);
  timers.set("b", kNever);
  EXPECT_TRUE(timers.empty());
  EXPECT_EQ(timers.next(), kNever);
}

TEST(Timers, AgreesWithASortedList) {
  struct Entry {
    int id;
    Nanos at;
    int number;
  };
  Timers<int> timers;
  std::vector<Entry> list;
  std::mt19937 random(5);
  Nanos now = 0;
  for (int round = 0; round < 20'000; ++round) {
    const int id = static_cast<int>(random() % 50);
    const auto erased = std::erase_if(list, [&](const Entry& e) { return e.id == id; });
    if (random() % 3 == 0) {
      ASSERT_EQ(timers.cancel(id), erased == 1);
    } else {
      const Nanos at = now + static_cast<Nanos>(random() % 20);
      timers.set(id, at);
      list.push_back({id, at, round});
    }
    now += random() % 2;
    while (auto due = timers.take_due(now)) {
      const auto first = std::min_element(list.begin(), list.end(), [](const Entry& a, const Entry& b) {
        return a.at != b.at ? a.at < b.at : a.number < b.number;
      });
      ASSERT_NE(first, list.end());
      ASSERT_EQ(first->id, *due);
      ASSERT_LE(first->at, now);
      list.erase(first);
    }
    ASSERT_EQ(list.size(), timers.size());
    for (const Entry& e : list) ASSERT_GT(e.at, now);
  }
}

}  // namespace
}  // namespace ringmaster::actor
