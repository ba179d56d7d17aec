// The real model through the whole cluster: text in, streamed text out, and everything that a client can do
// wrong.
#include <gtest/gtest.h>

#include <cmath>

#include "base/config.h"
#include "gpu-worker/device/device.h"
#include "tests/process/support/cluster.h"

namespace ringmaster {
namespace {

constexpr const char* kCpuCluster = R"(model: smollm2
tokenizer-worker:
  count: 2
gpu-worker:
  device: cpu
  kv_memory: 128MiB
)";

// What the cpu device gives for these ids when nothing else is around: prefill in one step, then greedy
// decode.
std::vector<TokenId> alone(gpu_worker::Device& device, shm::Doorbell& bell,
                           const std::vector<TokenId>& prompt, uint32_t count) {
  std::vector<TokenId> out;
  static uint64_t step = 0;
  const uint32_t block_tokens = device.info().block_tokens;
  for (uint32_t k = 0; k < count; ++k) {
    gpu_worker::StepPlan plan;
    plan.step = ++step;
    const uint32_t end = static_cast<uint32_t>(prompt.size()) + k;
    if (k == 0) {
      gpu_worker::LaneOpen open;
      open.context = prompt;
      open.prompt_count = static_cast<uint32_t>(prompt.size());
      plan.opens.push_back(open);
      plan.ids = prompt;
    } else {
      plan.ids = {gpu_worker::kFromLane};
    }
    gpu_worker::StepRow row;
    row.num_tokens = static_cast<uint32_t>(plan.ids.size());
    row.first_position = end - row.num_tokens;
    row.num_blocks = (end + block_tokens - 1) / block_tokens;
    for (uint32_t b = 0; b < row.num_blocks; ++b) plan.blocks.push_back(b);
    row.samples = true;
    row.token_number = k;
    plan.rows.push_back(row);
    device.submit(std::move(plan));
    std::optional<gpu_worker::StepResult> result;
    const Nanos deadline = monotonic_now() + 30 * kSecond;
    while (!result && monotonic_now() < deadline) {
      const uint32_t seen = bell.sequence();
      result = device.retire(monotonic_now());
      if (!result) bell.wait(seen, deadline);
    }
    if (!result || result->rows.size() != 1) {
      ADD_FAILURE() << "no result";
      return out;
    }
    out.push_back(result->rows[0].id);
  }
  return out;
}

class SmolLm2 : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = std::make_unique<test::Cluster>(kCpuCluster);
    ASSERT_TRUE(cluster_->up());
  }
  static void TearDownTestSuite() {
    if (cluster_) {
      EXPECT_EQ(cluster_->down(), 0);
    }
    cluster_.reset();
  }

  void TearDown() override { cluster_->expect_balanced(); }

  // A request that must be refused with `code`, after which the cluster still works.
  void refused(client::Request request, Code code) {
    auto client = cluster_->connect();
    const auto answer = client.generate(std::move(request), nullptr, 20 * kSecond);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->ending.reason, client::FinishReason::kRefused);
    EXPECT_EQ(name(answer->ending.code), name(code)) << answer->ending.message;
    EXPECT_FALSE(answer->ending.message.empty());
    EXPECT_TRUE(answer->ids.empty());
  }

  static std::unique_ptr<test::Cluster> cluster_;
};
std::unique_ptr<test::Cluster> SmolLm2::cluster_;

TEST_F(SmolLm2, GreedyTextOfFivePromptsEqualsTheDeviceAlone) {
  auto bell = shm::Doorbell::create();
  ASSERT_TRUE(bell.ok());
  GpuWorkerConfig config;
  config.kv_memory = 64 << 20;
  auto device = gpu_worker::make_device(config, *resolve_model("smollm2"), *bell);
  ASSERT_TRUE(device.ok()) << device.error().message;
  const std::vector<std::string> prompts = {"The capital of France is", "Once upon a time, there was a",
                                            "def fibonacci(n):", "Water boils at a temperature of",
                                            "Liebe Freunde, heute m\xC3\xB6"
                                            "chte ich"};
  auto client = cluster_->connect();
  for (const std::string& prompt : prompts) {
    SCOPED_TRACE(prompt);
    client::Request request;
    request.prompt = prompt;
    request.max_tokens = 24;
    request.ignore_eos = true;
    request.skip_special = false;
    const auto ids = client.tokenize(request, 5 * kSecond);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    std::string streamed;
    const auto answer = client.generate(
        request, [&](const client::Piece& piece) { streamed += piece.text; }, 60 * kSecond);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->ending.reason, client::FinishReason::kLength);
    EXPECT_EQ(answer->ending.usage.prompt_tokens, ids->size());
    EXPECT_EQ(answer->ids, alone(**device, *bell, *ids, 24));
    EXPECT_EQ(streamed, answer->text);
    // Decoding and encoding again is the identity on text that this tokenizer can spell.
    client::Request again;
    again.prompt = prompt + answer->text;
    const auto all = client.tokenize(again, 5 * kSecond);
    ASSERT_TRUE(all.ok());
    EXPECT_GE(all->size(), ids->size());
  }
}

