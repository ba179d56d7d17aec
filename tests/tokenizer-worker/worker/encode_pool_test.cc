// Bound, order, cancellation, and that a long prompt runs beside the stream thread.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "tests/tokenizer-worker/worker/tiny_tokenizer.h"
#include "tokenizer-worker/encode_pool.h"

namespace ringmaster::tokenizer_worker {
namespace {

// A chat prompt, so that the test's renderer runs inside the pool.
EncodeJob job(uint64_t number, EncodeTicket::Kind kind = EncodeTicket::Kind::kRequest) {
  msg::ChatPromptT chat;
  chat.messages.push_back(std::make_unique<msg::ChatMessageT>());
  chat.messages[0]->content = std::to_string(number);
  flatbuffers::FlatBufferBuilder b;
  b.Finish(msg::CreateChatPrompt(b, &chat));
  EncodeJob made;
  made.ticket = {kind, number};
  made.message.resize(b.GetSize() / 8 + 1);
  std::memcpy(made.message.data(), b.GetBufferPointer(), b.GetSize());
  made.prompt = {msg::Prompt::ChatPrompt, flatbuffers::GetRoot<msg::ChatPrompt>(made.message.data())};
  return made;
}

struct Surroundings {
  explicit Surroundings(RenderChat render =
                            [](const nlohmann::ordered_json& c) -> Result<std::vector<RenderedSpan>> {
    return std::vector<RenderedSpan>{{c["messages"][0]["content"].get<std::string>(), false}};
  })
      : builder(tokenizer, std::move(render)), bell(shm::Doorbell::create().value()) {}
  TinyTokenizer tokenizer{TinyTokenizer::Bos::kNone};
  PromptBuilder builder;
  shm::Doorbell bell;
};

std::optional<Encoded> wait_for_result(EncodePool& pool, shm::Doorbell& bell) {
  const Nanos deadline = monotonic_now() + 10 * kSecond;
  for (;;) {
    const uint32_t seen = bell.sequence();
    if (auto result = pool.take()) return result;
    if (!bell.wait(seen, deadline)) return std::nullopt;
  }
}

TEST(EncodePool, FirstComeFirstServed) {
  Surroundings s;
  EncodePool pool(s.builder, 0, 8, s.bell);
  for (uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(pool.submit(job(n)));
  while (pool.run_one()) {
  }
  for (uint64_t n = 1; n <= 3; ++n) {
    const auto result = pool.take();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->ticket.number, n);
    EXPECT_EQ(*result->ids, byte_ids(std::to_string(n)));
  }
  EXPECT_FALSE(pool.take());
  EXPECT_EQ(pool.in_flight(), 0u);
}

EncodeJob text_job(uint64_t number, size_t bytes) {
  flatbuffers::FlatBufferBuilder b;
  b.Finish(msg::CreateTextPromptDirect(b, std::string(bytes, 'a').c_str()));
  EncodeJob made;
  made.ticket = {EncodeTicket::Kind::kRequest, number};
  made.message.resize(b.GetSize() / 8 + 1);
  std::memcpy(made.message.data(), b.GetBufferPointer(), b.GetSize());
  made.prompt = {msg::Prompt::TextPrompt, flatbuffers::GetRoot<msg::TextPrompt>(made.message.data())};
  return made;
}

TEST(EncodePool, EncodesHereWhatFitsIntoATurn) {
  Surroundings s;
  EncodePool pool(s.builder, 0, 8, s.bell, 300);
  const auto here = [&](const EncodeJob& job) { return pool.encode_here(job).has_value(); };
  const auto first = pool.encode_here(text_job(1, 100));  // a message of 100 to 149 bytes
  ASSERT_TRUE(first);
  EXPECT_EQ(**first, byte_ids(std::string(100, 'a')));
  EXPECT_TRUE(here(text_job(2, 100)));
  EXPECT_FALSE(here(text_job(3, 100))) << "300 bytes are spent";
  pool.end_turn();
  EXPECT_FALSE(here(text_job(4, 301)));
  EXPECT_TRUE(here(text_job(5, 200)));
  pool.end_turn();
  EXPECT_FALSE(here(job(6))) << "a chat: its template may take long";
  EXPECT_EQ(pool.in_flight(), 0u);
  EXPECT_FALSE(pool.take());
}

TEST(EncodePool, WithoutAnInlineBudgetEverythingIsForTheThreads) {
  Surroundings s;
  EncodePool pool(s.builder, 0, 8, s.bell);
  EXPECT_FALSE(pool.encode_here(text_job(1, 0)));
}

TEST(EncodePool, TheBoundCoversResultsThatNobodyTook) {
  Surroundings s;
  EncodePool pool(s.builder, 0, 2, s.bell);
  ASSERT_TRUE(pool.submit(job(1)));
  ASSERT_TRUE(pool.submit(job(2)));
  EXPECT_EQ(pool.submit(job(3)).error().code, Code::kOverloaded);
  while (pool.run_one()) {
  }
  EXPECT_EQ(pool.submit(job(3)).error().code, Code::kOverloaded);
  EXPECT_TRUE(pool.take());
  EXPECT_TRUE(pool.submit(job(3)));
}

TEST(EncodePool, CancelOfAWaitingJobLeavesNoResult) {
  Surroundings s;
  EncodePool pool(s.builder, 0, 8, s.bell);
  ASSERT_TRUE(pool.submit(job(1)));
  ASSERT_TRUE(pool.submit(job(1, EncodeTicket::Kind::kQuery)));
  pool.cancel({EncodeTicket::Kind::kRequest, 1});
  pool.cancel({EncodeTicket::Kind::kRequest, 5});
  EXPECT_EQ(pool.in_flight(), 1u);
  while (pool.run_one()) {
  }
  EXPECT_EQ(pool.take()->ticket.kind, EncodeTicket::Kind::kQuery) << "the query of the same number stays";
  EXPECT_FALSE(pool.take());
}

TEST(EncodePool, AnExceptionBecomesAnError) {
  Surroundings s([](const nlohmann::ordered_json&) -> Result<std::vector<RenderedSpan>> {
    throw std::runtime_error("boom");
  });
  EncodePool pool(s.builder, 0, 8, s.bell);
  ASSERT_TRUE(pool.submit(job(1)));
  pool.run_one();
  const auto result = pool.take();
  ASSERT_FALSE(result->ids);
  EXPECT_EQ(result->ids.error().code, Code::kInternal);
  EXPECT_NE(result->ids.error().message.find("boom"), std::string::npos);
}

// The renderer blocks until the test, which plays the stream thread, lets it go: submitting, cancelling and
// taking never wait for it.
TEST(EncodePool, TOK_17_ALongPromptStallsNobody) {
  std::atomic<int> inside{0};
  std::atomic<bool> go{false};
  Surroundings s([&](const nlohmann::ordered_json& c) -> Result<std::vector<RenderedSpan>> {
    const auto text = c["messages"][0]["content"].get<std::string>();
    const Nanos limit = monotonic_now() + 10 * kSecond;
    if (text == "1") {
      ++inside;
      while (!go && monotonic_now() < limit) std::this_thread::yield();
    }
    return std::vector<RenderedSpan>{{text, false}, {"<end>", true}};
  });
  EncodePool pool(s.builder, 2, 8, s.bell);
  ASSERT_TRUE(pool.submit(job(1)));
  while (inside == 0) std::this_thread::yield();
  ASSERT_TRUE(pool.submit(job(2)));
  const auto quick = wait_for_result(pool, s.bell);
  ASSERT_TRUE(quick);
  EXPECT_EQ(quick->ticket.number, 2u) << "the second thread serves others meanwhile";
  pool.cancel({EncodeTicket::Kind::kRequest, 1});
  go = true;
  const auto slow = wait_for_result(pool, s.bell);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->ticket.number, 1u);
  ASSERT_FALSE(slow->ids) << "a running job ends early";
  EXPECT_EQ(slow->ids.error().code, Code::kCancelled);
}

TEST(EncodePool, ManyJobsOverThreads) {
  Surroundings s;
  EncodePool pool(s.builder, 3, 16, s.bell);
  std::vector<int> seen(500, 0);
  uint64_t next = 0, taken = 0;
  while (taken < seen.size()) {
    while (next < seen.size() && pool.submit(job(next))) ++next;
    const auto result = wait_for_result(pool, s.bell);
    ASSERT_TRUE(result);
    ASSERT_EQ(*result->ids, byte_ids(std::to_string(result->ticket.number)));
    ++seen[result->ticket.number];
    ++taken;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 500);
}

TEST(EncodePool, EndsWithJobsInside) {
  Surroundings s;
  EncodePool pool(s.builder, 1, 64, s.bell);
  for (uint64_t n = 0; n < 64; ++n) ASSERT_TRUE(pool.submit(job(n)));
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
