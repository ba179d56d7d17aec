// What comes through the doors that should not: each gets a Rejected, a counter, and changes nothing.
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "router/incarnation.h"
#include "tests/router/support.h"

namespace ringmaster::router {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(RouterTest, MalformedMessagesAreRejectedAndNothingElseHappens) {
  start_pair();
  run_request("c1", 1);
  const Message good = pack(text_request(2));
  for (const size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{12}, good.size() / 2, good.size() - 8})
    raw(kClientChannel, "bad", Message(good.begin(), good.begin() + static_cast<ptrdiff_t>(size)));
  Message wrong_kind = good;
  wrong_kind[4] = std::byte{'X'};
  raw(kClientChannel, "bad", wrong_kind);
  raw(kClientChannel, "bad", Message(msg::kMaxMessageBytes + 1));
  const Lines got = at("bad");
  EXPECT_EQ(got.size(), 8u);
  EXPECT_EQ(std::count(got.begin(), got.end(), "Rejected malformed"), 7);
  EXPECT_EQ(got.back(), "Rejected too_large");
  EXPECT_EQ(count(Counter::kMessagesRejected), 8u);
  EXPECT_EQ(router->table().size(), 1u);
  EXPECT_THAT(at_tok(), IsEmpty());
}

Message of_version(uint16_t version) {
  msg::RouterMessageT message;
  message.version = version;
  message.body.Set(msg::PingT());
  flatbuffers::FlatBufferBuilder b;
  b.Finish(msg::RouterMessage::Pack(b, &message), msg::RouterMessageIdentifier());
  const auto* data = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
  return {data, data + b.GetSize()};
}

// A body of a kind that a later version may add: it verifies, since nothing of it is read.
Message of_unknown_kind() {
  flatbuffers::FlatBufferBuilder b;
  msg::seal<msg::RouterMessage>(b, static_cast<msg::RouterBody>(200), msg::CreatePing(b).Union());
  const auto* data = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
  return {data, data + b.GetSize()};
}

TEST_F(RouterTest, TooNewAndUnknownMessages) {
  raw(kClientChannel, "c1", of_version(2));
  raw(kClientChannel, "c1", of_version(0));
  raw(kClientChannel, "c1", of_unknown_kind());
  EXPECT_THAT(at("c1"), ElementsAre("Rejected unsupported_version", "Rejected unsupported_version",
                                    "Rejected unsupported"));
  raw(kWorkerChannel, kTok, of_version(2));
  raw(kWorkerChannel, kTok, of_unknown_kind());
  EXPECT_EQ(count(Counter::kWorkerMessagesRejected), 2u);
}

TEST_F(RouterTest, WorkerMessagesAreNotTakenFromClientsNorTheOtherWayRound) {
  client("c1", registration(kGpu, 11));
  client("c1", msg::HeartbeatT());
  client("c1", msg::StreamsT());
  msg::LinkedT linked;
  linked.gpu_worker = kGpu;
  client("c1", linked);
  msg::TokenizedT tokenized;
  client("c1", tokenized);
  EXPECT_EQ(at("c1"), Lines(5, "Rejected permission_denied"));
  EXPECT_TRUE(router->workers().all().empty());

  start_pair();
  worker(kTok, text_request(1));
  worker(kTok, msg::PingT());
  EXPECT_EQ(count(Counter::kWorkerMessagesRejected), 2u);
  EXPECT_EQ(router->table().size(), 0u);
  msg::StreamsT streams;
  worker(kGpu, std::move(streams));  // and gpu-workers do not speak to clients
  EXPECT_EQ(count(Counter::kWorkerMessagesRejected), 3u);
  EXPECT_THAT(at_tok(), IsEmpty());
}

TEST_F(RouterTest, TooManyAcksInOneMessage) {
  msg::AcksT acks;
  for (int i = 0; i < 16'385; ++i) {
    acks.acks.push_back(std::make_unique<msg::AckT>());
    acks.acks.back()->uid = std::make_unique<msg::Uid>(1, 1);
  }
  client("c1", std::move(acks));
  EXPECT_THAT(at("c1"), ElementsAre("Rejected too_large"));
  EXPECT_EQ(count(Counter::kAcksIgnored), 0u);
}

