// The whole cluster on the fake device in hash mode: every token depends on every id before it, so one lost,
// repeated or reordered id anywhere shows in all that follow.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>
#include <random>

#include "base/config.h"
#include "base/context_hash.h"
#include "base/gguf.h"
#include "tests/process/support/cluster.h"

namespace ringmaster {
namespace {

constexpr const char* kFakeCluster = R"(model: smollm2
tokenizer-worker:
  count: 2
gpu-worker:
  device: fake
  kv_memory: 256MiB
  max_running: 128
  fake:
    step_time: 500us
)";

struct Expectation {
  std::vector<TokenId> ids;
  bool cancel = false;
  uint32_t cancel_after = 0;
  std::vector<TokenId> got;
  int endings = 0;
};

class HashCluster : public testing::Test {
 protected:
  void SetUp() override {
    const auto path = resolve_model("smollm2");
    ASSERT_TRUE(path.ok()) << path.error().message;
    const auto gguf = Gguf::open(*path);
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    silent_ = *context_hash::silent_ids(*gguf);
    vocab_size_ = static_cast<uint32_t>((*gguf->texts("tokenizer.ggml.tokens")).size());
  }

  std::vector<TokenId> random_prompt(size_t length) {
    std::vector<TokenId> ids(length);
    for (TokenId& id : ids) id = random_() % vocab_size_;
    return ids;
  }

