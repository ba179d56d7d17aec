// Worked examples of what the client's side does to a request: credit, acknowledgements, coming back, ending.
#include <gtest/gtest.h>

#include "tests/tokenizer-worker/worker/world.h"

namespace ringmaster::tokenizer_worker {
namespace {

using msg::FinishReason;
using shm::RecordType;

constexpr Epoch kE = (Epoch{3} << 32) | 1;

// ---- credit and acknowledgements ----

TEST(Credit, IsGrantedInSteps) {
  World w;  // credit 8
  w.start(kE, World::text_request("x"));
  w.gpu.say(kE, 0, byte_ids("abcdefgh"));
  w.turn();
  w.ack(kE, 3, 3);
  w.turn();
  EXPECT_TRUE(w.gpu.commands().empty()) << "less than half a credit";
  w.ack(kE, 4, 4);
  w.turn();
  auto commands = w.gpu.commands();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].type, RecordType::kGrant);
  EXPECT_EQ(commands[0].epoch, kE);
  EXPECT_EQ(commands[0].value, 12u);
  w.gpu.say(kE, 8, byte_ids("ijkl"));
  w.turn();
  w.ack(kE, 12, 12);
  w.turn();
  commands = w.gpu.commands();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].value, 20u);
  EXPECT_EQ(w.outbox.whole(kE).text, "abcdefghijkl");
}

TEST(Credit, EndsAtMaxTokens) {
  World w;
  auto request = World::text_request("x");
  request.max_tokens = 8;
  w.start(kE, request);
  w.gpu.say(kE, 0, byte_ids("abcdef"));
  w.turn();
  w.ack(kE, 6, 6);
  w.turn();
  EXPECT_TRUE(w.gpu.commands().empty()) << "the grant covers all it may say";
}

TEST(Credit, AcksOfWhatWasNeverSentAreIgnored) {
  World w;
  w.start(kE, World::text_request("x"));
  w.gpu.say(kE, 0, byte_ids("abcdef"));
  w.turn();
  w.ack(kE, 7, 6);
  w.ack(kE, 6, 7);
  w.ack(kE + 9, 1, 1);
  w.turn();
  EXPECT_EQ(w.counters[Counter::kAcksIgnored], 2u);
  EXPECT_EQ(w.counters[Counter::kMessagesUnknown], 1u);
  EXPECT_TRUE(w.gpu.commands().empty());
}

TEST(Credit, AcksTrimAndNeverGoBack) {
  World w;
  w.start(kE, World::text_request("x"));
  w.gpu.say(kE, 0, byte_ids("abcdef"));
  w.turn();
  w.ack(kE, 5, 4);
  w.ack(kE, 2, 2);
  const Stream* stream = w.requests.table().find(kE);
  EXPECT_EQ(stream->output.acknowledged(), (TextPosition{5, 4}));
  EXPECT_EQ(stream->output.end(), (TextPosition{6, 6}));
}

// ---- resend ----

TEST(Resend, FromAPartialAckToAnotherAddress) {
  World w;
  w.start(kE, World::text_request("x"));
  w.gpu.say(kE, 0, byte_ids("abcdef"));
  w.turn();
  w.ack(kE, 2, 2);
  w.resend(kE, 3, 3, "client-b");
  w.gpu.say(kE, 6, byte_ids("g"));
  w.turn();
  const auto again = w.outbox.whole(kE, "client-b");
  EXPECT_EQ(again.first_token, 3u);
  EXPECT_EQ(again.ids, byte_ids("defg"));
  EXPECT_EQ(again.text, "defg");
  EXPECT_EQ(w.outbox.whole(kE).text, "abcdef");
}

TEST(Resend, CountsAsAnAck) {
  World w;
  w.start(kE, World::text_request("x"));
  w.gpu.say(kE, 0, byte_ids("abcdefgh"));
  w.turn();
  w.resend(kE, 8, 8, "client-b");
  w.turn();
  const auto commands = w.gpu.commands();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].value, 16u);
  EXPECT_TRUE(w.outbox.whole(kE, "client-b").ids.empty());
}

