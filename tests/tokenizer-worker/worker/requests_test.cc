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
  w.gpu.times = {w.now + 1, w.now + 100, w.now + 300, w.now + 700};
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
