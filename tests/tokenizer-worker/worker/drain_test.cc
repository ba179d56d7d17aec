// How the actor is taken down: what runs may finish, within a limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tokenizer-worker/worker/worker_fixture.h"

namespace ringmaster::tokenizer_worker {
namespace {

using msg::FinishReason;
using msg::TokenizerWorkerBody;
using shm::RecordType;
using ::testing::HasSubstr;

TEST_F(Worker, DrainFinishesWhatRuns) {
  registered_and_linked();
  assign(1, "x");
  turn();
  receive(TokenizerWorkerBody::Drain, [](auto& b) { return msg::CreateDrain(b); });
  assign(2, "y");
  turn();
  EXPECT_EQ(w.outbox.done(2, "c").code, msg::Code::unavailable);
  EXPECT_TRUE(linked().empty()) << "the pair still carries what runs";
  EXPECT_FALSE(worker->drained());
  w.gpu.say(1, 0, byte_ids("a"));
  w.gpu.ended(1, FinishReason::length, 1);
  turn();
  EXPECT_EQ(w.outbox.done(1, "c").reason, FinishReason::length);
  EXPECT_TRUE(worker->drained());
}

TEST_F(Worker, DrainWaitsUntilEverythingIsSent) {
  registered_and_linked();
  assign(1, "x");
  turn();
  worker->drain(w.now);
  w.outbox.full = true;
  w.gpu.ended(1, FinishReason::length, 0);
  turn();
  EXPECT_EQ(w.requests.live(), 0u);
  EXPECT_FALSE(worker->drained());
  w.outbox.full = false;
  pass(10 * kMillisecond);
  EXPECT_TRUE(worker->drained());
}

TEST_F(Worker, DrainHasALimit) {
  registered_and_linked();
  assign(1, "x");
  turn();
  worker->drain(w.now);
  pass(10 * kSecond - 1);
  EXPECT_FALSE(worker->drained());
  pass(1);
  EXPECT_TRUE(worker->drained());
  EXPECT_EQ(w.outbox.done(1, "c").code, msg::Code::unavailable);
  EXPECT_THAT(w.outbox.done(1, "c").message, HasSubstr("tokenizer-worker.0 was stopped"));
}

TEST_F(Worker, SecondDrainIsNow) {
  registered_and_linked();
  assign(1, "x");
  turn();
  w.gpu.commands();
  worker->drain(w.now);
  worker->drain(w.now);
  turn();
  EXPECT_TRUE(worker->drained());
  EXPECT_EQ(w.outbox.done(1, "c").code, msg::Code::unavailable);
  EXPECT_EQ(w.gpu.commands().at(0).type, RecordType::kCancel) << "the gpu-worker's slot is freed";
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