TEST(Resend, AfterTheEndBringsTheRestAndTheDone) {
  World w;
  w.start(kE, World::text_request("x"));
  w.gpu.say(kE, 0, byte_ids("abc"));
  w.gpu.ended(kE, FinishReason::length, 3);
  w.turn();
  w.ack(kE, 1, 1);
  w.resend(kE, 1, 1, "client-b");
  w.turn();
  EXPECT_EQ(w.outbox.whole(kE, "client-b").text, "bc");
  EXPECT_EQ(w.outbox.done(kE, "client-b").reason, FinishReason::length);
  // Also when everything is acknowledged and only the Done was lost.
  w.ack(kE, 3, 3);
  w.resend(kE, 3, 3, "client-c");
  w.turn();
  EXPECT_EQ(w.outbox.done(kE, "client-c").usage->output_tokens, 3u);
}

TEST(Resend, OfWhatIsGoneOrWasNeverSentFails) {
  World w;
  for (Epoch e = 1; e <= 3; ++e) w.start(e, World::text_request("x"));
  for (Epoch e = 1; e <= 3; ++e) w.gpu.say(e, 0, byte_ids("ab\xC3\xA9"));
  w.turn();
  w.ack(1, 2, 2);
  w.resend(1, 1, 2, "client-b");  // gone
  w.resend(2, 5, 4, "client-b");  // never sent
  w.resend(3, 3, 3, "client-b");  // inside a character
  w.turn();
  for (Epoch e = 1; e <= 3; ++e) {
    EXPECT_EQ(w.outbox.done(e, "client-b").code, msg::Code::invalid_argument) << e;
    EXPECT_FALSE(w.outbox.done(e, "client-b").message.empty());
  }
  EXPECT_EQ(w.gpu.commands().size(), 3u) << "all three are cancelled on the gpu-worker";
  w.expect_balanced();
}

TEST(Resend, BeforeTheStartMovesTheClient) {
  World w;
  w.assign(kE, World::text_request("x"));
  w.resend(kE, 0, 0, "client-b");
  w.encode();
  w.turn();
  w.gpu.say(kE, 0, byte_ids("a"));
  w.turn();
  EXPECT_EQ(w.outbox.whole(kE, "client-b").text, "a");
}

TEST(Linger, ThenTheStreamIsFreed) {
  World w;
  w.start(kE, World::text_request("x"));
  w.gpu.ended(kE, FinishReason::length, 0);
  w.turn();
  w.pass(30 * kSecond - 1);
  EXPECT_EQ(w.requests.table().size(), 1u);
  w.pass(1);
  EXPECT_EQ(w.requests.table().size(), 0u);
  EXPECT_EQ(w.requests.table().clients(), 0u);
}

TEST(Linger, IsBounded) {
  World w({.limits = {.context_length = 256, .credit = 8, .max_lingering = 2}});
  for (Epoch e = 1; e <= 4; ++e) {
    w.start(e, World::text_request("x"));
    w.gpu.ended(e, FinishReason::length, 0);
    w.turn();
  }
  EXPECT_EQ(w.requests.table().size(), 2u);
  EXPECT_EQ(w.requests.table().find(1), nullptr) << "the oldest goes first";
}

// ---- ends ----

TEST(End, WhileWaitingToBeEncoded) {
  World w;
  w.assign(kE, World::text_request("x"));
  w.end(kE, FinishReason::cancelled, msg::Code::cancelled, "the client has gone");
  w.encode();
  w.turn();
  EXPECT_EQ(w.outbox.done(kE).reason, FinishReason::cancelled);
  EXPECT_EQ(w.outbox.done(kE).message, "the client has gone");
  EXPECT_TRUE(w.gpu.commands().empty()) << "the gpu-worker never hears of it";
  EXPECT_EQ(w.pool.in_flight(), 0u);
}

