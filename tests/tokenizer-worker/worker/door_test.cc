// What is refused before it reaches a gpu-worker, and what a resuming client may bring.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/tokenizer-worker/worker/world.h"

namespace ringmaster::tokenizer_worker {
namespace {

using msg::FinishReason;
using ::testing::HasSubstr;

constexpr Epoch kE = (Epoch{3} << 32) | 1;

// Assigns and encodes; expects a refusal that never reached the gpu-worker.
msg::DoneT refused(World& w, const msg::GenerateT& request) {
  w.assign(kE, request);
  w.encode();
  w.turn();
  EXPECT_TRUE(w.gpu.commands().empty());
  EXPECT_EQ(w.requests.live(), 0u);
  EXPECT_EQ(w.pool.in_flight(), 0u);
  w.expect_balanced();
  const auto done = w.outbox.done(kE);
  EXPECT_EQ(done.reason, FinishReason::refused);
  EXPECT_EQ(done.usage->output_tokens, 0u);
  return done;
}

TEST(Door, PRM_01_PromptThatFillsTheContext) {
  World w;  // context 256
  const auto done = refused(w, World::text_request(std::string(266, 'a')));
  EXPECT_EQ(done.code, msg::Code::context_length_exceeded);
  EXPECT_THAT(done.message, HasSubstr("prompt has 267 tokens"));
  EXPECT_THAT(done.message, HasSubstr("context holds 256"));
}

TEST(Door, PRM_01_PromptAndMaxTokensTogether) {
  World w;
  auto request = World::text_request("abcde");
  request.max_tokens = 251;
  const auto done = refused(w, request);
  EXPECT_EQ(done.code, msg::Code::context_length_exceeded);
  EXPECT_THAT(done.message, HasSubstr("max_tokens is 251"));
  EXPECT_THAT(done.message, HasSubstr("at most 250"));
}

TEST(Door, PRM_01_TheLastTokenThatFits) {
  World w;
  auto request = World::text_request("abcde");
  request.max_tokens = 250;
  EXPECT_EQ(w.start(kE, request).start.max_tokens, 250u);
  EXPECT_EQ(w.start(kE + 1, World::text_request(std::string(254, 'a'))).start.max_tokens, 1u);
}

// A gpu-worker's blocks may hold less than the model's context: the router says what all can do.
TEST(Door, PRM_05_TheClustersLimitCountsWhereItIsLessThanOnesOwn) {
  World w;  // context 256
  w.cluster_context = 20;
  EXPECT_EQ(w.start(kE, World::text_request("abcde")).start.max_tokens, 14u) << "without max_tokens: what fits";
  w.cluster_context = 300;
  EXPECT_EQ(w.start(kE + 1, World::text_request("abcde")).start.max_tokens, 250u);
}

TEST(Door, PRM_05_APromptBetweenTheTwoLimitsIsRefusedHere) {
  World w;
  w.cluster_context = 20;
  const auto done = refused(w, World::text_request(std::string(30, 'a')));
  EXPECT_EQ(done.code, msg::Code::context_length_exceeded);
  EXPECT_THAT(done.message, HasSubstr("context holds 20"));
}

TEST(Door, TPL_07_EmptyPromptStartsFromBos) {
  World w({.bos = TinyTokenizer::Bos::kAdded});
  EXPECT_EQ(w.start(kE, World::text_request("")).ids, std::vector<TokenId>{kBos});
  auto ids = World::text_request("");
  ids.prompt.Set(msg::IdsPromptT());
  EXPECT_EQ(w.start(kE + 1, ids).ids, std::vector<TokenId>{kBos});
}

// A model may have a BOS token and begin no text with it, as SmolLM2 does.
TEST(Door, TPL_07_EmptyPromptWithoutAnAddedBosIsRefused) {
  for (const auto bos : {TinyTokenizer::Bos::kKnown, TinyTokenizer::Bos::kNone}) {
    World text_world({.bos = bos}), ids_world({.bos = bos});
    EXPECT_EQ(refused(text_world, World::text_request("")).code, msg::Code::invalid_argument);
    auto ids = World::text_request("");
    ids.prompt.Set(msg::IdsPromptT());
    EXPECT_EQ(refused(ids_world, ids).code, msg::Code::invalid_argument);
  }
}

struct BadRequest {
  const char* name;
  std::function<void(msg::GenerateT&)> spoil;
  msg::Code code;
  const char* names;  // in the message
};

class Refusals : public ::testing::TestWithParam<BadRequest> {};

TEST_P(Refusals, NamesFieldValueAndRange) {
  World w;
  auto request = World::text_request("x");
  request.sampling = std::make_unique<msg::SamplingT>();
  GetParam().spoil(request);
  const auto done = refused(w, request);
  EXPECT_EQ(done.code, GetParam().code);
  EXPECT_THAT(done.message, HasSubstr(GetParam().names));
}

msg::GenerateT& chat(msg::GenerateT& r, size_t messages, const std::string& role,
                     const std::string& content) {
  msg::ChatPromptT prompt;
  for (size_t i = 0; i < messages; ++i) {
    prompt.messages.push_back(std::make_unique<msg::ChatMessageT>());
    prompt.messages.back()->role = role;
    prompt.messages.back()->content = content;
  }
  r.prompt.Set(std::move(prompt));
  return r;
}

using R = msg::GenerateT;
constexpr auto kInvalid = msg::Code::invalid_argument;
INSTANTIATE_TEST_SUITE_P(
    All, Refusals,
    ::testing::Values(
        BadRequest{"max_tokens_0", [](R& r) { r.max_tokens = 0; }, kInvalid, "max_tokens is 0"},
        BadRequest{"min_above_max", [](R& r) { r.max_tokens = 3, r.min_tokens = 4; }, kInvalid,
                   "min_tokens is 4"},
        BadRequest{"n_2", [](R& r) { r.n = 2; }, msg::Code::unsupported, "n is 2"},
        BadRequest{"logprobs_21", [](R& r) { r.logprobs = 21; }, kInvalid, "0 to 20"},
        BadRequest{"temperature", [](R& r) { r.sampling->temperature = -1; }, kInvalid, "temperature"},
        BadRequest{"nan", [](R& r) { r.sampling->top_p = std::nanf(""); }, kInvalid, "top_p"},
        BadRequest{"PRM_13_stop_id",
                   [](R& r) {
                     r.stop_ids = {3, kTinyVocabulary};
                   },
                   kInvalid, "stop_ids[1] is 272"},
        BadRequest{"many_stop_ids", [](R& r) { r.stop_ids.assign(65, 1); }, kInvalid, "stop_ids has 65"},
        BadRequest{"PRM_09_bias_id",
                   [](R& r) { r.sampling->logit_bias.push_back(msg::LogitBias(191222, 1)); }, kInvalid,
                   "logit_bias[0] is 191222"},
        BadRequest{"PRM_09_many_biases",
                   [](R& r) { r.sampling->logit_bias.assign(10'000, msg::LogitBias(1, 1)); }, kInvalid,
                   "logit_bias has 10000"},
        BadRequest{"many_stops", [](R& r) { r.stop.assign(10'000, "x"); }, kInvalid, "stop has 10000"},
        BadRequest{"empty_stop",
                   [](R& r) {
                     r.stop = {"a", ""};
                   },
                   kInvalid, "stop[1] has 0 bytes"},
        BadRequest{"long_stop", [](R& r) { r.stop = {std::string(1025, 'x')}; }, kInvalid, "1 to 1024"},
        BadRequest{"stop_utf8", [](R& r) { r.stop = {"a\xFF"}; }, msg::Code::invalid_utf8, "stop[0]"},
        BadRequest{"received_id", [](R& r) { r.received_ids = {9999}; }, kInvalid, "received_ids[0] is 9999"},
        BadRequest{"received_over_max",
                   [](R& r) {
                     r.max_tokens = 1, r.received_ids = {20, 21};
                   },
                   kInvalid, "received_ids has 2"},
        BadRequest{"received_text", [](R& r) { r.received_ids = {20}, r.received_text_offset = 2; }, kInvalid,
                   "received_text_offset is 2"},
        BadRequest{"text_utf8", [](R& r) { r.prompt.AsTextPrompt()->text = "ab\xC0\x80"; },
                   msg::Code::invalid_utf8, "byte 2"},
        BadRequest{"huge", [](R& r) { r.prompt.AsTextPrompt()->text.assign(10 << 20, 'a'); },
                   msg::Code::too_large, "10485760"},
        BadRequest{"prompt_id",
                   [](R& r) {
                     msg::IdsPromptT ids;
                     ids.ids = {5, kTinyVocabulary};
                     r.prompt.Set(std::move(ids));
                   },
                   kInvalid, "ids[1] is 272"},
        BadRequest{"no_messages", [](R& r) { chat(r, 0, "", ""); }, kInvalid, "messages has 0"},
        BadRequest{"many_messages", [](R& r) { chat(r, 20'000, "u", ""); }, kInvalid, "messages has 20000"},
        BadRequest{"role_utf8", [](R& r) { chat(r, 1, "\x80", ""); }, msg::Code::invalid_utf8,
                   "messages[0].role"},
        BadRequest{"content_utf8", [](R& r) { chat(r, 2, "u", "\xED\xA0\x80"); }, msg::Code::invalid_utf8,
                   "messages[0].content"},
        BadRequest{"huge_chat", [](R& r) { chat(r, 5, "u", std::string(2 << 20, 'a')); },
                   msg::Code::too_large, "prompt has"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Door, AnyNonEmptyStopStringWorks) {  // TXT-09
  World w;
  auto request = World::text_request("x");
  request.stop = {"\"}", "\n", "\t", "\xF0\x9F\x98\x80", std::string(1024, 'q')};
  w.start(kE, request);
  w.gpu.say(kE, 0, byte_ids("a\xF0\x9F\x98\x80"));
  w.turn();
  EXPECT_EQ(w.outbox.whole(kE).text, "a");
}

// ---- places and limits ----

TEST(Door, UnknownGpuWorkerOrInstance) {
  World w;
  w.assign(1, World::text_request("x"), "client-a", "gpu-worker.9");
  w.assign(2, World::text_request("x"), "client-a", "gpu-worker.0", 8);
  w.encode();
  w.turn();
  for (Epoch e = 1; e <= 2; ++e) {
    EXPECT_EQ(w.outbox.done(e).reason, FinishReason::error);
    EXPECT_EQ(w.outbox.done(e).code, msg::Code::worker_lost);
  }
}

TEST(Door, EncodeQueueFull) {
  World w({.encode_queue = 2});
  for (Epoch e = 1; e <= 3; ++e) w.assign(e, World::text_request("x"));
  w.turn();
  EXPECT_EQ(w.outbox.ends.size(), 1u);
  EXPECT_EQ(w.outbox.done(3).reason, FinishReason::refused);
  EXPECT_EQ(w.outbox.done(3).code, msg::Code::overloaded);
  EXPECT_THAT(w.outbox.done(3).message, HasSubstr("tokenizer-worker.encode_queue"));
  // A cancelled one makes room.
  w.end(1, FinishReason::cancelled);
  w.assign(4, World::text_request("x"));
  w.encode();
  w.turn();
  EXPECT_EQ(w.gpu.commands().size(), 2u);
}

TEST(Door, TooManyLiveRequests) {
  World w({.limits = {.context_length = 256, .max_live = 1, .credit = 8}});
  w.assign(1, World::text_request("x"));
  w.assign(2, World::text_request("x"));
  w.turn();
  EXPECT_EQ(w.outbox.done(2).code, msg::Code::overloaded);
  EXPECT_EQ(w.requests.live(), 1u);
}

// The client asked twice before the refusal reached it: the second answer is the first one again.
TEST(Door, ARefusedContinuationIsToldAgainAsItWas) {
  World w({.limits = {.context_length = 256, .max_live = 1, .credit = 8}});
  w.assign(1, World::text_request("x"));
  auto request = World::text_request("x");
  request.received_ids = byte_ids("ab");
  request.received_text_offset = 2;
  w.assign(2, request);
  w.turn();
  EXPECT_EQ(w.outbox.done(2).code, msg::Code::overloaded);
  w.resend(2, 2, 2, "client-b");
  w.turn();
  EXPECT_EQ(w.outbox.done(2, "client-b").code, msg::Code::overloaded);
}

TEST(Door, RefusesNewOnesWhileItDrains) {
  World w;
  w.start(1, World::text_request("x"));
  w.requests.refuse_new("tokenizer-worker.0 is being stopped; retry");
  w.assign(2, World::text_request("x"));
  w.turn();
  EXPECT_EQ(w.outbox.done(2).code, msg::Code::unavailable);
  EXPECT_EQ(w.requests.live(), 1u);
}

TEST(Door, AssignThatRepeatsAnEpochOrHoldsNoGenerate) {
  World w;
  w.assign(kE, World::text_request("x"));
  w.assign(kE, World::text_request("y"));
  EXPECT_EQ(w.counters[Counter::kMessagesMalformed], 1u);
  w.encode();
  w.turn();
  EXPECT_EQ(w.gpu.commands().at(0).ids, (std::vector<TokenId>{kBos, byte_id('x')}));

  flatbuffers::FlatBufferBuilder ping, b;
  msg::seal<msg::RouterMessage>(ping, msg::RouterBody::Ping, msg::CreatePing(ping).Union());
  for (const std::string& bytes :
       {std::string(reinterpret_cast<char*>(ping.GetBufferPointer()), ping.GetSize()), std::string("junk")}) {
    b.Clear();
    msg::AssignT assign;
    assign.epoch = kE + 1;
    assign.gpu_worker = "gpu-worker.0";
    assign.request.assign(bytes.begin(), bytes.end());
    b.Finish(msg::CreateAssign(b, &assign));
    w.requests.assign(*flatbuffers::GetRoot<msg::Assign>(b.GetBufferPointer()), w.now);
  }
  EXPECT_EQ(w.counters[Counter::kMessagesMalformed], 3u);
  w.expect_balanced();
}

// ---- a stream that continues ----

msg::GenerateT resumed(std::vector<TokenId> received, uint64_t text_offset) {
  auto request = World::text_request("hello");
  request.received_ids = std::move(received);
  request.received_text_offset = text_offset;
  request.max_tokens = 10;
  return request;
}

TEST(Continued, TheContextHasThePromptAndTheReceivedIds) {
  World w;
  const SeenCommand start = w.start(kE, resumed(byte_ids("abc"), 3));
  std::vector<TokenId> ids = {kBos, piece_id("hello")};
  for (const TokenId id : byte_ids("abc")) ids.push_back(id);
  EXPECT_EQ(start.ids, ids);
  EXPECT_EQ(start.prompt.prompt_count, 2u);
  EXPECT_EQ(start.start.granted, 3u + 8u);
  EXPECT_EQ(start.start.max_tokens, 10u);
  w.gpu.say(kE, 3, byte_ids("d"));
  w.turn();
  const auto whole = w.outbox.whole(kE);
  EXPECT_EQ(whole.first_token, 3u);
  EXPECT_EQ(whole.text, "d");
  EXPECT_EQ(w.outbox.pieces[0].chunk.text_offset, 3u);
}

TEST(Continued, HalfACharacterGoesOn) {
  World w;
  w.start(kE, resumed(byte_ids("a\xC3"), 1));
  w.gpu.say(kE, 2, byte_ids("\xA9"));
  w.turn();
  EXPECT_EQ(w.outbox.whole(kE).text, "\xC3\xA9");
}

TEST(Continued, HalfAStopStringGoesOn) {
  World w;
  auto request = resumed(byte_ids("ax"), 1);
  request.stop = {"xy"};
  w.start(kE, request);
  w.gpu.say(kE, 2, byte_ids("y"));
  w.turn();
  EXPECT_EQ(w.outbox.whole(kE).text, "");
  EXPECT_EQ(w.gpu.commands().at(0).type, shm::RecordType::kStopAt);
}

TEST(Continued, TextThatTheClientMissesIsSentAtOnce) {
  World w;
  w.start(kE, resumed(byte_ids("abc"), 1));
  EXPECT_EQ(w.outbox.whole(kE).text, "bc");
  EXPECT_TRUE(w.outbox.whole(kE).ids.empty());
}

TEST(Continued, OneThatWasCompleteGetsOnlyItsDone) {
  World w;
  auto by_stop = resumed(byte_ids("abx"), 2);
  by_stop.stop = {"x"};
  auto by_length = resumed(byte_ids("ab"), 2);
  by_length.max_tokens = 2;
  w.assign(1, by_stop);
  w.assign(2, resumed({byte_id('a'), kEnd}, 1));
  w.assign(3, by_length);
  w.encode();
  w.turn();
  EXPECT_TRUE(w.gpu.commands().empty()) << "nothing is run again";
  EXPECT_EQ(w.outbox.done(1).reason, FinishReason::stop);
  EXPECT_EQ(w.outbox.done(1).stop, "x");
  EXPECT_EQ(w.outbox.done(2).reason, FinishReason::stop);
  EXPECT_EQ(w.outbox.done(3).reason, FinishReason::length);
  EXPECT_EQ(w.outbox.done(3).usage->output_tokens, 2u);
  EXPECT_TRUE(w.outbox.pieces.empty());
}

TEST(Continued, IdsBehindAStopStringAreRefused) {
  World w;
  auto request = resumed(byte_ids("axb"), 1);
  request.stop = {"x"};
  EXPECT_EQ(refused(w, request).code, msg::Code::invalid_argument);
  EXPECT_TRUE(w.outbox.pieces.empty()) << "nothing of what the client only claimed to have";
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
