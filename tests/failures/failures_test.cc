// A spread-out sample of every program and family; `scripts/soak failures` tries every n.
#include <gtest/gtest.h>

#include "tests/failures/sweep.h"

namespace ringmaster::failures {
namespace {

// So many n of a family, which is all of them where they are few. A trial takes some 0.3 s, of `up` half a
// second; all of this has to take seconds on a slow machine too. Most allocations are those of the start, so
// the last ones, of requests and stop, get a sample of their own.
constexpr long kSample = 5;
constexpr long kSampleOfUp = 2;
constexpr long kLast = -400;

class FailuresTest : public testing::TestWithParam<std::string> {};

TEST_P(FailuresTest, ACallThatFailsIsRefusedOrEndsTheProcessWithALineAndNothingElse) {
  const auto trials = make_trials(GetParam());
  const long most = GetParam() == "up" ? kSampleOfUp : kSample;
  const auto expect_no_violation = [](long n, const Judged& judged) {
    EXPECT_EQ(judged.violation, "") << "n " << n << "\n" << judged.what << judged.said;
  };
  for (const std::string& family : kFamilies) {
    SCOPED_TRACE(family);
    const Swept swept = sweep(*trials, family, {1, most}, expect_no_violation);
    if (family != "memory") continue;
    EXPECT_GT(swept.outcomes.at(Outcome::kEnded), 0) << "nothing has failed: is the shim loaded?";
    sweep(*trials, family, {kLast, most}, expect_no_violation);
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, FailuresTest, testing::ValuesIn(kPrograms), [](const auto& program) {
  std::string name = program.param;
  std::erase(name, '-');
  return name;
});

TEST(FailuresTrialTest, AProcessKilledByASignalIsAViolation) {
  End end;
  end.status = 6;  // SIGABRT
  EXPECT_FALSE(end.in_order());
  EXPECT_EQ(end.code(), -1);
  EXPECT_EQ(complaints("12:00:00.000 I all is well\n12:00:00.001 E no luck\nout of memory\n"),
            "12:00:00.001 E no luck\nout of memory\n");
}

}  // namespace
}  // namespace ringmaster::failures
