// The client's protocol logic on a clock that the test moves: what it does when messages are lost.
#include "client/cpp/session.h"

#include <gtest/gtest.h>

#include <memory>

namespace ringmaster::client {
namespace {

const Uid kUid{1, 2};

class SessionTest : public testing::Test {
 protected:
  SessionTest() {
    Request request;
    request.prompt = std::string("Hi");
    EXPECT_TRUE(session.start(kUid, request, now).ok());
    EXPECT_EQ(generates(), 1u);
  }

  // What was sent since the last call, by kind.
  std::vector<std::unique_ptr<msg::RouterMessageT>> take_sent() { return std::exchange(sent, {}); }
  size_t generates() {
    size_t count = 0;
    for (const auto& message : take_sent()) count += message->body.type == msg::RouterBody::Generate;
    return count;
  }
  std::unique_ptr<msg::GenerateT> one_generate() {
    std::unique_ptr<msg::GenerateT> found;
    for (auto& message : take_sent()) {
      if (auto* generate = message->body.AsGenerate()) {
        EXPECT_EQ(found, nullptr) << "one Generate, not several";
        found = std::make_unique<msg::GenerateT>(std::move(*generate));
      }
    }
    return found;
  }
  void pass(Nanos time) {
    for (const Nanos end = now + time; now < end;) {
      now = std::min(end, now + 50 * kMillisecond);
      pong();  // the router is there: silence is the stream's
      session.keep_alive(now);
    }
  }
  template <typename Body>
  void hear(msg::ClientBody type, flatbuffers::Offset<Body> body) {
    session.receive(msg::seal<msg::ClientMessage>(b, type, body.Union()), now);
    b.Clear();
  }
  void pong() { hear(msg::ClientBody::Pong, msg::CreatePong(b, 1)); }
  void accepted(uint32_t next_token = 0) {
    const msg::Uid uid = msg::to_wire(kUid);
    hear(msg::ClientBody::Accepted, msg::CreateAccepted(b, &uid, 1, 77, next_token > 0, next_token));
  }
  void piece(uint32_t first, const std::vector<TokenId>& ids, uint64_t offset, const std::string& text) {
    const msg::Uid uid = msg::to_wire(kUid);
    const std::vector<flatbuffers::Offset<msg::Chunk>> chunks = {
        msg::CreateChunk(b, &uid, 1, 0, first, b.CreateVector(ids), offset, b.CreateString(text))};
    hear(msg::ClientBody::Stream, msg::CreateStream(b, b.CreateVector(chunks)));
  }

  void done(msg::FinishReason reason, msg::Code code, uint32_t output_tokens) {
    const msg::Uid uid = msg::to_wire(kUid);
    const std::vector<flatbuffers::Offset<msg::Done>> ends = {
        msg::CreateDone(b, &uid, 1, reason, code, 0, 0, msg::CreateUsage(b, 1, 0, output_tokens))};
    hear(msg::ClientBody::Stream, msg::CreateStream(b, 0, b.CreateVector(ends)));
  }

