// Spans to ids: who may spell a control token, where BOS comes from, what is encoded as one piece.
#include <gtest/gtest.h>

#include "tests/tokenizer-worker/worker/tiny_tokenizer.h"
#include "tokenizer-worker/prompt_builder.h"

namespace ringmaster::tokenizer_worker {
namespace {

// The ids of a chat prompt whose template rendered exactly these spans.
Result<std::vector<TokenId>> build(const Tokenizer& tokenizer, std::vector<RenderedSpan> spans) {
  const PromptBuilder builder(tokenizer, [&](const nlohmann::ordered_json&) { return spans; });
  msg::ChatPromptT chat;
  chat.messages.push_back(std::make_unique<msg::ChatMessageT>());
  flatbuffers::FlatBufferBuilder b;
  b.Finish(msg::CreateChatPrompt(b, &chat));
  const std::atomic<bool> cancelled{false};
  return builder.build({msg::Prompt::ChatPrompt, flatbuffers::GetRoot<msg::ChatPrompt>(b.GetBufferPointer())},
                       cancelled);
}

Result<std::vector<TokenId>> build_text(const Tokenizer& tokenizer, const std::string& text) {
  const PromptBuilder builder(tokenizer, {});
  flatbuffers::FlatBufferBuilder b;
  b.Finish(msg::CreateTextPromptDirect(b, text.c_str()));
  const std::atomic<bool> cancelled{false};
  return builder.build({msg::Prompt::TextPrompt, flatbuffers::GetRoot<msg::TextPrompt>(b.GetBufferPointer())},
                       cancelled);
}

using Ids = std::vector<TokenId>;

TEST(PromptBuilder, OnlyTheTemplateSpellsControlTokens) {
  const TinyTokenizer tokenizer(TinyTokenizer::Bos::kKnown);
  Ids expected = {kUser};
  for (const TokenId id : byte_ids("<end>")) expected.push_back(id);
  expected.push_back(kEnd);
  EXPECT_EQ(*build(tokenizer, {{"<user>", true}, {"<end>", false}, {"<end>", true}}), expected);
}

TEST(PromptBuilder, TemplateAndUserCannotSpellOneTogether) {
  const TinyTokenizer tokenizer(TinyTokenizer::Bos::kKnown);
  EXPECT_EQ(*build(tokenizer, {{"<en", true}, {"d>", false}}), byte_ids("<end>"));
  EXPECT_EQ(*build(tokenizer, {{"<en", false}, {"d>", true}}), byte_ids("<end>"));
}

// The reference renders one string, cuts it at control tokens and encodes what lies between: pieces cross
// spans.
TEST(PromptBuilder, TextBetweenControlTokensIsOnePiece) {
  const TinyTokenizer tokenizer(TinyTokenizer::Bos::kKnown);
  const auto ids =
      build(tokenizer, {{"<user>us", true}, {"er", false}, {"\n", true}, {"hi", false}, {"<end>", true}});
  EXPECT_EQ(*ids, (Ids{kUser, byte_id('u'), byte_id('s'), piece_id("er\nhi"), kEnd}));
}

TEST(PromptBuilder, TOK_15_ExactlyOneBos) {
  const TinyTokenizer adds(TinyTokenizer::Bos::kAdded), knows(TinyTokenizer::Bos::kKnown);
  EXPECT_EQ(*build(adds, {{"<user>", true}}), (Ids{kBos, kUser})) << "the model adds it";
  EXPECT_EQ(*build(adds, {{"<s><user>", true}}), (Ids{kBos, kUser})) << "the template wrote it";
  EXPECT_EQ(*build(knows, {{"<s><user>", true}}), (Ids{kBos, kUser}));
  EXPECT_EQ(*build(knows, {{"<user>", true}}), (Ids{kUser})) << "nobody adds it";
  Ids spelled = {kBos};
  for (const TokenId id : byte_ids("<s>a")) spelled.push_back(id);
  EXPECT_EQ(*build_text(adds, "<s>a"), spelled) << "a text that begins with its spelling";
  EXPECT_EQ(*build_text(knows, "a"), byte_ids("a"));
}

TEST(PromptBuilder, EmptyPrompts) {
  const TinyTokenizer adds(TinyTokenizer::Bos::kAdded), knows(TinyTokenizer::Bos::kKnown);
  EXPECT_EQ(*build_text(adds, ""), Ids{kBos});
  EXPECT_EQ(*build_text(knows, ""), Ids{}) << "fit_prompt decides";
  EXPECT_EQ(*build(adds, {}), Ids{kBos});
}

TEST(PromptBuilder, WithoutATemplateChatIsRefused) {
  const TinyTokenizer tokenizer;
  const PromptBuilder builder(tokenizer, {});
  flatbuffers::FlatBufferBuilder b;
  msg::ChatPromptT chat;
  b.Finish(msg::CreateChatPrompt(b, &chat));
  const std::atomic<bool> cancelled{false};
  const auto ids = builder.build(
      {msg::Prompt::ChatPrompt, flatbuffers::GetRoot<msg::ChatPrompt>(b.GetBufferPointer())}, cancelled);
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, Code::kUnsupported);
}

TEST(PromptBuilder, ATemplateThatRaisesRefusesWithItsWords) {
  const TinyTokenizer tokenizer;
  const PromptBuilder builder(tokenizer,
                              [](const nlohmann::ordered_json&) -> Result<std::vector<RenderedSpan>> {
                                return Error{Code::kInvalidArgument, "roles must alternate"};
                              });
  msg::ChatPromptT chat;
  chat.messages.push_back(std::make_unique<msg::ChatMessageT>());
  flatbuffers::FlatBufferBuilder b;
  b.Finish(msg::CreateChatPrompt(b, &chat));
  const std::atomic<bool> cancelled{false};
  const auto ids = builder.build(
      {msg::Prompt::ChatPrompt, flatbuffers::GetRoot<msg::ChatPrompt>(b.GetBufferPointer())}, cancelled);
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().message, "roles must alternate");
}

TEST(PromptBuilder, UnknownKindAndCancelled) {
  const TinyTokenizer tokenizer;
  const PromptBuilder builder(tokenizer, {});
  std::atomic<bool> cancelled{false};
  EXPECT_EQ(builder.build({static_cast<msg::Prompt>(9), nullptr}, cancelled).error().code,
            Code::kUnsupported);
  EXPECT_EQ(builder.build({}, cancelled).error().code, Code::kUnsupported);
  cancelled = true;
  EXPECT_EQ(builder.build({}, cancelled).error().code, Code::kCancelled);
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
