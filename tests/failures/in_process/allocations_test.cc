// Every allocation of the cluster's code fails once, in the life of a simulated cluster: start, a request,
// one that is cancelled, one with its own ids, stop of each process and its next start. Out of memory ends a
// process (here it is unwound and destroyed, which is harder than the real end without unwinding) or refuses
// a request; then the simulation's own invariants hold, and nothing of a whole run stays allocated.
#include <gtest/gtest.h>

#include "base/log.h"
#include "gpu-worker/device/fake/fake_device.h"
#include "tests/failures/in_process/failing_new.h"
#include "tests/simulate/allocations.h"
#include "tests/simulate/simulation.h"
#include "tests/tokenizer-worker/worker/tiny_tokenizer.h"

namespace ringmaster::failures {
namespace {

using simulate::kStart;
using simulate::Plan;

constexpr uint32_t kContext = 64;

void add_request(Plan& plan, uint64_t number, decltype(client::Request::prompt) prompt, uint32_t max_tokens,
                 Nanos cancel_after) {
  simulate::PlannedRequest planned;
  planned.at = kStart + (600 + 10 * static_cast<Nanos>(number)) * kMillisecond;
  planned.uid = {number << 48, number};
  planned.request.prompt = std::move(prompt);
  planned.request.max_tokens = max_tokens;
  planned.request.logprobs = 1;
  planned.request.stop = {"never"};
  planned.cancel_after = cancel_after;
  plan.requests.push_back(std::move(planned));
}

Plan small_plan() {
  Plan plan;
  plan.seed = 1;
  ClusterConfig& c = plan.config;
  c.router.max_live_requests = 8;
  c.router.credit_tokens = 4;
  c.router.client_lease = kSecond;
  c.router.worker_timeout = kSecond;
  c.tokenizer_worker.count = 1;
  c.tokenizer_worker.linger = kSecond;
  c.supervisor.drain_timeout = 100 * kMillisecond;
  GpuWorkerConfig& g = c.gpu_worker;
  g.device = "fake";
  g.block_tokens = 8;
  g.kv_memory = uint64_t{2} * kContext * gpu_worker::kFakeKvBytesPerToken;
  g.context_length = kContext;
  g.max_running = 2;
  g.slots = 2;
  g.fake.vocab_size = tokenizer_worker::kTinyVocabulary;
  g.fake.context_length = kContext;
  plan.place_limit = kSecond;
  plan.encode_queue = 4;
  plan.slot_sizes = {.command_bytes = 4 << 10, .prompt_bytes = 4 << 10, .token_bytes = 4 << 10};
  plan.client_options.ping_interval = 500 * kMillisecond;
  plan.client_options.ack_every = 2;
  plan.client_options.ask_again_after = kSecond;
  plan.read_pause = {0};
  plan.network.latency = 50 * kMicrosecond;
  plan.worker_faults = plan.router_faults = plan.client_faults = plan.memory_fails = true;

  add_request(plan, 1, std::string("hello world"), 10, 0);
  add_request(plan, 2, std::string("error\nhi"), 40, 20 * kMillisecond);
  add_request(plan, 3, std::vector<TokenId>{3, 1, 2}, 8, 0);
  Nanos at = kStart + 800 * kMillisecond;
  for (const char* name : {"tokenizer-worker.0", "gpu-worker.0", "router"})
    plan.faults.push_back(
        {.at = at += 50 * kMillisecond, .kind = simulate::Fault::Kind::kDrain, .target = name});
  plan.calm_from = kStart + 1200 * kMillisecond;
  return plan;
}

class AllocationsTest : public testing::Test {
 protected:
  AllocationsTest() { log::mute(true); }
  ~AllocationsTest() override { log::mute(false); }

  // The n-th allocation of `plan_` fails. What is found wrong; empty: nothing.
  std::string trial(long n) {
    const long before = live_blocks();
    fail_allocation(n);
    std::string wrong = simulate::run(plan_, {}).violation;
    const bool failed = allocation_failed();
    calls_ = allocations();
    fail_allocation(0);
    if (!wrong.empty()) return wrong;
    if (n > 0 && !failed) return "it never came to that";
    if (const long left = live_blocks() - before; left != 0) return std::to_string(left) + " blocks stay";
    return wrong;
  }

  const Plan plan_ = small_plan();
  long calls_ = 0;
};

TEST(FailingNewTest, FailsOnceInAProcessAndSeesWhatStays) {
  const long before = live_blocks();
  fail_allocation(2);
  {
    const simulate::Runs inside(true);
    ::operator delete(::operator new(8));
    EXPECT_THROW((void)::operator new(8), std::bad_alloc);
  }
  EXPECT_TRUE(allocation_failed());
  fail_allocation(1);
  void* kept = ::operator new(8);  // of nobody's process
  EXPECT_FALSE(allocation_failed());
  EXPECT_EQ(live_blocks(), before + 1);
  ::operator delete(kept);
  fail_allocation(0);
}

TEST_F(AllocationsTest, AnyOneThatFailsEndsOneProcessOrRefusesARequestAndNothingLeaks) {
  (void)trial(0);  // what is made once
  ASSERT_EQ(trial(0), "");
  const long all = calls_;
  EXPECT_GT(all, 500) << "the code of the cluster allocates: is it counted?";
  // The last ones are of heartbeats: who dies there has no time left to start again.
  constexpr long kLastHeartbeats = 10;
  for (long n = 1; n <= all - kLastHeartbeats; ++n) EXPECT_EQ(trial(n), "") << "n " << n << " of " << all;
}

}  // namespace
}  // namespace ringmaster::failures
