// What the worker says that it holds, against what a test knows that it does.
#include "tests/gpu-worker/worker/worker_fixture.h"

namespace ringmaster::gpu_worker {
namespace {

class AuditTest : public WorkerTest {
 protected:
  msg::GpuWorkerBooksT books(uint64_t tag) {
    flatbuffers::FlatBufferBuilder b;
    const auto body = msg::CreateAuditGpuWorker(b, tag);
    worker->receive(
        0, "", msg::seal<msg::GpuWorkerMessage>(b, msg::GpuWorkerBody::AuditGpuWorker, body.Union()), now);
    EXPECT_EQ(router.audits.back()->tag, tag);
    msg::WorkerBooksT all;
    flatbuffers::GetRoot<msg::WorkerBooks>(router.audits.back()->books.data())->UnPackTo(&all);
    EXPECT_EQ(all.tokenizer, nullptr);
    return *all.gpu;
  }
};

TEST_F(AuditTest, OfAnIdleWorkerNothingIsHeld) {
  make();
  const msg::GpuWorkerBooksT b = books(3);
  EXPECT_EQ(b.blocks, 256u);
  EXPECT_EQ(b.blocks_free, 256u);
  EXPECT_EQ(b.blocks_used + b.blocks_held + b.deferred + b.lanes_taken + b.live + b.in_flight, 0u);
  EXPECT_EQ(b.lanes, 16u);
  EXPECT_EQ(b.slots_total, 3u);
  EXPECT_TRUE(b.slots.empty());
  EXPECT_EQ(b.fault, "");
}

TEST_F(AuditTest, SharedBlocksCountOnceAndTheirReferencesTwice) {
  make();
  auto& side = attach("tokenizer-worker.0");
  const auto prompt = make_prompt(33);
  side.start(1, prompt, 200);
  ASSERT_TRUE(run_until([&] { return side[1].tokens.size() == 4; }));
  side.start(2, prompt, 200);
  ASSERT_TRUE(run_until([&] { return side[2].tokens.size() == 4; }));
  const msg::GpuWorkerBooksT b = books(4);
  ASSERT_EQ(b.sequences.size(), 2u);
  EXPECT_EQ(b.live, 2u);
  uint64_t entries = 0;
  for (const msg::SequenceBooks& s : b.sequences) {
    EXPECT_EQ(s.phase(), msg::SequencePhase::running);
    EXPECT_TRUE(s.lane());
    EXPECT_EQ(s.slot(), 0u);
    entries += s.blocks();
  }
  EXPECT_EQ(b.sequences[0].epoch(), 1u);
  EXPECT_EQ(b.sequences[1].epoch(), 2u);
  EXPECT_EQ(b.table_references, entries);
  EXPECT_EQ(b.references, entries + b.deferred);
  EXPECT_EQ(b.blocks_used, b.blocks_held);
  EXPECT_EQ(b.blocks_held, entries - 33 / kBlockTokens) << "the full blocks of the prompt are shared";
  EXPECT_EQ(b.blocks_free + b.blocks_cached + b.blocks_used, 256u);
  EXPECT_EQ(b.lanes_taken, 2u);
  ASSERT_EQ(b.slots.size(), 1u);
  EXPECT_EQ(b.slots[0]->peer, "tokenizer-worker.0");
  EXPECT_EQ(b.slots[0]->peer_pid, getpid());
  EXPECT_GT(b.slots[0]->commands, 0u);
  EXPECT_GT(b.slots[0]->prompts, 0u);
  EXPECT_GT(b.slots[0]->tokens, 0u);
  EXPECT_EQ(b.fault, "");
}

TEST_F(AuditTest, ACancelledRequestHoldsItsBlocksUntilItsStepRetires) {
  make();
  auto& side = attach("tokenizer-worker.0");
  side.start(1, make_prompt(9), 200);
  ASSERT_TRUE(run_until([&] { return side[1].tokens.size() == 4; }));
  const uint32_t entries = books(1).sequences[0].blocks();
  side.cancel(1);
  worker->poll(now);
  const msg::GpuWorkerBooksT b = books(2);
  EXPECT_EQ(b.live, 0u);
  ASSERT_EQ(b.sequences.size(), 1u);
  EXPECT_EQ(b.sequences[0].phase(), msg::SequencePhase::finished);
  EXPECT_EQ(b.sequences[0].blocks(), 0u);
  EXPECT_EQ(b.deferred, entries);
  EXPECT_EQ(b.references, entries);
  EXPECT_EQ(b.lanes_taken, 1u);
  ASSERT_TRUE(run_until([&] { return worker->scheduler().idle(); }));
  const msg::GpuWorkerBooksT after = books(3);
  EXPECT_EQ(after.deferred + after.lanes_taken + after.references + after.in_flight, 0u);
}

}  // namespace
}  // namespace ringmaster::gpu_worker
