// The state machine alone, and the books of clients.
#include "router/request_table.h"

#include "tests/router/support.h"

namespace ringmaster::router {
namespace {

constexpr State kStates[] = {State::kWaiting, State::kRunning, State::kEnding, State::kEnded};

TEST(StateMachine, HasTheseArrowsAndNoOthers) {
  std::string arrows;
  for (const State from : kStates)
    for (const State to : kStates)
      if (allowed(from, to)) arrows += std::string(name(from)) + ">" + std::string(name(to)) + " ";
  EXPECT_EQ(arrows, "waiting>running waiting>ended running>ending running>ended ending>ended ");
}

TEST(RequestTable, EnterRefusesWhatIsNotAllowedAndChangesNothing) {
  RequestTable table;
  Request& r = table.add(uid(1), epoch(1), "c1", kSecond);
  EXPECT_FALSE(table.enter(r, State::kEnding));
  EXPECT_EQ(r.state(), State::kWaiting);
  EXPECT_TRUE(table.enter(r, State::kRunning));
  EXPECT_TRUE(table.enter(r, State::kEnded));
  EXPECT_EQ(table.live(), 0u);
  for (const State to : kStates) EXPECT_FALSE(table.enter(r, to));
  EXPECT_EQ(table.live(), 0u);  // and a second ending is not counted
}

TEST(RequestTable, ClientsLiveAsLongAsTheyHaveRequests) {
  RequestTable table;
  Request& a = table.add(uid(1), epoch(1), "c1", kSecond);
  Request& b = table.add(uid(2), epoch(2), "c1", kSecond);
  table.add(uid(3), epoch(3), "c2", 2 * kSecond);
  EXPECT_EQ(table.longest_silent()->route, "c1");
  EXPECT_EQ(table.touch("c1", 3 * kSecond)->requests.size(), 2u);
  EXPECT_EQ(table.longest_silent()->route, "c2");
  table.attach(a, "c2", 4 * kSecond);
  EXPECT_EQ(a.route(), "c2");
  table.set_gone(*table.find_client("c2"));
  EXPECT_EQ(table.longest_silent()->route, "c1");
  table.erase(b);
  EXPECT_EQ(table.longest_silent(), nullptr);
  EXPECT_EQ(table.find_client("c1"), nullptr);
  table.revive(*table.find_client("c2"), 5 * kSecond);
  EXPECT_EQ(table.longest_silent()->route, "c2");
  table.erase(a);
  table.erase(*table.find(epoch(3)));
  EXPECT_EQ(table.clients(), 0u);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.live(), 0u);
}

TEST(RequestTable, DueTimesAreTakenInOrder) {
  RequestTable table;
  for (uint32_t n = 1; n <= 3; ++n) table.add(uid(n), epoch(n), "c1", 0);
  table.set_due(*table.find(epoch(1)), 30);
  table.set_due(*table.find(epoch(2)), 10);
  table.set_due(*table.find(epoch(3)), 20);
  table.set_due(*table.find(epoch(2)), 40);  // moved
  EXPECT_EQ(table.next_due(), 20);
  table.erase(*table.find(epoch(3)));
  EXPECT_EQ(table.take_due(29), nullptr);
  EXPECT_EQ(table.take_due(100)->epoch, epoch(1));
  EXPECT_EQ(table.take_due(100)->epoch, epoch(2));
  EXPECT_EQ(table.take_due(100), nullptr);
  EXPECT_EQ(table.next_due(), kNever);
}

}  // namespace
}  // namespace ringmaster::router
