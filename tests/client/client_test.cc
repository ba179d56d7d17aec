// The client against a router played by the test: one ROUTER socket that says what the script says.
#include "client/cpp/ringmaster.h"

#include <gtest/gtest.h>

#include <thread>
#include <zmq.hpp>

#include "schemas/aligned.h"
#include "schemas/codec.h"

namespace ringmaster::client {
namespace {

constexpr Nanos kPatience = 5 * kSecond;

struct PieceSpec {
  uint32_t first_token;
  std::vector<TokenId> ids;
  uint64_t text_offset;
  std::string text;
};

class ScriptedRouter : public testing::Test {
 protected:
  void SetUp() override {
    socket_.bind("tcp://127.0.0.1:*");
    socket_.set(zmq::sockopt::rcvtimeo, 5000);
    endpoint_ = socket_.get(zmq::sockopt::last_endpoint);
  }

  Client connect(Options options = {}) {
    auto client = Client::connect(endpoint_, options);
    EXPECT_TRUE(client.ok());
    return std::move(client).value();
  }

  // The next message of the client that is not a ping.
  const msg::RouterMessage& receive() {
    while (true) {
      zmq::message_t peer;
      if (!socket_.recv(peer) || !socket_.recv(body_)) ADD_FAILURE() << "the client sent nothing";
      peer_ = peer.to_string();
      const auto opened = msg::open<msg::RouterMessage>(
          aligned_.of({static_cast<const std::byte*>(body_.data()), body_.size()}));
      EXPECT_TRUE(opened.ok());
      if ((*opened)->body_type() == msg::RouterBody::Ping && !want_pings_) continue;
      return **opened;
    }
  }

  const msg::Generate& receive_generate() {
    const auto& message = receive();
    EXPECT_EQ(message.body_type(), msg::RouterBody::Generate);
    uid_ = msg::to_uid(*message.body_as_Generate()->uid());
    return *message.body_as_Generate();
  }

  void send(msg::Bytes bytes) {
    socket_.send(zmq::buffer(peer_), zmq::send_flags::sndmore);
    socket_.send(zmq::const_buffer(bytes.data(), bytes.size()));
  }

  void accept(uint64_t seed = 7, uint32_t next_token = 0) {
    b_.Clear();
    const msg::Uid uid = msg::to_wire(uid_);
    send(msg::seal<msg::ClientMessage>(
        b_, msg::ClientBody::Accepted,
        msg::CreateAccepted(b_, &uid, (1ull << 32) | 1, seed, next_token > 0, next_token).Union()));
  }

  void pieces(const std::vector<PieceSpec>& specs) { stream(specs, std::nullopt); }

  void stream(const std::vector<PieceSpec>& specs, std::optional<uint32_t> done_after_tokens) {
    b_.Clear();
    const msg::Uid uid = msg::to_wire(uid_);
    std::vector<flatbuffers::Offset<msg::Chunk>> chunks;
    for (const PieceSpec& spec : specs)
      chunks.push_back(msg::CreateChunk(b_, &uid, 1, 0, spec.first_token, b_.CreateVector(spec.ids),
                                        spec.text_offset, b_.CreateString(spec.text)));
    std::vector<flatbuffers::Offset<msg::Done>> ends;
    if (done_after_tokens)
      ends.push_back(msg::CreateDone(b_, &uid, 1, msg::FinishReason::length, msg::Code::ok, 0, 0,
                                     msg::CreateUsage(b_, 3, 0, *done_after_tokens)));
    const auto body = msg::CreateStream(b_, b_.CreateVector(chunks), b_.CreateVector(ends));
    send(msg::seal<msg::ClientMessage>(b_, msg::ClientBody::Stream, body.Union()));
  }

  Event next(Client& client) {
    auto event = client.next(monotonic_now() + kPatience);
    EXPECT_TRUE(event.ok()) << event.error().message;
    EXPECT_TRUE(event->has_value()) << "no event in time";
    return event->has_value() ? **event : Event{};
  }

  Piece next_piece(Client& client) {
    Event event = next(client);
    EXPECT_TRUE(std::holds_alternative<Piece>(event.what));
    return std::holds_alternative<Piece>(event.what) ? std::get<Piece>(event.what) : Piece{};
  }

