// The handshake with a real slot server, and with nobody.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tests/shm/little.h"
#include "tokenizer-worker/link_attacher.h"

namespace ringmaster::tokenizer_worker {
namespace {

std::string socket_path(const char* name) {
  return ::testing::TempDir() + "rm-" + std::to_string(::getpid()) + "-" + name + ".ring";
}

template <typename Poll>
std::optional<Attached> wait_for(LinkAttacher& attacher, Poll poll) {
  const Nanos deadline = monotonic_now() + 10 * kSecond;
  while (monotonic_now() < deadline) {
    poll();
    if (auto attached = attacher.take()) return attached;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return std::nullopt;
}

TEST(LinkAttacher, GetsASlotThatWorksBothWays) {
  auto gpu_bell = shm::Doorbell::create().value();
  auto bell = shm::Doorbell::create().value();
  const std::string path = socket_path("attach");
  auto server = shm::SlotServer::create(path, 2, {4096, 4096, 4096}, /*gpu_instance=*/42, gpu_bell);
  ASSERT_TRUE(server) << server.error().message;
  shm::GpuEnd* end = nullptr;
  LinkAttacher attacher("tokenizer-worker.0", bell);
  ASSERT_TRUE(attacher.attach({"gpu-worker.0", 42, path}));
  auto attached =
      wait_for(attacher, [&] { (*server)->poll([&](shm::GpuEnd& e) { end = &e; }, [](uint32_t) {}); });
  ASSERT_TRUE(attached);
  ASSERT_TRUE(attached->end) << attached->end.error().message;
  EXPECT_EQ(attached->gpu_worker, "gpu-worker.0");
  EXPECT_EQ(attached->end->gpu_instance, 42u);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->holder, "tokenizer-worker.0");

  ASSERT_TRUE(attached->end->commands.try_reserve(1, 8));
  attached->end->commands.commit();
  EXPECT_TRUE(end->commands.peek());
  ASSERT_TRUE(end->tokens.try_reserve(32, 8));
  end->tokens.commit();
  end->tokenizer_bell.ring();
  EXPECT_TRUE(attached->end->tokens.peek());
  EXPECT_NE(bell.sequence(), 0u) << "the gpu-worker rings our bell";
}

// A slot without memory to map it: the next try takes the same one, for there is no other.
TEST(LinkAttacher, ASlotThatCannotBeMappedIsTakenByTheNextTry) {
  auto gpu_bell = shm::Doorbell::create().value();
  auto bell = shm::Doorbell::create().value();
  const std::string path = socket_path("little");
  auto server =
      shm::SlotServer::create(path, /*count=*/1, {4096, 1 << 20, 4096}, /*gpu_instance=*/42, gpu_bell);
  ASSERT_TRUE(server) << server.error().message;
  LinkAttacher attacher("tokenizer-worker.0", bell);
  const auto serve = [&] { (*server)->poll([](shm::GpuEnd&) {}, [](uint32_t) {}); };
  {
    const shm::LittleMemory little;
    ASSERT_TRUE(attacher.attach({"gpu-worker.0", 42, path}));
    const auto attached = wait_for(attacher, serve);
    ASSERT_TRUE(attached);
    ASSERT_FALSE(attached->end);
    EXPECT_EQ(attached->end.error().code, Code::kResourceExhausted) << attached->end.error().message;
    EXPECT_EQ((*server)->held(), 1u);
  }
  ASSERT_TRUE(attacher.attach({"gpu-worker.0", 42, path}));
  const auto attached = wait_for(attacher, serve);
  ASSERT_TRUE(attached);
  ASSERT_TRUE(attached->end) << attached->end.error().message;
  EXPECT_EQ(attached->end->slot, 0u);
  EXPECT_EQ((*server)->held(), 1u);
  EXPECT_EQ((*server)->counters().refused, 0u);
}

TEST(LinkAttacher, AnotherInstanceThereIsAnErrorAndTakesNoSlot) {
  auto gpu_bell = shm::Doorbell::create().value();
  auto bell = shm::Doorbell::create().value();
  const std::string path = socket_path("successor");
  auto server = shm::SlotServer::create(path, 1, {4096, 4096, 4096}, /*gpu_instance=*/43, gpu_bell);
  ASSERT_TRUE(server) << server.error().message;
  LinkAttacher attacher("tokenizer-worker.0", bell);
  ASSERT_TRUE(attacher.attach({"gpu-worker.0", 42, path}));
  const auto attached = wait_for(attacher, [&] { (*server)->poll([](shm::GpuEnd&) {}, [](uint32_t) {}); });
  ASSERT_TRUE(attached);
  ASSERT_FALSE(attached->end);
  EXPECT_EQ(attached->end.error().code, Code::kNotFound);
  EXPECT_EQ((*server)->held(), 0u);
}

TEST(LinkAttacher, NobodyThereIsAnError) {
  auto bell = shm::Doorbell::create().value();
  LinkAttacher attacher("tokenizer-worker.0", bell);
  ASSERT_TRUE(attacher.attach({"gpu-worker.0", 1, socket_path("nobody")}));
  const auto attached = wait_for(attacher, [] {});
  ASSERT_TRUE(attached);
  EXPECT_FALSE(attached->end);
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
