// A slot that was given and cannot be taken yet: it is taken later, and no second one is asked for.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/shm/little.h"
#include "tests/shm/slot_fixture.h"

namespace ringmaster::shm {
namespace {

constexpr uint64_t kInstance = 77;
constexpr uint32_t kSlots = 2;
// More than LittleMemory leaves.
constexpr SlotSizes kSizes{4096, 1 << 20, 4096};

size_t open_fds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

struct SlotRequests : SlotSocket {
  SlotRequests() : server(SlotServer::create(path, kSlots, kSizes, kInstance, bell).value()) {}

  SlotRequest send() {
    return SlotRequest::send(path, kInstance, "w", own, monotonic_now() + 10 * kSecond).value();
  }
  static Result<TokenizerEnd> take(SlotRequest& request, Nanos patience = 10 * kSecond) {
    return request.take(monotonic_now() + patience);
  }
  void serve() {
    server->poll([&](GpuEnd& end) { ends[end.slot] = &end; }, [](uint32_t) {});
  }
  uint32_t free_slots() const { return kSlots - server->held(); }

  // The slot that comes is the one that was given, and it works.
  void expect_slot_0(SlotRequest& request) {
    auto end = take(request);
    ASSERT_TRUE(end.ok()) << end.error().message;
    EXPECT_EQ(end->slot, 0u);
    EXPECT_FALSE(request.open());
    EXPECT_TRUE(end->gpu_pidfd);
    ASSERT_TRUE(put_word(end->commands, 5));
    EXPECT_EQ(take_word(ends[0]->commands), 5u);
    EXPECT_EQ(free_slots(), 1u);
    EXPECT_EQ(server->counters().attached, 1u);
  }

  Doorbell own = Doorbell::create().value();
  std::unique_ptr<SlotServer> server;
  GpuEnd* ends[kSlots] = {};
};

TEST_F(SlotRequests, WithoutMemoryTheSlotIsTakenLater) {
  SlotRequest request = send();
  serve();
  EXPECT_EQ(free_slots(), 1u);
  for (int i = 0; i < 3; ++i) {
    const LittleMemory little;
    const auto end = take(request);
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.error().code, Code::kResourceExhausted) << end.error().message;
    EXPECT_TRUE(request.open());
  }
  expect_slot_0(request);
}

TEST_F(SlotRequests, WithoutDescriptorsTheSlotIsTakenLater) {
  SlotRequest request = send();
  serve();
  for (const int more : {0, 1}) {  // two are received
    const FewDescriptors few(more);
    const auto end = take(request);
    ASSERT_FALSE(end.ok()) << more;
    EXPECT_EQ(end.error().code, Code::kResourceExhausted) << end.error().message;
    EXPECT_NE(end.error().message.find("Too many open files; raise the limit of this process (ulimit -n"),
              std::string::npos)
        << end.error().message;
    EXPECT_TRUE(request.open());
  }
  expect_slot_0(request);
}

TEST_F(SlotRequests, AnAnswerAfterTheDeadlineIsTakenLater) {
  SlotRequest request = send();
  const auto end = take(request, 20 * kMillisecond);
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().code, Code::kDeadlineExceeded);
  EXPECT_TRUE(request.open());
  EXPECT_EQ(free_slots(), 2u);
  serve();
  EXPECT_EQ(free_slots(), 1u);
  expect_slot_0(request);
}

TEST_F(SlotRequests, AFailedTryKeepsNoDescriptor) {
  SlotRequest request = send();
  serve();
  const size_t before = open_fds();
  for (int i = 0; i < 10; ++i) {
    const LittleMemory little;
    EXPECT_FALSE(take(request).ok());
  }
  EXPECT_EQ(open_fds(), before);
  expect_slot_0(request);
}

TEST_F(SlotRequests, ARefusalClosesTheRequest) {
  SlotRequest first = send(), second = send(), third = send();
  serve();
  EXPECT_TRUE(take(first).ok());
  EXPECT_TRUE(take(second).ok());
  EXPECT_EQ(free_slots(), 0u);
  const auto end = take(third);
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().code, Code::kResourceExhausted);
  EXPECT_FALSE(third.open());
}

TEST_F(SlotRequests, TheEndOfTheGpuWorkerClosesTheRequest) {
  SlotRequest request = send();
  server.reset();
  const auto end = take(request);
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().code, Code::kUnavailable);
  EXPECT_FALSE(request.open());
}

}  // namespace
}  // namespace ringmaster::shm