TEST_F(SmolLm2, ChatAnswersAndEndsItsTurn) {
  auto client = cluster_->connect();
  client::Request request;
  request.prompt = std::vector<client::ChatMessage>{{"user", "What is the capital of Germany?"}};
  request.max_tokens = 64;
  const auto answer = client.generate(request, nullptr, 60 * kSecond);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->ending.reason, client::FinishReason::kStop) << answer->text;
  EXPECT_NE(answer->text.find("Berlin"), std::string::npos) << answer->text;
  const auto& t = answer->ending.timings;
  EXPECT_GT(t.total, 0);
  EXPECT_EQ(t.route + t.tokenize + t.queue + t.prefill + t.decode + t.detokenize, t.total);
}

TEST_F(SmolLm2, SeededSamplingRepeatsAndLogprobsComeWithEachToken) {
  auto client = cluster_->connect();
  client::Request request;
  request.prompt = std::string("My favourite animal is");
  request.sampling.temperature = 1;
  request.sampling.seed = 42;
  request.has_seed = true;
  request.logprobs = 3;
  request.max_tokens = 16;
  request.ignore_eos = true;
  const auto first = client.generate(request, nullptr, 60 * kSecond);
  const auto second = client.generate(request, nullptr, 60 * kSecond);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->ids, second->ids);
  ASSERT_EQ(first->logprobs.size(), 16u);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(first->logprobs[i].chosen, second->logprobs[i].chosen) << i;
    ASSERT_EQ(first->logprobs[i].top.size(), 3u);
    EXPECT_LE(first->logprobs[i].chosen, 0);
    EXPECT_GE(first->logprobs[i].top[0].logprob, first->logprobs[i].top[2].logprob);
  }
  request.sampling.seed = 43;
  const auto other = client.generate(request, nullptr, 60 * kSecond);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->ids, first->ids);
}

TEST_F(SmolLm2, StopStringsEndTheTextBeforeThem) {
  auto client = cluster_->connect();
  client::Request request;
  request.prompt = std::string("1, 2, 3, 4, 5, 6,");
  request.max_tokens = 40;
  request.stop = {" 9"};
  const auto answer = client.generate(request, nullptr, 60 * kSecond);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->ending.reason, client::FinishReason::kStop) << answer->text;
  EXPECT_EQ(answer->ending.stop, " 9");
  EXPECT_EQ(answer->text, " 7, 8,");
}

TEST_F(SmolLm2, BadInputIsRefusedWithACode) {
  const auto text = [](std::string prompt) {
    client::Request request;
    request.prompt = std::move(prompt);
    request.max_tokens = 4;
    return request;
  };
  refused(text(""), Code::kInvalidArgument);
  refused(text("broken \xC3\x28 utf-8"), Code::kInvalidUtf8);
  refused(text(std::string(10 << 20, 'x')), Code::kTooLarge);
  std::string long_text;
  for (int i = 0; i < 9000; ++i) long_text += " word";
  refused(text(long_text), Code::kContextLengthExceeded);
  {
    auto request = text("x");
    request.prompt = std::vector<TokenId>{1, 49152};
    refused(request, Code::kInvalidArgument);
    request.prompt = std::vector<TokenId>{};
    refused(request, Code::kInvalidArgument);
    request.prompt = std::vector<client::ChatMessage>{};
    refused(request, Code::kInvalidArgument);
  }
  for (const float temperature : {-1.0f, std::nanf("")}) {
    auto request = text("x");
    request.sampling.temperature = temperature;
    refused(request, Code::kInvalidArgument);
  }
  {
    auto request = text("x");
    request.max_tokens = 0;
    refused(request, Code::kInvalidArgument);
    request.max_tokens = 8192;
    refused(request, Code::kContextLengthExceeded);
  }
  {
    auto request = text("x");
    request.stop.assign(10'000, "stop");
    refused(request, Code::kTooLarge);
    request.stop = {""};
    refused(request, Code::kInvalidArgument);
  }
  {
    auto request = text("x");
    request.sampling.logit_bias = {{191'222, 1.0f}};
    refused(request, Code::kInvalidArgument);
    request.sampling.logit_bias.clear();
    request.stop_ids = {151'645};
    refused(request, Code::kInvalidArgument);
  }
  auto client = cluster_->connect();
  auto good = text("The capital of France is");
  const auto answer = client.generate(good, nullptr, 30 * kSecond);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->ending.reason, client::FinishReason::kLength) << answer->ending.message;
}

TEST_F(SmolLm2, DeadlineEndsARunningRequest) {
  auto client = cluster_->connect();
  client::Request request;
  request.prompt = std::string("Once upon a time");
  request.max_tokens = 4000;
  request.ignore_eos = true;
  request.deadline_ms = 300;
  const Nanos start = monotonic_now();
  const auto answer = client.generate(request, nullptr, 30 * kSecond);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->ending.reason, client::FinishReason::kDeadline);
  EXPECT_EQ(answer->ending.code, Code::kDeadlineExceeded);
  EXPECT_LT(monotonic_now() - start, 3 * kSecond);
}

}  // namespace
}  // namespace ringmaster