  std::vector<TokenId> silent_;
  uint32_t vocab_size_ = 0;
  std::mt19937 random_{20261130};
};

TEST_F(HashCluster, EveryIdRightWith256StreamsAndAThirdCancelled) {
  test::Cluster cluster(kFakeCluster);
  ASSERT_TRUE(cluster.up());
  auto client = cluster.connect();
  ASSERT_TRUE(client.status(5 * kSecond).ok());
  std::map<pid_t, size_t> descriptors;
  for (const test::Child& child : cluster.children())
    descriptors[child.pid] = cluster.open_descriptors(child.pid);
  ASSERT_EQ(descriptors.size(), 4u);

  std::map<Uid, Expectation> streams;
  const std::vector<TokenId> shared_prefix = random_prompt(100);
  for (int i = 0; i < 256; ++i) {
    client::Request request;
    std::vector<TokenId> prompt = random_prompt(1 + random_() % 200);
    // A third share a beginning, so that prefix reuse takes part.
    if (i % 3 == 1) prompt.insert(prompt.begin(), shared_prefix.begin(), shared_prefix.end());
    const uint32_t length = 1 + random_() % 120;
    request.prompt = prompt;
    request.max_tokens = length;
    const auto uid = client.start(request);
    ASSERT_TRUE(uid.ok());
    Expectation& stream = streams[*uid];
    stream.ids = context_hash::expected(prompt, vocab_size_, silent_, length);
    stream.cancel = i % 3 == 0;
    stream.cancel_after = random_() % length;
    if (stream.cancel && stream.cancel_after == 0) {
      ASSERT_TRUE(client.cancel(*uid).ok());
    }
  }
  while (client.open_streams() > 0) {
    const auto event = client.next(monotonic_now() + 30 * kSecond);
    ASSERT_TRUE(event.ok()) << event.error().message;
    ASSERT_TRUE(event->has_value()) << client.open_streams() << " streams hang";
    Expectation& stream = streams.at((*event)->uid);
    if (const auto* piece = std::get_if<client::Piece>(&(*event)->what)) {
      ASSERT_EQ(piece->first_token, stream.got.size());
      stream.got.insert(stream.got.end(), piece->ids.begin(), piece->ids.end());
      if (stream.cancel && stream.got.size() >= stream.cancel_after) {
        ASSERT_TRUE(client.cancel((*event)->uid).ok());
      }
    } else if (const auto* ending = std::get_if<client::Ending>(&(*event)->what)) {
      ++stream.endings;
      if (!stream.cancel) {
        EXPECT_EQ(ending->reason, client::FinishReason::kLength) << ending->message;
        EXPECT_EQ(ending->usage.output_tokens, stream.ids.size());
      }
    }
  }
  for (const auto& [uid, stream] : streams) {
    EXPECT_EQ(stream.endings, 1);
    ASSERT_LE(stream.got.size(), stream.ids.size());
    EXPECT_TRUE(std::equal(stream.got.begin(), stream.got.end(), stream.ids.begin())) << to_string(uid);
    if (!stream.cancel) {
      EXPECT_EQ(stream.got.size(), stream.ids.size());
    }
  }

  cluster.expect_balanced();
  for (const auto& [pid, count] : descriptors) {
    // The router closes the connection of the status client above a moment after it has gone.
    const Nanos deadline = monotonic_now() + 2 * kSecond;
    while (cluster.open_descriptors(pid) != count && monotonic_now() < deadline) usleep(10'000);
    EXPECT_EQ(cluster.open_descriptors(pid), count) << pid;
  }
  EXPECT_EQ(cluster.down(), 0);
}

TEST_F(HashCluster, CreditBoundsAStreamWhoseClientDoesNotRead) {
  test::Cluster cluster(kFakeCluster);
  ASSERT_TRUE(cluster.up());
  auto client = cluster.connect({.ack_every = 1u << 30});
  const std::vector<TokenId> prompt = {1000, 2000, 3000};
  client::Request request;
  request.prompt = prompt;
  request.max_tokens = 3000;
  ASSERT_TRUE(client.start(request).ok());
  // No next(): nothing is acknowledged, so the stream stops at its credit and stays there.
  const auto steps_of = [&] {
    uint64_t steps = 0;
    for (const auto& worker : cluster.status().workers) steps += worker.steps;
    return steps;
  };
  EXPECT_TRUE(cluster.eventually(
      [&](const client::ClusterStatus& status) {
        uint64_t steps = 0;
        for (const auto& worker : status.workers) steps += worker.steps;
        return steps >= 1024;
      },
      10 * kSecond));
  usleep(500'000);
  const uint64_t paused = steps_of();
  EXPECT_LE(paused, 1024u + 3);
  usleep(500'000);
  EXPECT_EQ(steps_of(), paused);
  // Reading acknowledges and the stream goes on to its end, every token once.
  std::vector<TokenId> got;
  auto reader = std::move(client);
  while (reader.open_streams() > 0) {
    const auto event = reader.next(monotonic_now() + 10 * kSecond);
    ASSERT_TRUE(event.ok() && event->has_value());
    if (const auto* piece = std::get_if<client::Piece>(&(*event)->what))
      got.insert(got.end(), piece->ids.begin(), piece->ids.end());
  }
  EXPECT_EQ(got, context_hash::expected(prompt, vocab_size_, silent_, 3000));
  cluster.expect_balanced();
  EXPECT_EQ(cluster.down(), 0);
}

TEST_F(HashCluster, WorkersThatAreKilledComeBack) {
  test::Cluster cluster(kFakeCluster);
  ASSERT_TRUE(cluster.up());
  for (const char* victim : {"gpu-worker.0", "tokenizer-worker.1", "router"}) {
    SCOPED_TRACE(victim);
    pid_t pid = 0;
    for (const test::Child& child : cluster.children())
      if (child.name == victim) pid = child.pid;
    ASSERT_GT(pid, 0);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_TRUE(cluster.eventually([](const auto& status) { return !status.ready; }, 3 * kSecond) ||
                !test::alive(pid));
    ASSERT_TRUE(cluster.eventually([](const auto& status) { return status.ready; }, 10 * kSecond));
    auto client = cluster.connect();
    const std::vector<TokenId> prompt = {17, 18, 19};
    client::Request request;
    request.prompt = prompt;
    request.max_tokens = 20;
    const auto answer = client.generate(request, nullptr, 15 * kSecond);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->ending.reason, client::FinishReason::kLength) << answer->ending.message;
    EXPECT_EQ(answer->ids, context_hash::expected(prompt, vocab_size_, silent_, 20));
    cluster.expect_balanced();
  }
  EXPECT_EQ(cluster.down(), 0);
}

}  // namespace
}  // namespace ringmaster
