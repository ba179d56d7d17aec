// A gpu-worker that breaks the protocol, or dies: no token is taken twice, no other request suffers, nothing
// hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tokenizer-worker/worker/world.h"

namespace ringmaster::tokenizer_worker {
namespace {

using msg::FinishReason;
using shm::RecordType;
using ::testing::HasSubstr;

// Two running requests; the first is the victim, the second must not notice.
class Hostile : public ::testing::Test {
 protected:
  void SetUp() override {
    w.start(1, World::text_request("x"));
    w.start(2, World::text_request("y"));
    w.gpu.say(1, 0, byte_ids("a"));
    w.turn();
  }
  void expect_protocol_error(const std::string& why) {
    w.turn();
    const auto done = w.outbox.done(1);
    EXPECT_EQ(done.reason, FinishReason::error);
    EXPECT_EQ(done.code, msg::Code::internal);
    EXPECT_THAT(done.message, HasSubstr(why));
    EXPECT_EQ(done.usage->output_tokens, 1u);
    EXPECT_EQ(w.outbox.whole(1).ids, byte_ids("a")) << "the wrong token is not accepted";
    EXPECT_EQ(w.counters[Counter::kProtocolErrors], 1u);
    expect_other_runs();
  }
  void expect_other_runs() {
    w.gpu.say(2, 0, byte_ids("b"));
    w.turn();
    EXPECT_EQ(w.outbox.whole(2).text, "b");
    EXPECT_TRUE(w.outbox.whole(2).dones.empty());
    EXPECT_TRUE(w.lost_links.empty());
    w.expect_balanced();
  }
  World w;
};

TEST_F(Hostile, RepeatedTokenNumber) {
  w.gpu.say(1, 0, byte_ids("a"));
  expect_protocol_error("token number 0; expected 1");
  const auto commands = w.gpu.commands();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].type, RecordType::kCancel);
  EXPECT_EQ(commands[0].epoch, 1u);
}

TEST_F(Hostile, GapInTokenNumbers) {
  w.gpu.say(1, 2, byte_ids("c"));
  expect_protocol_error("token number 2; expected 1");
}

TEST_F(Hostile, WhatFollowsAnErrorIsDropped) {
  w.gpu.say(1, 2, byte_ids("c"));
  w.gpu.say(1, 1, byte_ids("b"));
  expect_protocol_error("token number 2");
  EXPECT_EQ(w.counters[Counter::kTokensLate], 1u);
}

TEST_F(Hostile, IdBeyondTheVocabulary) {
  w.gpu.say(1, 1, {kTinyVocabulary});
  expect_protocol_error("token id 272");
}

TEST_F(Hostile, MoreTokensThanGranted) {
  World limited({.limits = {.context_length = 256, .credit = 2}});
  limited.start(1, World::text_request("x"));
  limited.gpu.say(1, 0, byte_ids("abc"));
  limited.turn();
  EXPECT_THAT(limited.outbox.done(1).message, HasSubstr("granted were 2"));
  EXPECT_EQ(limited.outbox.whole(1).text, "ab");
}

TEST_F(Hostile, MoreTokensThanMax) {
  auto request = World::text_request("z");
  request.max_tokens = 1;
  w.start(3, request);
  w.gpu.say(3, 0, byte_ids("ab"));
  w.turn();
  EXPECT_THAT(w.outbox.done(3).message, HasSubstr("max_tokens is 1"));
}

TEST_F(Hostile, LogprobsNobodyAskedFor) {
  w.gpu.tokens({{1, 1, 20, -1, {{20, -1}}}});
  expect_protocol_error("log-probabilities");
}

TEST_F(Hostile, EndThatDoesNotAccountForAllTokens) {
  w.gpu.ended(1, FinishReason::length, 2);
  expect_protocol_error("2 tokens; 1 came");
}

TEST_F(Hostile, EndWithAnUnknownReason) {
  w.gpu.ended(1, static_cast<FinishReason>(99), 1);
  expect_protocol_error("reason 99");
}

TEST_F(Hostile, EndWithAMessageThatIsNoText) {
  w.gpu.ended(1, FinishReason::error, 1, Code::kInternal, "\xFF\xFE");
  w.turn();
  EXPECT_THAT(w.outbox.done(1).message, HasSubstr("2 bytes"));
  expect_other_runs();
}

TEST_F(Hostile, EpochsThatAreNotHere) {
  w.gpu.say(77, 0, byte_ids("a"));
  w.gpu.ended(77, FinishReason::stop, 1);
  w.turn();
  EXPECT_EQ(w.counters[Counter::kTokensLate], 1u);
  EXPECT_TRUE(w.outbox.ends.empty());
  expect_other_runs();
}

TEST_F(Hostile, ARequestOfAnotherGpuWorker) {
  FakeGpu other(8);
  w.links.add("gpu-worker.1", 8, other.take_end());
  other.say(1, 1, byte_ids("z"));
  other.ended(1, FinishReason::stop, 2);
  w.turn();
  EXPECT_EQ(w.counters[Counter::kProtocolErrors], 2u);
  w.gpu.say(1, 1, byte_ids("b"));
  w.turn();
  EXPECT_EQ(w.outbox.whole(1).text, "ab") << "the right one goes on";
  EXPECT_TRUE(w.outbox.ends.empty());
}

TEST_F(Hostile, TokensBeforeTheStart) {
  w.assign(3, World::text_request("z"));
  w.gpu.say(3, 0, byte_ids("q"));
  w.gpu.ended(3, FinishReason::stop, 1);
  w.turn();
  EXPECT_EQ(w.counters[Counter::kProtocolErrors], 2u);
  w.encode();
  w.turn();
  EXPECT_TRUE(w.outbox.whole(3).dones.empty());
  w.gpu.say(3, 0, byte_ids("r"));
  w.turn();
  EXPECT_EQ(w.outbox.whole(3).text, "r");
}

