// kill -9 of each kind of process while streams run; a hundred rounds of each are `scripts/soak kills`.
#include "tests/process/support/kill_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ringmaster::test {
namespace {

using ::testing::IsEmpty;

class KillRounds : public testing::TestWithParam<std::string_view> {};

TEST_P(KillRounds, NothingIsLeftAndEveryStreamEndsOnce) {
  constexpr int kRounds = 2;
  const KillResult result = kill_rounds(GetParam(), kRounds, 4);
  EXPECT_THAT(result.faults, IsEmpty());
  EXPECT_THAT(result.leftovers, IsEmpty());
  EXPECT_EQ(result.rounds, kRounds);
  EXPECT_EQ(result.back_after.size(), static_cast<size_t>(kRounds));
  EXPECT_EQ(result.streams, 16u);
}

INSTANTIATE_TEST_SUITE_P(Victims, KillRounds, testing::ValuesIn(kVictims), [](const auto& victim) {
  std::string name(victim.param.substr(0, victim.param.find('.')));
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace ringmaster::test