  Nanos now = 100 * kSecond;
  flatbuffers::FlatBufferBuilder b;
  std::vector<std::unique_ptr<msg::RouterMessageT>> sent;
  Session session{{.ack_every = 2, .ask_again_after = kSecond}, [this](msg::Bytes bytes) -> Status {
                    sent.emplace_back((*msg::open<msg::RouterMessage>(bytes))->UnPack());
                    return ok_status();
                  }};
};

// A caller may read logprobs[i] beside ids[i].
TEST_F(SessionTest, APieceWithLogprobsOfOtherTokensEndsTheStreams) {
  accepted();
  const msg::Uid uid = msg::to_wire(kUid);
  const std::vector<flatbuffers::Offset<msg::Logprobs>> one = {msg::CreateLogprobs(b, -0.5f)};
  const std::vector<flatbuffers::Offset<msg::Chunk>> chunks = {msg::CreateChunk(
      b, &uid, 1, 0, 0, b.CreateVector<TokenId>({5, 6}), 0, b.CreateString("ab"), b.CreateVector(one))};
  hear(msg::ClientBody::Stream, msg::CreateStream(b, b.CreateVector(chunks)));
  EXPECT_TRUE(std::holds_alternative<Accepted>(session.take_event()->what));
  const auto event = session.take_event();
  ASSERT_TRUE(event.has_value());
  const Ending& ending = std::get<Ending>(event->what);
  EXPECT_EQ(ending.code, Code::kMalformed);
  EXPECT_EQ(ending.message,
            "reply from the cluster: a piece of 2 tokens has 1 log-probabilities; allowed: none, or one for "
            "each");
}

TEST_F(SessionTest, ALostGenerateIsSentAgainUnderTheSameUid) {
  pass(900 * kMillisecond);
  EXPECT_EQ(generates(), 0u);
  pass(200 * kMillisecond);
  const auto again = one_generate();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(msg::to_uid(*again->uid), kUid);
  EXPECT_TRUE(again->received_ids.empty());
}

TEST_F(SessionTest, ALostAcknowledgementOrEndingIsCoveredByAskingAgainWithWhatCame) {
  accepted();
  piece(0, {5, 6, 7}, 0, "abc");
  while (session.take_event()) {
  }
  take_sent();
  pass(1100 * kMillisecond);
  const auto again = one_generate();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->received_ids, (std::vector<TokenId>{5, 6, 7}));
  EXPECT_EQ(again->received_text_offset, 3u);
  EXPECT_EQ(again->sampling->seed.value(), 77u);
}

TEST_F(SessionTest, AsksAtGrowingIntervalsUntilAPieceComes) {
  accepted();
  take_sent();
  pass(16 * kSecond);  // after 1, 2, 4 and 8 s more
  EXPECT_EQ(generates(), 4u);
  accepted();
  piece(0, {5}, 0, "a");
  while (session.take_event()) {
  }
  pass(1100 * kMillisecond);
  EXPECT_EQ(generates(), 1u);
}

TEST_F(SessionTest, PiecesWithoutAcceptedAreNotTakenUntilItWasToldAgain) {
  piece(0, {5}, 0, "a");
  EXPECT_FALSE(session.has_events());
  pass(1100 * kMillisecond);
  ASSERT_NE(one_generate(), nullptr);
  accepted();
  piece(0, {5}, 0, "a");
  EXPECT_TRUE(std::holds_alternative<Accepted>(session.take_event()->what));
  EXPECT_EQ(std::get<Piece>(session.take_event()->what).ids, std::vector<TokenId>{5});
}

// The request was forgotten while we were away; what the resume started anew continues from token 1.
TEST_F(SessionTest, WhatIsOfBeforeAResumeIsNotTaken) {
  accepted();
  piece(0, {5}, 0, "a");
  while (session.take_event()) {
  }
  pass(1100 * kMillisecond);
  ASSERT_EQ(one_generate()->received_ids.size(), 1u);
  piece(1, {6, 7}, 1, "bc");
  done(msg::FinishReason::length, msg::Code::ok, 3);
  EXPECT_FALSE(session.has_events());
  accepted(0);  // of an earlier question
  piece(1, {6, 7}, 1, "bc");
  EXPECT_FALSE(session.has_events());
  accepted(1);
  piece(1, {6, 7}, 1, "bc");
  EXPECT_TRUE(session.has_events());
}

// The router that was told has died.
TEST_F(SessionTest, ACancelledRequestThatIsAskedForAgainIsCancelledAgain) {
  accepted();
  ASSERT_TRUE(session.cancel(kUid).ok());
  take_sent();
  pass(1100 * kMillisecond);
  const auto told = take_sent();
  ASSERT_GE(told.size(), 2u);
  EXPECT_NE(told[told.size() - 2]->body.AsGenerate(), nullptr);
  EXPECT_NE(told.back()->body.AsCancel(), nullptr);
}

TEST_F(SessionTest, ARequestThatNobodyWaitsForIsCancelled) {
  accepted();
  done(msg::FinishReason::length, msg::Code::ok, 0);
  take_sent();
  accepted();
  const auto answer = take_sent();
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_NE(answer[0]->body.AsCancel(), nullptr);
}

TEST_F(SessionTest, AFailureWhoseTokensAreGoneIsReportedAsItIs) {
  accepted();
  done(msg::FinishReason::error, msg::Code::worker_lost, 6);
  EXPECT_EQ(generates(), 1u);  // perhaps they can still be had
  accepted();
  done(msg::FinishReason::error, msg::Code::worker_lost, 6);
  EXPECT_EQ(generates(), 0u);
  session.take_event();
  const Ending ending = std::get<Ending>(session.take_event()->what);
  EXPECT_EQ(ending.code, Code::kWorkerLost);
}

// A piece is lost right after a resume, when asking again is not allowed yet, and the ending arrives more
// than once.
TEST_F(SessionTest, CopiesOfAnEndingAreOneReasonToAsk) {
  accepted();
  piece(0, {5}, 0, "a");
  while (session.take_event()) {
  }
  pass(1100 * kMillisecond);
  EXPECT_EQ(generates(), 1u);
  accepted(1);
  for (int copy = 0; copy < 5; ++copy) done(msg::FinishReason::length, msg::Code::ok, 3);
  EXPECT_FALSE(session.has_events());
  pass(250 * kMillisecond);
  EXPECT_EQ(generates(), 1u);
  accepted(1);
  piece(1, {6, 7}, 1, "bc");
  done(msg::FinishReason::length, msg::Code::ok, 3);
  EXPECT_EQ(std::get<Piece>(session.take_event()->what).ids, (std::vector<TokenId>{6, 7}));
  EXPECT_EQ(std::get<Ending>(session.take_event()->what).reason, FinishReason::kLength);
}

TEST_F(SessionTest, AGapSoonAfterAnotherIsAskedForWhenItIsAllowed) {
  accepted();
  take_sent();
  piece(1, {6}, 1, "b");
  EXPECT_EQ(generates(), 1u);
  accepted();
  piece(2, {7}, 2, "c");
  EXPECT_EQ(generates(), 0u);  // docs/protocol.md: not more often than every 200 ms
  pass(250 * kMillisecond);
  EXPECT_EQ(generates(), 1u);
  pass(500 * kMillisecond);
  EXPECT_EQ(generates(), 0u);
}

TEST_F(SessionTest, WhatTheCallerHasNotTakenIsNeitherAcknowledgedNorAskedFor) {
  accepted();
  piece(0, {5, 6, 7, 8}, 0, "abcd");
  take_sent();
  pass(5 * kSecond);
  for (const auto& message : take_sent()) EXPECT_EQ(message->body.type, msg::RouterBody::Ping);
  while (session.take_event()) {
  }
  const auto acked = take_sent();
  ASSERT_EQ(acked.size(), 1u);
  ASSERT_NE(acked[0]->body.AsAcks(), nullptr);
  EXPECT_EQ(acked[0]->body.AsAcks()->acks[0]->next_token, 4u);
}

TEST_F(SessionTest, BooksNameNoPlaceBeyondTheirLists) {
  const std::vector<msg::RequestBooks> requests = {{1, 0, 7, msg::RequestPhase::running}};
  const auto router = msg::CreateRouterBooks(b, b.CreateVectorOfStructs(requests));
  const std::vector<flatbuffers::Offset<msg::AuditedWorker>> workers = {msg::CreateAuditedWorker(
      b, b.CreateString("tokenizer-worker.0"), false, 1, 1, b.CreateString("ready"))};
  const auto listed = b.CreateVector(workers);
  hear(msg::ClientBody::AuditReply, msg::CreateAuditReply(b, 4, msg::Code::ok, 0, 1, router, listed));
  ASSERT_TRUE(session.books && session.books->second.ok());
  const RequestBooks& request = session.books->second->router.requests.at(0);
  EXPECT_EQ(request.tokenizer, 0u);
  EXPECT_EQ(request.gpu, std::nullopt);
}

}  // namespace
}  // namespace ringmaster::client