  zmq::context_t context_;
  zmq::socket_t socket_{context_, zmq::socket_type::router};
  std::string endpoint_;
  std::string peer_;
  zmq::message_t body_;
  msg::Aligned aligned_;
  flatbuffers::FlatBufferBuilder b_;
  Uid uid_;
  bool want_pings_ = false;
};

TEST_F(ScriptedRouter, StreamsPiecesAndEndsOnce) {
  Client client = connect();
  Request request;
  request.prompt = std::string("Hi");
  request.max_tokens = 3;
  ASSERT_TRUE(client.start(request).ok());
  const msg::Generate& sent = receive_generate();
  EXPECT_EQ(sent.prompt_as_TextPrompt()->text()->str(), "Hi");
  EXPECT_EQ(sent.max_tokens().value(), 3u);
  EXPECT_FALSE(sent.sampling()->seed().has_value());
  accept(99);
  stream({{0, {10, 11}, 0, "ab"}, {2, {12}, 2, "c"}}, 3);

  EXPECT_EQ(std::get<Accepted>(next(client).what).seed, 99u);
  EXPECT_EQ(next_piece(client).text, "ab");
  EXPECT_EQ(next_piece(client).ids, std::vector<TokenId>{12});
  const Ending ending = std::get<Ending>(next(client).what);
  EXPECT_EQ(ending.reason, FinishReason::kLength);
  EXPECT_EQ(ending.usage.output_tokens, 3u);
  EXPECT_EQ(client.open_streams(), 0u);

  const auto& ack = receive();
  ASSERT_EQ(ack.body_type(), msg::RouterBody::Acks);
  EXPECT_EQ(ack.body_as_Acks()->acks()->Get(0)->next_token(), 3u);
  EXPECT_EQ(ack.body_as_Acks()->acks()->Get(0)->text_offset(), 3u);
}

TEST_F(ScriptedRouter, DropsRepeatsAndTrimsOverlap) {
  Client client = connect();
  ASSERT_TRUE(client.start({.prompt = std::string("x")}).ok());
  receive_generate();
  accept();
  next(client);
  pieces({{0, {1, 2}, 0, "ab"}, {0, {1, 2}, 0, "ab"}, {1, {2, 3}, 1, "bcd"}});
  EXPECT_EQ(next_piece(client).text, "ab");
  const Piece trimmed = next_piece(client);
  EXPECT_EQ(trimmed.first_token, 2u);
  EXPECT_EQ(trimmed.ids, std::vector<TokenId>{3});
  EXPECT_EQ(trimmed.text, "cd");
}

TEST_F(ScriptedRouter, AsksAgainForAGapWithWhatItHas) {
  Client client = connect();
  ASSERT_TRUE(client.start({.prompt = std::string("x")}).ok());
  receive_generate();
  accept(5);
  next(client);
  pieces({{0, {1, 2}, 0, "ab"}, {3, {4}, 3, "d"}});
  EXPECT_EQ(next_piece(client).ids.size(), 2u);
  ASSERT_FALSE(client.next(monotonic_now() + 20 * kMillisecond)->has_value());
  const Uid first = uid_;
  const msg::Generate& again = receive_generate();
  EXPECT_EQ(uid_, first);
  EXPECT_EQ(again.received_ids()->size(), 2u);
  EXPECT_EQ(again.received_text_offset(), 2u);
  EXPECT_EQ(again.sampling()->seed().value(), 5u);
  accept(5, 2);
  pieces({{2, {3, 4}, 2, "cd"}});
  EXPECT_EQ(next_piece(client).text, "cd");
}

TEST_F(ScriptedRouter, AnEndingThatOvertakesItsTokensWaitsForThem) {
  Client client = connect();
  ASSERT_TRUE(client.start({.prompt = std::string("x")}).ok());
  receive_generate();
  accept();
  next(client);
  stream({{0, {1}, 0, "a"}}, 2);
  EXPECT_EQ(next_piece(client).text, "a");
  ASSERT_FALSE(client.next(monotonic_now() + 20 * kMillisecond)->has_value());
  EXPECT_EQ(receive_generate().received_ids()->size(), 1u);
  accept(7, 1);
  stream({{1, {2}, 1, "b"}}, 2);
  EXPECT_EQ(next_piece(client).text, "b");
  EXPECT_EQ(std::get<Ending>(next(client).what).reason, FinishReason::kLength);
}

TEST_F(ScriptedRouter, AcknowledgesWellBelowTheCredit) {
  Client client = connect({.ack_every = 4});
  ASSERT_TRUE(client.start({.prompt = std::string("x")}).ok());
  receive_generate();
  accept();
  next(client);
  for (uint32_t i = 0; i < 4; ++i) pieces({{i, {i}, i, "a"}});
  for (uint32_t i = 0; i < 4; ++i) next_piece(client);
  const auto& ack = receive();
  ASSERT_EQ(ack.body_type(), msg::RouterBody::Acks);
  EXPECT_EQ(ack.body_as_Acks()->acks()->Get(0)->next_token(), 4u);
}

TEST_F(ScriptedRouter, ResumesWhenTheRouterIsANewOne) {
  Client client = connect({.ping_interval = 20 * kMillisecond});
  ASSERT_TRUE(client.start({.prompt = std::string("x")}).ok());
  receive_generate();
  accept();
  pieces({{0, {1}, 0, "a"}});
  next(client);
  next_piece(client);
  const auto pong = [&](uint32_t incarnation) {
    b_.Clear();
    send(msg::seal<msg::ClientMessage>(b_, msg::ClientBody::Pong, msg::CreatePong(b_, incarnation).Union()));
  };
  pong(1);
  ASSERT_FALSE(client.next(monotonic_now() + 20 * kMillisecond)->has_value());
  pong(2);
  ASSERT_FALSE(client.next(monotonic_now() + 20 * kMillisecond)->has_value());
  EXPECT_EQ(receive_generate().received_ids()->size(), 1u);
}

TEST_F(ScriptedRouter, SilenceEndsTheStream) {
  Client client = connect({.ping_interval = 10 * kMillisecond, .silence_limit = 60 * kMillisecond});
  ASSERT_TRUE(client.start({.prompt = std::string("x")}).ok());
  const Ending ending = std::get<Ending>(next(client).what);
  EXPECT_EQ(ending.reason, FinishReason::kError);
  EXPECT_EQ(ending.code, Code::kUnavailable);
}

TEST_F(ScriptedRouter, GarbageFromTheClusterEndsStreamsWithACode) {
  Client client = connect();
  ASSERT_TRUE(client.start({.prompt = std::string("x")}).ok());
  receive_generate();
  const std::string garbage = "this is no FlatBuffer at all";
  send({reinterpret_cast<const std::byte*>(garbage.data()), garbage.size()});
  EXPECT_EQ(std::get<Ending>(next(client).what).code, Code::kMalformed);
}

TEST_F(ScriptedRouter, EventsOfOtherStreamsOutliveAGenerate) {
  Client client = connect();
  const auto other = client.start({.prompt = std::string("x"), .max_tokens = 1});
  ASSERT_TRUE(other.ok());
  receive_generate();
  accept();
  std::thread router([this, other] {
    receive_generate();
    const Uid own = uid_;
    accept();
    uid_ = *other;
    stream({{0, {4}, 0, "d"}}, 1);
    uid_ = own;
    stream({{0, {5}, 0, "e"}}, 1);
  });
  const auto answer = client.generate({.prompt = std::string("y")}, nullptr, kPatience);
  router.join();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->text, "e");
  EXPECT_EQ(client.open_streams(), 1u);
  EXPECT_TRUE(std::holds_alternative<Accepted>(next(client).what));
  EXPECT_EQ(next_piece(client).text, "d");
  const Event ending = next(client);
  EXPECT_EQ(ending.uid, *other);
  EXPECT_EQ(std::get<Ending>(ending.what).reason, FinishReason::kLength);
  EXPECT_EQ(client.open_streams(), 0u);
}

TEST_F(ScriptedRouter, TokenizeMatchesAnswersByTag) {
  Client client = connect();
  std::thread router([this] {
    const auto& query = receive();
    ASSERT_EQ(query.body_type(), msg::RouterBody::Tokenize);
    const uint64_t tag = query.body_as_Tokenize()->tag();
    for (const uint64_t answer_tag : {tag + 1, tag}) {
      b_.Clear();
      const std::vector<TokenId> ids = {static_cast<TokenId>(answer_tag), 8};
      send(msg::seal<msg::ClientMessage>(
          b_, msg::ClientBody::TokenizeReply,
          msg::CreateTokenizeReply(b_, answer_tag, b_.CreateVector(ids)).Union()));
    }
  });
  const auto ids = client.tokenize({.prompt = std::string("x")}, kPatience);
  router.join();
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids, (std::vector<TokenId>{1, 8}));
}

TEST(Client, RefusesAnEndpointThatIsNone) {
  const auto client = Client::connect("nonsense");
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace ringmaster::client
