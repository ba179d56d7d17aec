// Commands under back-pressure: order, bounds, what is taken back, and a gpu-worker that stops reading.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tokenizer-worker/worker/fake_gpu.h"

namespace ringmaster::tokenizer_worker {
namespace {

using shm::RecordType;
using ::testing::HasSubstr;

struct NoSink final : TokenSink {
  void on_token(LinkId, const shm::TokenRow&, std::span<const TokenLogprob>) override { ++tokens; }
  void on_ended(LinkId, const shm::EndedRecord&, std::string_view) override {}
  int tokens = 0;
};

StartCommand start(Epoch epoch, size_t prompt) {
  StartCommand command;
  command.record.epoch = epoch;
  command.ids.resize(prompt);
  for (size_t i = 0; i < prompt; ++i) command.ids[i] = static_cast<TokenId>(epoch * 1000 + i);
  command.prompt_count = static_cast<uint32_t>(prompt);
  return command;
}

// Small rings: 4 KiB of commands hold 32 starts of 128 bytes, 4 KiB of prompts hold a few.
constexpr shm::SlotSizes kSmall = {4096, 4096, 4096};

TEST(RingLinks, NothingIsVisibleBeforeTheFlush) {
  RingLinks links;
  FakeGpu gpu;
  const LinkId link = links.add("gpu-worker.0", 7, gpu.take_end());
  ASSERT_TRUE(links.start(link, start(1, 3)));
  EXPECT_TRUE(gpu.commands().empty());
  EXPECT_FALSE(gpu.rang());
  links.flush();
  EXPECT_TRUE(gpu.rang());
  EXPECT_EQ(gpu.commands().size(), 1u);
}

TEST(RingLinks, AFullPromptRingKeepsTheOrder) {
  RingLinks links;
  FakeGpu gpu(7, kSmall);
  const LinkId link = links.add("gpu-worker.0", 7, gpu.take_end());
  // A prompt of 400 ids takes 1.6 KB: two fit.
  for (Epoch e = 1; e <= 6; ++e) {
    ASSERT_TRUE(links.start(link, start(e, 400)));
    links.grant(link, e, static_cast<uint32_t>(100 + e));
  }
  std::vector<std::pair<RecordType, Epoch>> seen;
  for (int round = 0; round < 20; ++round) {
    links.flush();
    for (const SeenCommand& command : gpu.commands()) {
      seen.emplace_back(command.type, command.epoch);
      if (command.type == RecordType::kStart) {
        EXPECT_EQ(command.ids.front(), command.epoch * 1000);
        EXPECT_EQ(command.ids.size(), 400u);
      } else {
        EXPECT_EQ(command.value, 100 + command.epoch);
      }
    }
    if (round == 0) {
      EXPECT_GT(links.waiting(), 0u);
    }
  }
  std::vector<std::pair<RecordType, Epoch>> expected;
  for (Epoch e = 1; e <= 6; ++e) {
    expected.emplace_back(RecordType::kStart, e);
    expected.emplace_back(RecordType::kGrant, e);
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(links.waiting(), 0u);
}

TEST(RingLinks, AFullCommandRingKeepsTheOrder) {
  RingLinks links;
  FakeGpu gpu(7, kSmall);
  const LinkId link = links.add("gpu-worker.0", 7, gpu.take_end());
  for (uint32_t i = 0; i < 300; ++i) links.grant(link, 1, i);
  uint32_t next = 0;
  for (int round = 0; round < 20; ++round) {
    links.flush();
    for (const SeenCommand& command : gpu.commands()) EXPECT_EQ(command.value, next++);
  }
  EXPECT_EQ(next, 300u);
}

TEST(RingLinks, StartsThatWaitAreBounded) {
  RingLinks links({.max_waiting_starts = 3});
  FakeGpu gpu(7, kSmall);
  const LinkId link = links.add("gpu-worker.0", 7, gpu.take_end());
  Epoch taken = 0;
  Status last = ok_status();
  while (taken < 100 && (last = links.start(link, start(taken + 1, 400)))) ++taken;
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, Code::kOverloaded);
  EXPECT_THAT(last.error().message, HasSubstr("gpu-worker.0"));
  EXPECT_EQ(links.waiting(), 3u);
  links.cancel(link, taken);  // one that waits makes room
  EXPECT_TRUE(links.start(link, start(98, 400)));
  EXPECT_FALSE(links.start(link, start(99, 400)));
  links.flush();
  gpu.commands();
  links.flush();
  EXPECT_TRUE(links.start(link, start(99, 10))) << "room again";
  EXPECT_TRUE(links.take_lost().empty());
}

TEST(RingLinks, CancelTakesAWaitingStartBack) {
  RingLinks links;
  FakeGpu gpu(7, kSmall);
  const LinkId link = links.add("gpu-worker.0", 7, gpu.take_end());
  for (Epoch e = 1; e <= 5; ++e) ASSERT_TRUE(links.start(link, start(e, 400)));
  links.grant(link, 4, 9);
  links.cancel(link, 4);
  links.cancel(link, 1);  // written already
  std::vector<std::pair<RecordType, Epoch>> seen;
  for (int round = 0; round < 10; ++round) {
    links.flush();
    for (const SeenCommand& command : gpu.commands()) seen.emplace_back(command.type, command.epoch);
  }
  EXPECT_EQ(seen, (std::vector<std::pair<RecordType, Epoch>>{{RecordType::kStart, 1},
                                                             {RecordType::kStart, 2},
                                                             {RecordType::kStart, 3},
                                                             {RecordType::kStart, 5},
                                                             {RecordType::kCancel, 1}}));
}

TEST(RingLinks, APromptLargerThanTheRingIsRefused) {
  RingLinks links;
  FakeGpu gpu(7, kSmall);
  const LinkId link = links.add("gpu-worker.0", 7, gpu.take_end());
  const Status status = links.start(link, start(1, 1000));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kTooLarge);
  EXPECT_THAT(status.error().message, HasSubstr("4016 bytes"));
  links.flush();
  EXPECT_FALSE(gpu.rang());
}

TEST(RingLinks, AGpuWorkerThatStopsReadingIsLost) {
  RingLinks links({.max_waiting = 10});
  FakeGpu gpu(7, kSmall);
  const LinkId link = links.add("gpu-worker.0", 7, gpu.take_end());
  for (uint32_t i = 0; i < 200; ++i) links.grant(link, 1, i);
  const auto lost = links.take_lost();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_THAT(lost[0].why, HasSubstr("does not read its commands"));
  EXPECT_EQ(lost[0].link.gpu_worker, "gpu-worker.0");
  EXPECT_TRUE(links.take_lost().empty()) << "reported once";
  // Afterwards it takes and gives nothing.
  links.grant(link, 1, 1);
  links.cancel(link, 1);
  EXPECT_EQ(links.start(link, start(1, 1)).error().code, Code::kWorkerLost);
  links.flush();
  gpu.tokens({{1, 0, 5, 0, {}}});
  NoSink sink;
  EXPECT_FALSE(links.poll(sink));
  EXPECT_EQ(sink.tokens, 0);
}

TEST(RingLinks, PollReadsABoundedNumberOfRecords) {
  RingLinks links({.records_per_poll = 4});
  FakeGpu gpu;
  links.add("gpu-worker.0", 7, gpu.take_end());
  for (uint32_t i = 0; i < 10; ++i) gpu.tokens({{1, i, 5, 0, {}}});
  NoSink sink;
  EXPECT_TRUE(links.poll(sink));
  EXPECT_EQ(sink.tokens, 4);
  EXPECT_TRUE(links.poll(sink));
  EXPECT_FALSE(links.poll(sink));
  EXPECT_EQ(sink.tokens, 10);
}

TEST(RingLinks, WatchersHearOfEachDescriptorOnceAndBeforeItIsClosed) {
  RingLinks links;
  std::vector<int> added, removed;
  links.watch_peers([&](int fd) { added.push_back(fd); },
                    [&](int fd) {
                      EXPECT_GE(::fcntl(fd, F_GETFD), 0) << "still open";
                      removed.push_back(fd);
                    });
  FakeGpu gpu;
  const LinkId link = links.add("gpu-worker.0", 7, gpu.take_end());
  ASSERT_EQ(added.size(), 1u);
  EXPECT_TRUE(removed.empty());
  links.drop(link, "test");
  links.drop(link, "test");
  EXPECT_EQ(removed, added);
  EXPECT_EQ(links.take_lost().size(), 1u);
  EXPECT_LT(::fcntl(added[0], F_GETFD), 0) << "closed with the link";
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
