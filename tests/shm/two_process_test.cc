// A ring between two real processes: order and content, and what is left when either is killed in the middle.
#include <gtest/gtest.h>

#include "tests/shm/kill_run.h"
#include "tests/shm/record_run.h"

namespace ringmaster::shm {
namespace {

TEST(TwoProcesses, MillionsOfRecordsOfRandomSizeInOrder) {
  const RecordRun run = run_records(2'000'000);
  EXPECT_EQ(run.fault, "");
  EXPECT_EQ(run.records, 2'000'000u);
  EXPECT_GT(run.bytes, 100'000'000u);
}

TEST(TwoProcesses, EitherSideKilledInMidTraffic) {
  const KillRun run = run_kills(100, 1);
  EXPECT_EQ(run.fault, "");
  EXPECT_GE(run.kills, 100u);
  EXPECT_GT(run.tokenizers_killed, 20u);
  EXPECT_GT(run.gpus_killed, 20u);
  EXPECT_GT(run.records, 50'000u);
}

}  // namespace
}  // namespace ringmaster::shm