TEST(End, WhileTheEncodedPromptIsOnItsWay) {
  World w;
  w.assign(kE, World::text_request("x"));
  w.pool.run_one();
  w.end(kE, FinishReason::deadline, msg::Code::deadline_exceeded);
  w.encode();
  w.turn();
  EXPECT_EQ(w.outbox.done(kE).reason, FinishReason::deadline);
  EXPECT_TRUE(w.gpu.commands().empty());
}

TEST(End, WhileRunning) {
  World w;
  auto request = World::text_request("x");
  request.stop = {"bc"};
  w.start(kE, request);
  w.gpu.say(kE, 0, byte_ids("ab"));
  w.turn();
  w.end(kE, FinishReason::cancelled, msg::Code::cancelled);
  w.turn();
  const auto commands = w.gpu.commands();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].type, RecordType::kCancel);
  EXPECT_EQ(commands[0].epoch, kE);
  EXPECT_EQ(w.outbox.done(kE).reason, FinishReason::cancelled);
  EXPECT_EQ(w.outbox.done(kE).usage->output_tokens, 2u);
  EXPECT_EQ(w.outbox.whole(kE).text, "ab") << "what was held back belongs to the ids";
  // What crosses the cancel on its way is dropped.
  w.gpu.say(kE, 2, byte_ids("c"));
  w.gpu.ended(kE, FinishReason::cancelled, 3);
  w.end(kE, FinishReason::cancelled);
  w.turn();
  EXPECT_EQ(w.outbox.whole(kE).ids.size(), 2u);
  EXPECT_EQ(w.outbox.ends.size(), 1u);
  EXPECT_EQ(w.counters[Counter::kTokensLate], 1u);
  w.expect_balanced();
}

TEST(End, WithValuesOutOfRange) {
  World w;
  w.start(kE, World::text_request("x"));
  w.end(kE, static_cast<FinishReason>(77), static_cast<msg::Code>(200));
  w.turn();
  EXPECT_EQ(w.outbox.done(kE).reason, FinishReason::error);
  EXPECT_EQ(w.outbox.done(kE).code, msg::Code::internal);
}

TEST(End, OfTheGpuWorkerWithAnErrorKeepsItsWords) {
  World w;
  w.start(kE, World::text_request("x"));
  w.gpu.ended(kE, FinishReason::error, 0, Code::kResourceExhausted, "no blocks");
  w.turn();
  EXPECT_EQ(w.outbox.done(kE).reason, FinishReason::error);
  EXPECT_EQ(w.outbox.done(kE).code, msg::Code::resource_exhausted);
  EXPECT_EQ(w.outbox.done(kE).message, "no blocks");
}

TEST(Forget, AtEachStageLeavesNothing) {
  World w;
  w.assign(1, World::text_request("x"));
  w.requests.forget(1);
  w.encode();
  w.start(2, World::text_request("x"));
  w.gpu.say(2, 0, byte_ids("a"));
  w.requests.read_rings(w.now);  // it has something to send when it goes
  w.requests.forget(2);
  w.turn();
  const auto commands = w.gpu.commands();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].type, RecordType::kCancel);
  EXPECT_EQ(commands[0].epoch, 2u);
  w.start(3, World::text_request("x"));
  w.gpu.ended(3, FinishReason::length, 0);
  w.turn();
  w.requests.forget(3);
  w.requests.forget(4);
  w.turn();
  EXPECT_EQ(w.outbox.pieces.size(), 0u);
  EXPECT_EQ(w.outbox.ends.size(), 1u) << "only the one that ended by itself";
  EXPECT_EQ(w.requests.table().size(), 0u);
  EXPECT_EQ(w.requests.live(), 0u);
  EXPECT_TRUE(w.gpu.commands().empty());
  w.expect_balanced();
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
