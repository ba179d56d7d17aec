// Worked examples of one request's life, through real rings. Tokens are written out; texts are what a reader
// sees.
#include <gtest/gtest.h>

#include "tests/tokenizer-worker/worker/world.h"

namespace ringmaster::tokenizer_worker {
namespace {

using msg::FinishReason;
using shm::RecordType;

constexpr Epoch kE = (Epoch{3} << 32) | 1;

TEST(Requests, TextPromptToStreamedTextToDone) {
  World w;
  auto request = World::text_request("hello world");
  request.max_tokens = 20;
  request.min_tokens = 2;
  request.priority = 5;
  request.tenant = "acme";
  request.stop_ids = {kUser};
  request.sampling = std::make_unique<msg::SamplingT>();
  request.sampling->temperature = 0.5f;
  request.sampling->top_k = 40;
  request.sampling->top_p = 0.75f;
  request.sampling->logit_bias.push_back(msg::LogitBias(kBot, -100.0f));
  const SeenCommand start = w.start(kE, request);

  EXPECT_EQ(start.type, RecordType::kStart);
  EXPECT_EQ(start.ids, (std::vector<TokenId>{kBos, piece_id("hello"), piece_id(" world")}));
  EXPECT_EQ(start.prompt.prompt_count, 3u);
  EXPECT_EQ(start.start.max_tokens, 20u);
  EXPECT_EQ(start.start.min_tokens, 2u);
  EXPECT_EQ(start.start.granted, 8u);
  EXPECT_EQ(start.start.seed, 99u);
  EXPECT_EQ(start.start.priority, 5);
  EXPECT_EQ(start.start.temperature, 0.5f);
  EXPECT_EQ(start.start.top_k, 40u);
  EXPECT_EQ(start.start.top_p, 0.75f);
  EXPECT_EQ(start.start.repetition_penalty, 1.0f);
  EXPECT_EQ(start.start.logprobs, 0u);
  EXPECT_EQ(start.stop_ids, (std::vector<TokenId>{kEnd, kUser}));
  ASSERT_EQ(start.bias.size(), 1u);
  EXPECT_EQ(start.bias[0].id, kBot);
  EXPECT_TRUE(w.gpu.rang());

  w.gpu.say(kE, 0, {byte_id('a'), byte_id('b')});
  w.turn();
  ASSERT_EQ(w.outbox.pieces.size(), 1u) << "what one turn brought goes out together";
  EXPECT_EQ(w.outbox.pieces[0].client, "client-a");
  EXPECT_EQ(w.outbox.pieces[0].chunk.text, "ab");
  EXPECT_EQ(w.outbox.pieces[0].chunk.uid->hi(), 1u);
  EXPECT_TRUE(w.outbox.pieces[0].chunk.logprobs.empty());

  w.gpu.say(kE, 2, {kEnd});
  w.gpu.ended(kE, FinishReason::stop, 3, Code::kOk, "", /*cached_tokens=*/2);
  w.turn();
  const auto whole = w.outbox.whole(kE);
  EXPECT_EQ(whole.ids, (std::vector<TokenId>{byte_id('a'), byte_id('b'), kEnd}))
      << "the end id is the last id";
  EXPECT_EQ(whole.text, "ab") << "and leaves no text";
  const auto done = w.outbox.done(kE);
  EXPECT_EQ(done.reason, FinishReason::stop);
  EXPECT_EQ(done.code, msg::Code::ok);
  EXPECT_EQ(done.usage->prompt_tokens, 3u);
  EXPECT_EQ(done.usage->cached_tokens, 2u);
  EXPECT_EQ(done.usage->output_tokens, 3u);
  EXPECT_EQ(w.requests.live(), 0u);
  w.expect_balanced();
}

TEST(Requests, StageTimingsSumToTotal) {
  World w;
  w.assign(kE, World::text_request("x"));
  w.now += 10;
  w.encode();
  w.turn();
  w.gpu.say(kE, 0, {byte_id('a'), byte_id('b')});
  w.gpu.times = {w.now + 100, w.now + 300, w.now + 700};
  w.gpu.ended(kE, FinishReason::length, 2);
  w.pass(1000);
  const auto done = w.outbox.done(kE);
  ASSERT_NE(done.timings, nullptr);
  EXPECT_EQ(done.timings->route(), 0u);
  EXPECT_EQ(done.timings->tokenize(), 10u);
  EXPECT_EQ(done.timings->queue(), 100u);
  EXPECT_EQ(done.timings->prefill(), 200u);
  EXPECT_EQ(done.timings->decode(), 400u);
  EXPECT_EQ(done.timings->detokenize(), 300u);
  EXPECT_EQ(done.timings->total(), 1010u);
}

TEST(Requests, ChatPrompt) {
  World w({.bos = TinyTokenizer::Bos::kKnown});
  msg::GenerateT request = World::text_request("");
  msg::ChatPromptT chat;
  chat.messages.push_back(std::make_unique<msg::ChatMessageT>());
  chat.messages[0]->role = "u";
  chat.messages[0]->content = "<end>!";
  request.prompt.Set(std::move(chat));
  const SeenCommand start = w.start(kE, request);
  std::vector<TokenId> expected = {kUser, byte_id('u'), byte_id('\n')};
  for (const TokenId id : byte_ids("<end>!")) expected.push_back(id);  // a user cannot spell a control token
  expected.insert(expected.end(), {kEnd, kBot});
  EXPECT_EQ(start.ids, expected);
}

TEST(Requests, IdsPromptIsTakenAsItIs) {
  World w;
  msg::GenerateT request = World::text_request("");
  msg::IdsPromptT prompt;
  prompt.ids = {kUser, 20, 21};
  request.prompt.Set(std::move(prompt));
  EXPECT_EQ(w.start(kE, request).ids, (std::vector<TokenId>{kUser, 20, 21}));
}

TEST(Requests, DefaultMaxTokensIsTheRestOfTheContext) {
  World w;
  EXPECT_EQ(w.start(kE, World::text_request("abcd")).start.max_tokens, 256u - 5u);
}

TEST(Requests, IgnoreEosKeepsOnlyOwnStopIds) {
  World w;
  auto request = World::text_request("a");
  request.ignore_eos = true;
  request.stop_ids = {kBot, kUser};
  EXPECT_EQ(w.start(kE, request).stop_ids, (std::vector<TokenId>{kUser, kBot}));
}

TEST(Requests, TenantsHaveDifferentSalts) {
  World w;
  auto request = World::text_request("a");
  const auto none = w.start(kE, request);
  request.tenant = "acme";
  const auto acme = w.start(kE + 1, request);
  const auto again = w.start(kE + 2, request);
  EXPECT_NE(none.start.cache_salt[0], acme.start.cache_salt[0]);
  EXPECT_EQ(acme.start.cache_salt[0], again.start.cache_salt[0]);
  EXPECT_EQ(acme.start.cache_salt[1], again.start.cache_salt[1]);
}

TEST(Requests, TXT_01_CharactersWaitUntilTheyAreWhole) {
  World w;
  w.start(kE, World::text_request("x"));
  const std::string text = "\xF0\x9F\xAB\xA0!";  // U+1FAE0
  for (uint32_t i = 0; i < text.size(); ++i) {
    w.gpu.say(kE, i, {byte_id(text[i])});
    w.turn();
  }
  ASSERT_EQ(w.outbox.pieces.size(), 5u) << "ids do not wait for text";
  EXPECT_EQ(w.outbox.pieces[0].chunk.text, "");
  EXPECT_EQ(w.outbox.pieces[2].chunk.text, "");
  EXPECT_EQ(w.outbox.pieces[3].chunk.text, "\xF0\x9F\xAB\xA0");
  EXPECT_EQ(w.outbox.whole(kE).text, text);
}

TEST(Requests, TXT_03_ForcedEndInMidCharacterIsMarked) {
  World w;
  auto request = World::text_request("x");
  request.max_tokens = 2;
  w.start(kE, request);
  w.gpu.say(kE, 0, {byte_id('a'), byte_id('\xE4')});
  w.gpu.ended(kE, FinishReason::length, 2);
  w.turn();
  EXPECT_EQ(w.outbox.whole(kE).text, "a\xEF\xBF\xBD");
  EXPECT_EQ(w.outbox.done(kE).reason, FinishReason::length);
  EXPECT_EQ(w.outbox.done(kE).usage->output_tokens, 2u);
}

// "\nObservation:" in the pieces of TXT-05.
class StopString : public ::testing::Test {
 protected:
  msg::GenerateT request() {
    auto r = World::text_request("x");
    r.stop = {"\nObservation:"};
    return r;
  }
  void say_until_stop() {
    w.gpu.say(kE, 0, {byte_id('a'), byte_id('\n'), piece_id("Obs"), piece_id("ervation"), piece_id(": x")});
    w.turn();
  }
  World w;
};

TEST_F(StopString, TXT_05_AcrossTokensIsTrimmed) {
  w.start(kE, request());
  say_until_stop();
  const auto whole = w.outbox.whole(kE);
  EXPECT_EQ(whole.text, "a");
  EXPECT_EQ(whole.ids.size(), 5u);
  const auto commands = w.gpu.commands();
  ASSERT_EQ(commands.size(), 1u) << "the slot in the gpu-worker is freed";
  EXPECT_EQ(commands[0].type, RecordType::kStopAt);
  EXPECT_EQ(commands[0].value, 5u);

  // The gpu-worker had run ahead by two; they are neither sent nor billed.
  w.gpu.say(kE, 5, {byte_id('y'), byte_id('z')});
  w.gpu.ended(kE, FinishReason::stop, 5, Code::kOk, "", 1);
  w.turn();
  const auto done = w.outbox.done(kE);
  EXPECT_EQ(done.reason, FinishReason::stop);
  EXPECT_EQ(done.stop, "\nObservation:");
  EXPECT_EQ(done.usage->output_tokens, 5u);
  EXPECT_EQ(done.usage->cached_tokens, 1u);
  EXPECT_EQ(w.outbox.whole(kE).ids.size(), 5u);
  EXPECT_EQ(w.counters[Counter::kTokensPastStop], 2u);
  EXPECT_TRUE(w.gpu.commands().empty());
}

TEST_F(StopString, IncludeStopKeepsIt) {
  auto r = request();
  r.include_stop = true;
  w.start(kE, r);
  say_until_stop();
  EXPECT_EQ(w.outbox.whole(kE).text, "a\nObservation:");
}

TEST_F(StopString, DoneDoesNotWaitLongForTheAccount) {
  w.start(kE, request());
  say_until_stop();
  EXPECT_TRUE(w.outbox.ends.empty());
  w.pass(49 * kMillisecond);
  EXPECT_TRUE(w.outbox.ends.empty());
  w.pass(kMillisecond);
  EXPECT_EQ(w.outbox.done(kE).stop, "\nObservation:");
  // The account that comes too late changes nothing.
  w.gpu.ended(kE, FinishReason::stop, 5);
  w.turn();
  EXPECT_EQ(w.outbox.ends.size(), 1u);
}

TEST_F(StopString, EndOfLengthThatCrossesTheStopIsStop) {
  w.start(kE, request());
  say_until_stop();
  w.gpu.ended(kE, FinishReason::length, 5);
  w.turn();
  EXPECT_EQ(w.outbox.done(kE).reason, FinishReason::stop);
}

TEST_F(StopString, CancelAfterTheStopIsStillAStop) {
  w.start(kE, request());
  say_until_stop();
  w.end(kE, FinishReason::cancelled, msg::Code::cancelled);
  w.turn();
  EXPECT_EQ(w.outbox.done(kE).reason, FinishReason::stop);
  EXPECT_EQ(w.requests.live(), 0u);
}

TEST_F(StopString, HeldBackTextComesAtTheEndWithoutAStop) {
  w.start(kE, request());
  w.gpu.say(kE, 0, {byte_id('a'), byte_id('\n'), piece_id("Obs")});
  w.turn();
  EXPECT_EQ(w.outbox.whole(kE).text, "a");
  EXPECT_EQ(w.outbox.whole(kE).ids.size(), 3u);
  w.gpu.ended(kE, FinishReason::length, 3);
  w.turn();
  EXPECT_EQ(w.outbox.whole(kE).text, "a\nObs");
}

TEST(Requests, LogprobsTravelWithTheirIds) {
  World w;
  auto request = World::text_request("x");
  request.logprobs = 2;
  EXPECT_EQ(w.start(kE, request).start.logprobs, 3u);
  w.gpu.tokens({{kE, 0, 20, -0.5f, {{20, -0.5f}, {21, -1.5f}}}});
  w.gpu.tokens({{kE, 1, 30, -2.0f, {}}});
  w.turn();
  w.ack(kE, 1, 1);
  w.resend(kE, 1, 1, "client-a");
  w.gpu.tokens({{kE, 2, 40, -0.25f, {{41, -0.125f}}}});
  w.turn();
  ASSERT_EQ(w.outbox.pieces.size(), 2u);
  const auto& first = w.outbox.pieces[0].chunk.logprobs;
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0]->chosen, -0.5f);
  ASSERT_EQ(first[0]->top.size(), 2u);
  EXPECT_EQ(first[0]->top[1].id(), 21u);
  EXPECT_EQ(first[0]->top[1].logprob(), -1.5f);
  EXPECT_TRUE(first[1]->top.empty());
  const auto& second = w.outbox.pieces[1].chunk.logprobs;
  ASSERT_EQ(second.size(), 2u) << "again from token 1";
  EXPECT_EQ(second[0]->chosen, -2.0f);
  ASSERT_EQ(second[1]->top.size(), 1u);
  EXPECT_EQ(second[1]->top[0].id(), 41u);
}

