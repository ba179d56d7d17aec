// The path that a slot server listens on, and what it refuses to start with.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "shm/unix_socket.h"
#include "tests/shm/slot_fixture.h"

namespace ringmaster::shm {
namespace {

constexpr uint64_t kInstance = 0xABCDEF0123;

struct SlotPath : SlotSocket {
  void serve(uint32_t count) {
    server = SlotSocket::serve(kInstance, count);
    ASSERT_TRUE(server);
  }
  std::unique_ptr<SlotServer> server;
};

TEST_F(SlotPath, OPS_07_PathTooLongIsNamed) {
  auto made = SlotServer::create("/tmp/" + std::string(150, 'x'), 1, kSmall, kInstance, bell);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Code::kInvalidArgument);
  EXPECT_NE(made.error().message.find("155 bytes; allowed are 1 to 107"), std::string::npos);
}

TEST_F(SlotPath, ALivePathIsRefusedADeadOneReplaced) {
  serve(1);
  auto second = SlotServer::create(path, 1, kSmall, kInstance, bell);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  server.reset();
  { UniqueFd stale = listen_seqpacket(path, 1).value(); }
  ASSERT_TRUE(std::filesystem::exists(path));
  serve(1);
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(SlotPath, AFileInTheWayIsLeftAlone) {
  std::ofstream(path) << "precious";
  auto made = SlotServer::create(path, 1, kSmall, kInstance, bell);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Code::kAlreadyExists);
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
}

TEST_F(SlotPath, SizesAreChecked) {
  auto made = SlotServer::create(path, 1, {4096, 5000, 4096}, kInstance, bell);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Code::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(SlotPath, MemoryOfAllSlotsIsThereToBePinned) {
  serve(3);
  const auto memory = server->memory();
  ASSERT_EQ(memory.size(), 3u);
  for (const auto slot : memory) EXPECT_EQ(slot.size(), 4096u + 4096 + 8192 + 4096);
}

}  // namespace
}  // namespace ringmaster::shm