// Flipped bits and cuts anywhere in valid messages: the router answers or not, but stays whole.
TEST_F(RouterTest, CorruptedMessagesDoNoHarm) {
  start_pair();
  auto full = chat_request(1, {{"user", "Hi"}, {"assistant", "Ho"}});
  sampling(full).logit_bias = {{5, 1}};
  full.stop = {"x", "y"};
  full.stop_ids = {1, 2};
  full.received_ids = {3};
  sampling(full).seed = 3;
  full.tenant = "t";
  const Message generate = pack(std::move(full));
  msg::StreamsT streams;
  streams.to.push_back(to_client("c1", {{epoch(1), 1, 0, {7, 8}, 0, "ab"}}, {{epoch(1), 1, 2}}));
  const Message stream = pack(std::move(streams));
  const Message register_message = pack(registration("gpu-worker.7", 17));
  std::mt19937 random(3);
  const auto corrupt = [&](actor::Channel channel, const std::string& peer, const Message& whole) {
    for (int round = 0; round < 3000; ++round) {
      Message m = whole;
      for (uint32_t flips = 1 + random() % 3; flips > 0; --flips)
        m[random() % m.size()] ^= std::byte(1u << (random() % 8));
      if (random() % 4 == 0) m.resize(random() % m.size());
      raw(channel, peer, m);
    }
  };
  corrupt(kClientChannel, "c1", generate);
  corrupt(kWorkerChannel, kTok, stream);
  corrupt(kWorkerChannel, "gpu-worker.7", register_message);
  EXPECT_GT(count(Counter::kMessagesRejected), 100u);
  EXPECT_GT(count(Counter::kWorkerMessagesRejected), 100u);
  expect_books_balance();
  net.boxes.clear();
  client("c9", msg::PingT());
  EXPECT_THAT(at("c9"), ElementsAre("Pong 1"));
}

TEST(LogLimiter, AFloodIsAFewLinesASecond) {
  LogLimiter limiter;
  uint64_t suppressed = 0;
  int written = 0;
  for (int i = 0; i < 1000; ++i) written += limiter.allow(5 * kSecond + i, suppressed);
  EXPECT_EQ(written, 5);
  EXPECT_TRUE(limiter.allow(6 * kSecond, suppressed));
  EXPECT_EQ(suppressed, 995u);
}

// ---- incarnation ----

class IncarnationTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "incarnation.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  void put(const std::string& text) { std::ofstream(dir_ + "/incarnation") << text; }
  std::string dir_;
};

TEST_F(IncarnationTest, GrowsWithEachStart) {
  EXPECT_EQ(next_incarnation(dir_).value(), 1u);
  EXPECT_EQ(next_incarnation(dir_).value(), 2u);
  EXPECT_EQ(next_incarnation(dir_).value(), 3u);
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/incarnation.new"));
}

// A new file would need room; the number is written where the former one is.
TEST_F(IncarnationTest, AFullDiskDoesNotKeepARouterFromComingBack) {
  for (const char* former : {"1\n", "9\n", "99\n", "4294967294\n"}) {
    put(former);
    struct stat before {
    }, after{};
    ASSERT_EQ(stat((dir_ + "/incarnation").c_str(), &before), 0);
    const auto next = next_incarnation(dir_);
    ASSERT_TRUE(next.ok()) << next.error().message;
    EXPECT_EQ(*next, std::stoul(former) + 1);
    ASSERT_EQ(stat((dir_ + "/incarnation").c_str(), &after), 0);
    EXPECT_EQ(after.st_ino, before.st_ino);
    std::ifstream file(dir_ + "/incarnation");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), std::to_string(*next) + "\n");
  }
}

TEST_F(IncarnationTest, NeverStartsAnewOnAFileItCannotRead) {
  for (const char* text :
       {"", "0\n", "-1\n", "seven\n", "7 8\n", "4294967296\n", "99999999999999999999999999999999999\n"}) {
    put(text);
    const auto next = next_incarnation(dir_);
    ASSERT_FALSE(next.ok()) << text;
    EXPECT_EQ(next.error().code, Code::kMalformed) << text;
  }
  put("4294967295\n");
  EXPECT_EQ(next_incarnation(dir_).error().code, Code::kResourceExhausted);
  EXPECT_FALSE(next_incarnation(dir_ + "/nowhere").ok());
}

}  // namespace
}  // namespace ringmaster::router
