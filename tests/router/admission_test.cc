// The door: every parameter at its edge, with the code it is refused with and a message that names it.
#include <cmath>
#include <limits>
#include <random>

#include "router/admission.h"
#include "router/utf8.h"
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

TEST(Admission, Prompts) {
  EXPECT_EQ(verdict(text_request(1, "")),
            "invalid_argument: prompt is empty; it must hold at least one character");
  EXPECT_EQ(verdict(text_request(1, "ab\xFF")),
            "invalid_utf8: prompt is not UTF-8: byte 2 starts no valid character");
  EXPECT_EQ(verdict(text_request(1, std::string(10'000'000, 'x'))),
            "too_large: prompt has 10000000 bytes; allowed: at most 8388608");
  EXPECT_EQ(verdict(ids_request(1, {})), "invalid_argument: prompt ids are empty; at least one is needed");
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
    EXPECT_EQ(changed([&](auto& r) { sampling(r).temperature = bad; }).substr(0, 32), "invalid_argument: temperature is")
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
  EXPECT_EQ(verdict(text_request(1, ""), {}),
            "invalid_argument: prompt is empty; it must hold at least one character");
}

// ---- UTF-8 ----

// The definition, byte by byte and slow: decode, then refuse what has a shorter form, surrogates and what is
// too large.
size_t slow_prefix(std::string_view s) {
  size_t i = 0;
  while (i < s.size()) {
    const auto byte = [&](size_t k) { return static_cast<uint32_t>(static_cast<unsigned char>(s[i + k])); };
    const uint32_t lead = byte(0);
    const size_t length = lead < 0x80             ? 1
                          : (lead & 0xE0) == 0xC0 ? 2
                          : (lead & 0xF0) == 0xE0 ? 3
                          : (lead & 0xF8) == 0xF0 ? 4
                                                  : 0;
    if (length == 0 || s.size() - i < length) return i;
    uint32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
    for (size_t k = 1; k < length; ++k) {
      if ((byte(k) & 0xC0) != 0x80) return i;
      code = code << 6 | (byte(k) & 0x3F);
    }
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return i;
    i += length;
  }
  return i;
}

TEST(Utf8, WorkedExamples) {
  EXPECT_TRUE(is_valid_utf8(""));
  EXPECT_TRUE(is_valid_utf8(std::string_view("\0", 1)));
  EXPECT_TRUE(
      is_valid_utf8("\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"));
  EXPECT_EQ(valid_utf8_prefix("abc\xC0\xAF"), 3u);           // overlong
  EXPECT_EQ(valid_utf8_prefix("abc\xE0\x9F\xBF"), 3u);       // overlong
  EXPECT_EQ(valid_utf8_prefix("abc\xED\xA0\x80"), 3u);       // surrogate
  EXPECT_EQ(valid_utf8_prefix("abc\xF4\x90\x80\x80"), 3u);   // above U+10FFFF
  EXPECT_EQ(valid_utf8_prefix("12345678abc\xE2\x82"), 11u);  // cut off
  EXPECT_EQ(valid_utf8_prefix("\x80"), 0u);
}

TEST(Utf8, AllShortSequencesAgreeWithTheDefinition) {
  std::string s(3, '\0');
  for (uint32_t lead = 0; lead < 256; ++lead)
    for (uint32_t second = 0; second < 256; ++second)
      for (const uint32_t third : {0x00u, 0x7Fu, 0x80u, 0xBFu, 0xC0u, 0xFFu}) {
        s = {static_cast<char>(lead), static_cast<char>(second), static_cast<char>(third)};
        ASSERT_EQ(valid_utf8_prefix(s), slow_prefix(s)) << lead << " " << second << " " << third;
        s += '\x80';
        ASSERT_EQ(valid_utf8_prefix(s), slow_prefix(s)) << lead << " " << second << " " << third;
      }
}

TEST(Utf8, RandomBytesAtEveryOffsetAgreeWithTheDefinition) {
  std::mt19937 random(7);
  const std::string_view alphabet[] = {"a",    "bcdefghij", "\xC3\xA9",    "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                       "\xFF", "\xE2\x82",  "\xED\xA0\x80"};
  for (int round = 0; round < 20'000; ++round) {
    std::string s;
    while (random() % 8) s += alphabet[random() % (round % 2 ? 5 : 8)];
    ASSERT_EQ(valid_utf8_prefix(s), slow_prefix(s));
  }
}

}  // namespace
}  // namespace ringmaster::router
