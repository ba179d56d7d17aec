// The door: every parameter at its edge, with the code it is refused with and a message that names it.
#include <cmath>
#include <limits>
#include <random>

#include "router/admission.h"
#include "tests/router/support.h"

namespace ringmaster::router {
namespace {

// "ok", or the code and message of the refusal.
std::string verdict(const msg::GenerateT& g, const ModelLimits& limits = {1000, 64}) {
  flatbuffers::FlatBufferBuilder b;
  b.Finish(msg::CreateGenerate(b, &g));
  const auto* request = flatbuffers::GetRoot<msg::Generate>(b.GetBufferPointer());
  auto checked = check_request(*request);
  if (checked.ok()) checked = check_against_model(*request, limits);
  return checked.ok() ? "ok" : std::string(name(checked.error().code)) + ": " + checked.error().message;
}

template <typename Change>
std::string changed(Change change) {
  auto g = text_request(1);
  change(g);
  return verdict(g);
}

TEST(Admission, OrdinaryRequestsPass) {
  EXPECT_EQ(verdict(text_request(1)), "ok");
  EXPECT_EQ(verdict(ids_request(1, {0, 999})), "ok");
  EXPECT_EQ(verdict(chat_request(1, {{"system", ""}, {"user", "Hi"}})), "ok");
}

// Whether it can start from BOS alone is the tokenizer-worker's to know.
TEST(Admission, TPL_07_EmptyPromptsPass) {
  EXPECT_EQ(verdict(text_request(1, "")), "ok");
  EXPECT_EQ(verdict(ids_request(1, {})), "ok");
  EXPECT_EQ(verdict(chat_request(1, {{"user", ""}})), "ok");
}

TEST(Admission, Prompts) {
  EXPECT_EQ(verdict(text_request(1, "ab\xFF")),
            "invalid_utf8: prompt is not UTF-8: byte 2 starts no valid character");
  EXPECT_EQ(verdict(text_request(1, std::string(10'000'000, 'x'))),
            "too_large: prompt has 10000000 bytes; allowed: at most 8388608");
  EXPECT_EQ(verdict(ids_request(1, {5, 1000})),
            "invalid_argument: prompt[1] is 1000; the vocabulary has the ids 0 to 999");
  EXPECT_EQ(verdict(chat_request(1, {})),
            "invalid_argument: messages is empty; it must hold at least one message");
  EXPECT_EQ(verdict(chat_request(1, {{"", "Hi"}})), "invalid_argument: messages[0].role is empty");
  EXPECT_EQ(verdict(chat_request(1, {{"user", "Hi"}, {"a\nb", "Hi"}})),
            "invalid_argument: messages[1].role holds the control character 10; none is allowed");
  EXPECT_EQ(verdict(chat_request(1, {{std::string(65, 'r'), "Hi"}})),
            "too_large: messages[0].role has 65 bytes; allowed: at most 64");
  EXPECT_EQ(verdict(chat_request(1, {{"user", "\xC0\x80"}})),
            "invalid_utf8: messages[0].content is not UTF-8: byte 0 starts no valid character");
  flatbuffers::FlatBufferBuilder b;
  const auto text = msg::CreateTextPrompt(b, b.CreateString("x")).Union();
  const msg::Uid id = msg::to_wire(uid(1));
  b.Finish(msg::CreateGenerate(b, &id, static_cast<msg::Prompt>(9), text));
  EXPECT_EQ(check_request(*flatbuffers::GetRoot<msg::Generate>(b.GetBufferPointer())).error().code,
            Code::kUnsupported);
}

// One long text referred to by each of many messages: refused by the sum, without walking it.
TEST(Admission, SharedStringsAreCountedEachTime) {
  flatbuffers::FlatBufferBuilder b;
  const auto role = b.CreateString("user");
  const auto content = b.CreateString(std::string(1 << 20, 'x'));
  const auto message = msg::CreateChatMessage(b, role, content);
  const auto chat = msg::CreateChatPrompt(b, b.CreateVector(std::vector(10'000, message)));
  const msg::Uid id = msg::to_wire(uid(1));
  b.Finish(msg::CreateGenerate(b, &id, msg::Prompt::ChatPrompt, chat.Union()));
  const auto checked = check_request(*flatbuffers::GetRoot<msg::Generate>(b.GetBufferPointer()));
  EXPECT_EQ(checked.error().code, Code::kTooLarge);
  EXPECT_EQ(checked.error().message, "messages together has 10485800000 bytes; allowed: at most 8388608");
}

TEST(Admission, PRM_01_LengthsAgainstTheContextNameBoth) {
  EXPECT_EQ(verdict(ids_request(1, std::vector<uint32_t>(63, 5))), "ok");
  EXPECT_EQ(
      verdict(ids_request(1, std::vector<uint32_t>(64, 5))),
      "context_length_exceeded: the prompt has 64 tokens; the context holds 64, prompt and output together");
  auto g = ids_request(1, std::vector<uint32_t>(60, 5));
  g.max_tokens = 4;
  EXPECT_EQ(verdict(g), "ok");
  g.max_tokens = 5;
  EXPECT_EQ(verdict(g),
            "context_length_exceeded: the prompt has 60 tokens and max_tokens is 5; the context holds 64, "
            "prompt and output together");
  EXPECT_EQ(changed([](auto& r) { r.max_tokens = 63; }), "ok");
  EXPECT_EQ(changed([](auto& r) { r.max_tokens = 64; }),
            "context_length_exceeded: max_tokens is 64; the context holds 64, prompt and output together");
  EXPECT_EQ(changed([](auto& r) { r.max_tokens = std::numeric_limits<uint32_t>::max(); }).substr(0, 23),
            "context_length_exceeded");
}

TEST(Admission, Lengths) {
  EXPECT_EQ(
      changed([](auto& r) { r.max_tokens = 0; }),
      "invalid_argument: max_tokens is 0; allowed: at least 1, or absent for up to the end of the context");
  EXPECT_EQ(changed([](auto& r) { r.max_tokens = 3, r.min_tokens = 4; }),
            "invalid_argument: min_tokens is 4; allowed: at most max_tokens, which is 3");
  EXPECT_EQ(changed([](auto& r) {
              r.max_tokens = 2, r.received_ids = {5, 6, 7};
            }),
            "invalid_argument: received_ids has 3 ids, more than max_tokens, which is 2");
  EXPECT_EQ(changed([](auto& r) { r.max_tokens = 3, r.received_ids = {5, 6, 7}; }), "ok");
  EXPECT_EQ(changed([](auto& r) { r.received_ids = {1000}; }),
            "invalid_argument: received_ids[0] is 1000; the vocabulary has the ids 0 to 999");
}

TEST(Admission, PRM_07_TemperaturesOutOfRange) {
  for (const float good : {0.f, 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e30f})
    EXPECT_EQ(changed([&](auto& r) { sampling(r).temperature = good; }), "ok") << good;
  for (const float bad : {-1.f, -1e-9f, std::nanf(""), INFINITY, -INFINITY})
    EXPECT_EQ(changed([&](auto& r) { sampling(r).temperature = bad; }).substr(0, 32),
              "invalid_argument: temperature is")
        << bad;
}

TEST(Admission, SamplingRanges) {
  EXPECT_EQ(changed([](auto& r) { sampling(r).top_p = 0; }).substr(0, 17), "invalid_argument:");
  EXPECT_EQ(changed([](auto& r) { sampling(r).top_p = std::nanf(""); }).substr(0, 17), "invalid_argument:");
  EXPECT_EQ(changed([](auto& r) { sampling(r).min_p = 1.5f; }).substr(0, 17), "invalid_argument:");
  EXPECT_EQ(changed([](auto& r) { sampling(r).repetition_penalty = 0; }).substr(0, 17), "invalid_argument:");
  EXPECT_EQ(changed([](auto& r) { sampling(r).frequency_penalty = 2.5f; }).substr(0, 17),
            "invalid_argument:");
  EXPECT_EQ(changed([](auto& r) { sampling(r).presence_penalty = -2.5f; }).substr(0, 17),
            "invalid_argument:");
}

TEST(Admission, PRM_09_LogitBiasBeyondTheVocabularyOrTheBound) {
  const auto bias = [](std::vector<msg::LogitBias> entries) {
    return changed([&](auto& r) { sampling(r).logit_bias = std::move(entries); });
  };
  EXPECT_EQ(bias({{999, -100}}), "ok");
  EXPECT_EQ(bias({{999, 1}, {1000, 1}}),
            "invalid_argument: logit_bias names id 1000; the vocabulary has the ids 0 to 999");
  EXPECT_EQ(bias({{0xFFFFFFFF, 1}}),
            "invalid_argument: logit_bias names id 4294967295; the vocabulary has the ids 0 to 999");
  EXPECT_EQ(bias({{191222, 1}}),
            "invalid_argument: logit_bias names id 191222; the vocabulary has the ids 0 to 999");
  EXPECT_EQ(bias(std::vector<msg::LogitBias>(10'000, {5, 1})),
            "too_large: logit_bias has 10000 entries; allowed: at most 1024");
  EXPECT_EQ(bias({{5, std::nanf("")}}).substr(0, 17), "invalid_argument:");
}

TEST(Admission, PRM_13_StopIdsBeyondTheVocabulary) {
  EXPECT_EQ(changed([](auto& r) { r.stop_ids = {999}; }), "ok");
  EXPECT_EQ(changed([](auto& r) { r.stop_ids = {151645}, r.min_tokens = 5; }),
            "invalid_argument: stop_ids[0] is 151645; the vocabulary has the ids 0 to 999");
  EXPECT_EQ(changed([](auto& r) { r.stop_ids.assign(65, 5); }),
            "too_large: stop_ids has 65 ids; allowed: at most 64");
}

TEST(Admission, PRM_15_LogprobsAreCapped) {
  EXPECT_EQ(changed([](auto& r) { r.logprobs = uint8_t{20}; }), "ok");
  EXPECT_EQ(changed([](auto& r) { r.logprobs = uint8_t{21}; }),
            "invalid_argument: logprobs is 21; allowed: 0 to 20");
}

TEST(Admission, PRM_17_NIsHonouredOrRefused) {
  EXPECT_EQ(changed([](auto& r) { r.n = 0; }), "invalid_argument: n is 0; allowed: 1");
  EXPECT_EQ(changed([](auto& r) { r.n = 3; }),
            "unsupported: n is 3; this build answers with one choice, send n requests");
}

TEST(Admission, TXT_09_AnyStopStringUpToTheBoundWorks) {
  EXPECT_EQ(changed([](auto& r) {
              r.stop = {"\"}", "\n", "\t", "\xF0\x9F\xAB\xA0", std::string(1024, 's')};
            }),
            "ok");
  EXPECT_EQ(changed([](auto& r) {
              r.stop = {"x", ""};
            }),
            "invalid_argument: stop[1] is empty; a stop string has at least one character");
  EXPECT_EQ(changed([](auto& r) { r.stop = {std::string(1025, 's')}; }),
            "too_large: stop[0] has 1025 bytes; allowed: at most 1024");
  EXPECT_EQ(changed([](auto& r) { r.stop = {"\x80"}; }),
            "invalid_utf8: stop[0] is not UTF-8: byte 0 starts no valid character");
  EXPECT_EQ(changed([](auto& r) { r.stop.assign(10'000, "x"); }),
            "too_large: stop has 10000 strings; allowed: at most 16");
}

TEST(Admission, PRM_19_NamesOfOneMegabyteOrWithControlCharacters) {
  EXPECT_EQ(changed([](auto& r) { r.tenant = "caf\xC3\xA9"; }), "ok");
  EXPECT_EQ(changed([](auto& r) { r.tenant = std::string(1 << 20, 'x'); }),
            "too_large: tenant has 1048576 bytes; allowed: at most 128");
  EXPECT_EQ(changed([](auto& r) { r.tenant = "a\r\nSet-Cookie: x"; }),
            "invalid_argument: tenant holds the control character 13; none is allowed");
  EXPECT_EQ(changed([](auto& r) { r.tenant = "\x7F"; }),
            "invalid_argument: tenant holds the control character 127; none is allowed");
  EXPECT_EQ(changed([](auto& r) { r.uid = std::make_unique<msg::Uid>(0, 0); }),
            "invalid_argument: uid is 0; it must be 128 random bits");
  EXPECT_EQ(changed([](auto& r) { r.resume_grace_ms = 600'001; }),
            "invalid_argument: resume_grace_ms is 600001; allowed: 0 to 600000");
}

TEST(Admission, WithoutAModelOnlyTheRestIsChecked) {
  EXPECT_EQ(verdict(ids_request(1, std::vector<uint32_t>(100, 5000)), {}), "ok");
  EXPECT_EQ(verdict(text_request(1, "\xFF"), {}),
            "invalid_utf8: prompt is not UTF-8: byte 0 starts no valid character");
}

}  // namespace
}  // namespace ringmaster::router
