// The simulation itself: a seed is one run, and what it looks for it finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/log.h"
#include "tests/simulate/simulation.h"

namespace ringmaster::simulate {
namespace {

class SimulateTest : public testing::Test {
 protected:
  SimulateTest() { log::mute(true); }
  ~SimulateTest() override { log::mute(false); }
};

TEST_F(SimulateTest, ASeedReplaysExactlyAndTracingChangesNothing) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome first = run(make_plan(seed), {});
    size_t lines = 0;
    const Outcome again = run(make_plan(seed), {}, [&](std::string_view) { ++lines; });
    EXPECT_EQ(first.digest, again.digest) << "seed " << seed;
    EXPECT_EQ(first.events, again.events);
    EXPECT_EQ(first.violation, again.violation);
    EXPECT_GT(lines, 10u);
  }
}

// The first violation among some seeds of a cluster with this fault in it.
std::string found(Sabotage sabotage) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Plan plan = make_plan(seed);
    plan.sabotage = sabotage;
    if (const Outcome outcome = run(plan, {}); !outcome.ok()) return outcome.violation;
  }
  return "nothing";
}

TEST_F(SimulateTest, FindsAWrongId) {
  EXPECT_THAT(found(Sabotage::kWrongId), testing::ContainsRegex("token [0-9]+ is [0-9]+ instead of"));
}

TEST_F(SimulateTest, FindsARequestWithoutAnEnding) {
  // The worker waits for the acknowledgement of an ending that nobody got, which is seen first where no other
  // fault disturbs.
  EXPECT_THAT(
      found(Sabotage::kNoEnding),
      testing::ContainsRegex("no ending [0-9]+ s after the last fault|does not know of the acknowledgement"));
}

TEST_F(SimulateTest, FindsExceededCredit) {
  EXPECT_THAT(found(Sabotage::kMoreCredit), testing::HasSubstr("the credit is"));
}

TEST_F(SimulateTest, FindsSlotsThatAreNotGivenBack) {
  EXPECT_THAT(found(Sabotage::kUnnoticedDeath), testing::HasSubstr("not at its baseline when idle"));
}

TEST_F(SimulateTest, TheStricterInvariantForbidsWorkerLost) {
  Expectations strict;
  strict.worker_death_may_end_requests = false;
  bool forbidden = false;
  for (uint64_t seed = 1; seed <= 60 && !forbidden; ++seed)
    forbidden = run(make_plan(seed), strict).violation.find("worker_lost") != std::string::npos;
  EXPECT_TRUE(forbidden) << "once requests survive their workers, this is the rule and not the exception";
}

TEST_F(SimulateTest, SeedsDiffer) {
  EXPECT_NE(run(make_plan(1), {}).digest, run(make_plan(2), {}).digest);
}

}  // namespace
}  // namespace ringmaster::simulate