// ---- the link itself ----

// What does not parse ends the link: all its requests end, once, with worker_lost.
void expect_link_lost(World& w, const std::string& why) {
  w.turn();
  ASSERT_EQ(w.lost_links.size(), 1u);
  EXPECT_THAT(w.lost_links[0], HasSubstr(why));
  w.turn();
  for (Epoch e = 1; e <= 2; ++e) {
    EXPECT_EQ(w.outbox.done(e).reason, FinishReason::error) << e;
    EXPECT_EQ(w.outbox.done(e).code, msg::Code::worker_lost) << e;
  }
  EXPECT_FALSE(w.links.find("gpu-worker.0", 7));
  EXPECT_EQ(w.requests.live(), 0u);
  w.expect_balanced();
  // A new request for it is turned away.
  w.assign(9, World::text_request("x"));
  w.turn();
  EXPECT_EQ(w.outbox.done(9).code, msg::Code::worker_lost);
}

std::string tokens_head(uint32_t count, size_t payload) {
  const shm::TokensRecord head{1, count, 0};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes.resize(sizeof(head) + payload);
  return bytes;
}

TEST_F(Hostile, RecordOfUnknownType) {
  w.gpu.raw(RecordType::kPrompt, "xxxxxxxx");
  expect_link_lost(w, "malformed record of type 16");
}

TEST_F(Hostile, RecordTooShortForItsHead) {
  w.gpu.raw(RecordType::kTokens, "short");
  expect_link_lost(w, "5 bytes");
}

TEST_F(Hostile, CountBeyondTheRecord) {
  w.gpu.raw(RecordType::kTokens, tokens_head(2, sizeof(shm::TokenRow)));
  expect_link_lost(w, "malformed");
}

TEST_F(Hostile, CountThatOverflows) {
  w.gpu.raw(RecordType::kTokens, tokens_head(0xFFFFFFFF, 64));
  expect_link_lost(w, "malformed");
}

TEST_F(Hostile, TopCountBeyondTheRecord) {
  std::string bytes = tokens_head(1, sizeof(shm::TokenRow));
  const shm::TokenRow row{1, 1, 20, 0, 5};
  std::memcpy(bytes.data() + sizeof(shm::TokensRecord), &row, sizeof(row));
  w.gpu.raw(RecordType::kTokens, bytes);
  expect_link_lost(w, "malformed");
}

TEST_F(Hostile, TopCountBeyondTheLimit) {
  std::string bytes = tokens_head(1, sizeof(shm::TokenRow) + 1000 * sizeof(TokenLogprob));
  const shm::TokenRow row{1, 1, 20, 0, 1000};
  std::memcpy(bytes.data() + sizeof(shm::TokensRecord), &row, sizeof(row));
  w.gpu.raw(RecordType::kTokens, bytes);
  expect_link_lost(w, "malformed");
}

TEST_F(Hostile, EndWithAWrongMessageSize) {
  shm::EndedRecord ended{};
  ended.epoch = 1;
  ended.message_size = 0xFFFFFFF0;
  w.gpu.raw(RecordType::kEnded, std::string(reinterpret_cast<const char*>(&ended), sizeof(ended)));
  expect_link_lost(w, "malformed record of type 33");
}

TEST_F(Hostile, RingPositionThatCannotBe) {
  w.gpu.token_index->head.store(uint64_t{1} << 50, std::memory_order_release);
  expect_link_lost(w, "token ring is broken: the distance of head from tail is ");
}

TEST_F(Hostile, GpuWorkerThatRefusesTheLink) {
  w.gpu.ended(0, FinishReason::error, 0, Code::kMalformed, "command of 3 bytes");
  expect_link_lost(w, "refuses our commands: command of 3 bytes");
}

TEST_F(Hostile, DeathAfterItsLastWords) {
  w.gpu.say(1, 1, byte_ids("b"));
  w.gpu.say(2, 0, {byte_id('c'), kEnd});
  w.gpu.ended(2, FinishReason::stop, 2);
  w.gpu.die();
  w.requests.check_peers(w.now);
  w.turn();
  ASSERT_EQ(w.lost_links.size(), 1u);
  EXPECT_THAT(w.lost_links[0], HasSubstr("has ended"));
  EXPECT_EQ(w.outbox.whole(1).text, "ab") << "what it had written counts";
  EXPECT_EQ(w.outbox.done(1).code, msg::Code::worker_lost);
  EXPECT_EQ(w.outbox.done(2).reason, FinishReason::stop);
}

TEST_F(Hostile, DeathBetweenAStopStringAndItsAccount) {
  auto request = World::text_request("z");
  request.stop = {"!"};
  w.start(3, request);
  w.gpu.say(3, 0, byte_ids("a!"));
  w.turn();
  w.gpu.die();
  w.requests.check_peers(w.now);
  w.turn();
  EXPECT_EQ(w.outbox.done(3).reason, FinishReason::stop) << "it was complete";
}

TEST_F(Hostile, DeathWhileAPromptIsEncoded) {
  w.assign(3, World::text_request("z"));
  w.gpu.die();
  w.requests.check_peers(w.now);
  w.encode();
  w.turn();
  EXPECT_EQ(w.outbox.done(3).code, msg::Code::worker_lost);
  EXPECT_EQ(w.outbox.whole(3).dones.size(), 1u);
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