TEST(Requests, StreamsOfOneClientShareAMessage) {
  World w;
  w.start(kE, World::text_request("x"));
  w.start(kE + 1, World::text_request("y"), "client-b");
  w.start(kE + 2, World::text_request("z"));
  w.outbox.clear();
  w.gpu.tokens(
      {{kE, 0, byte_id('1'), 0, {}}, {kE + 1, 0, byte_id('2'), 0, {}}, {kE + 2, 0, byte_id('3'), 0, {}}});
  w.turn();
  EXPECT_EQ(w.outbox.messages, 1);
  EXPECT_EQ(w.outbox.pieces.size(), 3u);
  EXPECT_EQ(w.outbox.whole(kE).text, "1");
  EXPECT_EQ(w.outbox.whole(kE + 1, "client-b").text, "2");
  EXPECT_EQ(w.outbox.whole(kE + 2).text, "3");
}

TEST(Requests, WhatTheTransportDoesNotTakeIsTriedAgain) {
  World w;
  w.start(kE, World::text_request("x"));
  w.outbox.full = true;
  w.gpu.say(kE, 0, {byte_id('a')});
  w.turn();
  w.gpu.say(kE, 1, {kEnd});
  w.gpu.ended(kE, FinishReason::stop, 2);
  w.turn();
  EXPECT_EQ(w.counters[Counter::kSendsRefused], 1u) << "not tried in every turn";
  EXPECT_TRUE(w.requests.unsent());
  w.outbox.full = false;
  w.pass(10 * kMillisecond);
  EXPECT_EQ(w.outbox.whole(kE).text, "a");
  EXPECT_EQ(w.outbox.done(kE).reason, FinishReason::stop);
  EXPECT_FALSE(w.requests.unsent());
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
