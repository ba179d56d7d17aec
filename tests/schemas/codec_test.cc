// The door for control messages: what opens, and everything that must not.
#include "schemas/codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "schemas/aligned.h"

namespace ringmaster::msg {
namespace {

using Message = std::vector<std::byte>;

Message finished(const flatbuffers::FlatBufferBuilder& b) {
  const auto* data = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
  return {data, data + b.GetSize()};
}

// A Generate with every kind of field in it: struct, union, vectors of scalars, structs, strings and tables.
Message generate() {
  GenerateT g;
  g.uid = std::make_unique<Uid>(1, 2);
  ChatPromptT chat;
  for (const char* content : {"one", "two", "three"}) {
    chat.messages.push_back(std::make_unique<ChatMessageT>());
    chat.messages.back()->role = "user";
    chat.messages.back()->content = content;
  }
  g.prompt.Set(std::move(chat));
  g.sampling = std::make_unique<SamplingT>();
  g.sampling->seed = 7;
  g.sampling->logit_bias = {{5, 1.5f}, {6, -1.5f}};
  g.stop = {"x", "yz"};
  g.stop_ids = {1, 2, 3};
  g.received_ids = {4, 5};
  g.tenant = "tenant";
  RouterMessageT message;
  message.version = kVersion;
  message.body.Set(std::move(g));
  flatbuffers::FlatBufferBuilder b;
  b.Finish(RouterMessage::Pack(b, &message), RouterMessageIdentifier());
  return finished(b);
}

Message streams() {
  ClientMessageT inner;
  inner.version = kVersion;
  StreamT stream;
  stream.chunks.push_back(std::make_unique<ChunkT>());
  stream.chunks[0]->uid = std::make_unique<Uid>(1, 2);
  stream.chunks[0]->ids = {1, 2, 3};
  stream.chunks[0]->text = "abc";
  stream.ends.push_back(std::make_unique<DoneT>());
  stream.ends[0]->uid = std::make_unique<Uid>(1, 2);
  stream.ends[0]->timings = std::make_unique<Timings>();
  inner.body.Set(std::move(stream));
  flatbuffers::FlatBufferBuilder nested;
  nested.Finish(ClientMessage::Pack(nested, &inner), ClientMessageIdentifier());
  StreamsT outer;
  outer.to.push_back(std::make_unique<ToClientT>());
  outer.to[0]->client = {'c'};
  outer.to[0]->payload.assign(nested.GetBufferPointer(), nested.GetBufferPointer() + nested.GetSize());
  RouterMessageT message;
  message.version = kVersion;
  message.body.Set(std::move(outer));
  flatbuffers::FlatBufferBuilder b;
  b.Finish(RouterMessage::Pack(b, &message), RouterMessageIdentifier());
  return finished(b);
}

// Reads every field that there is, so that a sanitizer sees a verifier that let something through.
void read_all(const RouterMessage& message) {
  RouterMessageT copy;
  message.UnPackTo(&copy);
}

ringmaster::Code code_of(const Message& bytes) {
  const auto opened = open<RouterMessage>(bytes);
  return opened.ok() ? ringmaster::Code::kOk : opened.error().code;
}

TEST(Codec, WhatWasSealedOpens) {
  flatbuffers::FlatBufferBuilder b;
  const auto bytes = seal<ClientMessage>(b, ClientBody::Pong, CreatePong(b, 9).Union());
  const auto opened = open<ClientMessage>(bytes);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ((*opened)->version(), kVersion);
  EXPECT_EQ((*opened)->body_as_Pong()->incarnation(), 9u);
}

TEST(Codec, FieldsSurviveTheWay) {
  const Message bytes = generate();
  const auto opened = open<RouterMessage>(bytes);
  ASSERT_TRUE(opened.ok());
  const Generate* g = (*opened)->body_as_Generate();
  ASSERT_TRUE(g);
  EXPECT_EQ(to_uid(*g->uid()), (ringmaster::Uid{1, 2}));
  EXPECT_EQ(g->prompt_as_ChatPrompt()->messages()->Get(2)->content()->str(), "three");
  EXPECT_EQ(g->sampling()->logit_bias()->Get(1)->bias(), -1.5f);
  EXPECT_FALSE(g->max_tokens().has_value());
  EXPECT_EQ(g->resume_grace_ms(), 10'000u);
}

TEST(Codec, EveryKindHasItsOwnIdentifier) {
  flatbuffers::FlatBufferBuilder b;
  const auto ping = seal<RouterMessage>(b, RouterBody::Ping, CreatePing(b).Union());
  EXPECT_TRUE(open<RouterMessage>(ping).ok());
  EXPECT_EQ(open<ClientMessage>(ping).error().code, ringmaster::Code::kMalformed);
  EXPECT_EQ(open<TokenizerWorkerMessage>(ping).error().code, ringmaster::Code::kMalformed);
  EXPECT_EQ(open<GpuWorkerMessage>(ping).error().code, ringmaster::Code::kMalformed);
  EXPECT_EQ(open<ClientMessage>(ping).error().message, "not a message of kind RMCL (see docs/protocol.md)");
}

TEST(Codec, VersionsThisBuildDoesNotRead) {
  for (const uint16_t version : {uint16_t{0}, uint16_t{2}, uint16_t{65535}}) {
    RouterMessageT message;
    message.version = version;
    message.body.Set(PingT());
    flatbuffers::FlatBufferBuilder b;
    b.Finish(RouterMessage::Pack(b, &message), RouterMessageIdentifier());
    const auto opened = open<RouterMessage>(finished(b));
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ringmaster::Code::kUnsupportedVersion);
    EXPECT_EQ(opened.error().message,
              "message version " + std::to_string(version) + "; this build reads 1 to 1");
  }
}

TEST(Codec, SizesAtTheBound) {
  Message bytes = generate();
  bytes.resize(kMaxMessageBytes);  // trailing bytes do no harm
  EXPECT_EQ(code_of(bytes), ringmaster::Code::kOk);
  bytes.resize(kMaxMessageBytes + 1);
  EXPECT_EQ(code_of(bytes), ringmaster::Code::kTooLarge);
  EXPECT_EQ(code_of({}), ringmaster::Code::kMalformed);
  EXPECT_EQ(open<RouterMessage>(Bytes()).error().code, ringmaster::Code::kMalformed);
}

TEST(Codec, ABodyIsRequired) {
  flatbuffers::FlatBufferBuilder b;
  const auto start = b.StartTable();
  b.AddElement<uint16_t>(RouterMessage::VT_VERSION, kVersion, 0);
  b.Finish(flatbuffers::Offset<RouterMessage>(b.EndTable(start)), RouterMessageIdentifier());
  EXPECT_EQ(code_of(finished(b)), ringmaster::Code::kMalformed);
}

TEST(Codec, RequiredFieldsAreRequired) {
  flatbuffers::FlatBufferBuilder b;
  const auto start = b.StartTable();  // a Cancel without its uid
  const auto cancel = b.EndTable(start);
  const auto body = flatbuffers::Offset<void>(cancel);
  seal<RouterMessage>(b, RouterBody::Cancel, body);
  EXPECT_EQ(code_of(finished(b)), ringmaster::Code::kMalformed);
}

TEST(Codec, ABodyOfAnUnknownKindOpensAndIsLeftToTheReader) {
  flatbuffers::FlatBufferBuilder b;
  const auto bytes = seal<RouterMessage>(b, static_cast<RouterBody>(99), CreatePing(b).Union());
  const auto opened = open<RouterMessage>(bytes);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ((*opened)->body_as_Generate(), nullptr);
}

TEST(Codec, NestedMessagesAreVerifiedWithTheOuterOne) {
  Message bytes = streams();
  ASSERT_EQ(code_of(bytes), ringmaster::Code::kOk);
  // Destroy the nested root offset: it lies behind the nested identifier's place.
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t identifier_at = all.find(ClientMessageIdentifier());
  ASSERT_NE(identifier_at, std::string_view::npos);
  for (size_t i = identifier_at - 4; i < identifier_at; ++i) bytes[i] = std::byte{0xEE};
  EXPECT_EQ(code_of(bytes), ringmaster::Code::kMalformed);
}

TEST(Codec, EveryTruncationIsRefusedOrWhole) {
  for (const Message& whole : {generate(), streams()}) {
    size_t refused = 0;
    for (size_t size = 0; size < whole.size(); ++size) {
      const Message cut(
          whole.begin(),
          whole.begin() + static_cast<ptrdiff_t>(size));  // its own allocation: asan sees a byte too far
      const auto opened = open<RouterMessage>(cut);
      if (opened.ok())
        read_all(**opened);
      else
        ++refused;
    }
    EXPECT_GE(refused, whole.size() - 8) << "only padding may be missing";
  }
}

TEST(Codec, EveryFlippedBitIsRefusedOrHarmless) {
  size_t refused = 0;
  for (const Message& whole : {generate(), streams()})
    for (size_t i = 0; i < whole.size() * 8; ++i) {
      Message flipped = whole;
      flipped[i / 8] ^= std::byte(1u << (i % 8));
      const auto opened = open<RouterMessage>(flipped);
      if (opened.ok())
        read_all(**opened);
      else
        ++refused;
    }
  EXPECT_GT(refused, 500u);
}

TEST(Codec, RandomGarbageBehindAValidIdentifier) {
  std::mt19937 random(11);
  for (int round = 0; round < 20'000; ++round) {
    Message bytes(12 + random() % 200);
    for (std::byte& byte : bytes) byte = std::byte(random() % (round % 2 ? 256 : 16));
    std::memcpy(bytes.data() + 4, RouterMessageIdentifier(), 4);
    const auto opened = open<RouterMessage>(bytes);
    if (opened.ok()) read_all(**opened);
  }
}

// The same bytes at an address that their lists of 64-bit fields cannot be read at. Lists without elements
// have no such address.
TEST(Codec, ListsThatAreNotAlignedAreRefused) {
  for (const bool with_elements : {false, true}) {
    AuditReplyT reply;
    reply.router = std::make_unique<RouterBooksT>();
    if (with_elements) reply.router->queries = {7};
    flatbuffers::FlatBufferBuilder b;
    const auto body = CreateAuditReply(b, &reply);
    const Message whole = finished((seal<ClientMessage>(b, ClientBody::AuditReply, body.Union()), b));
    alignas(8) std::byte moved[1024];
    ASSERT_LE(whole.size() + 4, sizeof moved);
    std::memcpy(moved, whole.data(), whole.size());
    EXPECT_TRUE(open<ClientMessage>({moved, whole.size()}).ok());
    std::memcpy(moved + 4, whole.data(), whole.size());
    EXPECT_EQ(open<ClientMessage>({moved + 4, whole.size()}).ok(), !with_elements);
  }
}

TEST(Codec, CodesHaveTheSameNamesHereAndThere) {
  for (int i = 0; i <= static_cast<int>(Code::MAX); ++i)
    EXPECT_EQ(EnumNameCode(static_cast<Code>(i)), name(static_cast<ringmaster::Code>(i)));
}

TEST(Codec, ACodeOfANewerBuildIsInternal) {
  EXPECT_EQ(to_code(Code::worker_lost), ringmaster::Code::kWorkerLost);
  EXPECT_EQ(to_code(static_cast<Code>(200)), ringmaster::Code::kInternal);
}

TEST(Aligned, CopiesOnlyWhatLiesBadly) {
  alignas(8) std::byte memory[64];
  for (size_t i = 0; i < sizeof memory; ++i) memory[i] = static_cast<std::byte>(i);
  Aligned aligned;
  const Bytes well(memory + 8, 40);
  EXPECT_EQ(aligned.of(well).data(), well.data());
  for (size_t shift = 1; shift < 8; ++shift) {
    const Bytes badly(memory + shift, 40 + shift % 3);
    const Bytes copy = aligned.of(badly);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(copy.data()) % 8, 0u);
    ASSERT_EQ(copy.size(), badly.size());
    EXPECT_EQ(std::memcmp(copy.data(), badly.data(), copy.size()), 0);
  }
  EXPECT_EQ(aligned.of({memory + 1, 0}).size(), 0u);
}

}  // namespace
}  // namespace ringmaster::msg
