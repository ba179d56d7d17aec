// The rules of `ringmaster audit` while workers and the router have not met yet.
#include <gmock/gmock.h>

#include "tests/launcher/audit_books.h"

namespace ringmaster::launcher {
namespace {

using ::testing::IsEmpty;

// Just after a restart of the router: it knows no worker, or one of the pair only, and the workers still hold
// what belonged to the former router. When the time for that is over, or for one that is stopped, it counts.
struct Restarted {
  const char* name;
  bool knows_gpu;
  std::vector<std::string> late;  // what is said when the time is over
};
class RouterRestart : public testing::TestWithParam<Restarted> {};

AuditSnapshot restarted(bool knows_gpu) {
  AuditSnapshot s = balanced();
  s.registration = 2 * kSecond;
  for (ProcessFacts& p : s.processes) p.age = 100 * kSecond;
  books(s).router = {};
  books(s).workers[0].live = books(s).workers[1].live = 0;
  tok(s) = {.assigned = 5, .forgotten = 5, .slots = tok(s).slots};
  books(s).workers.erase(books(s).workers.begin() + knows_gpu);
  return s;
}

TEST_P(RouterRestart, LeavesTheWorkersTimeToRegister) {
  AuditSnapshot s = restarted(GetParam().knows_gpu);
  EXPECT_EQ(show(compare(s)), GetParam().late);
  EXPECT_FALSE(is_idle(s));
  s.processes[1].age = kSecond;
  EXPECT_THAT(show(compare(s)), IsEmpty());
  EXPECT_FALSE(is_idle(s));
}

INSTANTIATE_TEST_SUITE_P(
    Audit, RouterRestart,
    testing::Values(
        Restarted{"KnowsTheGpuWorker",
                  true,
                  {"tokenizer-worker.0: process: registration: expected known to the router, found not",
                   "gpu-worker.0: idle: sequences: expected 0, found 1",
                   "gpu-worker.0: idle: lanes: expected 0, found 1",
                   "gpu-worker.0: idle: used KV blocks: expected 0, found 3",
                   "gpu-worker.0: idle: releases that wait for a step: expected 0, found 1",
                   "gpu-worker.0: idle: steps in flight: expected 0, found 1"}},
        Restarted{"KnowsTheTokenizerWorker",
                  false,
                  {"gpu-worker.0: process: registration: expected known to the router, found not",
                   "tokenizer-worker.0: slots.pair: link to gpu-worker.0: expected a living gpu-worker, "
                   "found an instance that is gone"}}),
    [](const auto& restarted) { return std::string(restarted.param.name); });

TEST(Audit, AWorkerThatIsStoppedIsNotOnItsWayToTheRouter) {
  AuditSnapshot s = restarted(true);
  s.processes[1].age = kSecond;
  s.processes[3].stopped = true;
  EXPECT_EQ(show(compare(s)).front(),
            "tokenizer-worker.0: process: registration: expected known to the router, found not; the process "
            "is stopped");
}

TEST(Audit, AWorkerThatHasJustStartedMayStillRegister) {
  AuditSnapshot s = restarted(true);
  s.processes[3].age = kSecond;
  EXPECT_THAT(show(compare(s)), IsEmpty());
}

}  // namespace
}  // namespace ringmaster::launcher
