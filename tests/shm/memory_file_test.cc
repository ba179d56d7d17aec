#include "shm/memory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <utility>

namespace ringmaster::shm {
namespace {

UniqueFd duplicate(int fd) {
  return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

Error attach_error(UniqueFd fd, size_t bytes) {
  auto file = MemoryFile::attach(std::move(fd), bytes);
  EXPECT_FALSE(file.ok());
  return file.ok() ? Error{Code::kOk, ""} : file.error();
}

TEST(MemoryFile, BothMappingsAreTheSameMemory) {
  auto made = MemoryFile::create("test", 8192);
  ASSERT_TRUE(made.ok());
  auto attached = MemoryFile::attach(duplicate(made->fd()), 8192);
  ASSERT_TRUE(attached.ok());
  ASSERT_EQ(attached->bytes().size(), 8192u);
  ASSERT_NE(attached->bytes().data(), made->bytes().data());
  std::memcpy(made->bytes().data() + 5000, "shared", 7);
  EXPECT_STREQ(reinterpret_cast<const char*>(attached->bytes().data()) + 5000, "shared");
}

TEST(MemoryFile, CannotChangeItsSize) {
  auto file = MemoryFile::create("test", 8192);
  ASSERT_TRUE(file.ok());
  EXPECT_NE(ftruncate(file->fd(), 4096), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(ftruncate(file->fd(), 16384), 0);
  EXPECT_NE(fcntl(file->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(MemoryFile, IsClosedOnExecAndHasNoName) {
  auto file = MemoryFile::create("ringmaster.test", 4096);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(fcntl(file->fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_EQ(entry.path().string().find("ringmaster.test"), std::string::npos);
  }
}

TEST(MemoryFile, AttachRefusesAnotherSize) {
  auto made = MemoryFile::create("test", 8192);
  ASSERT_TRUE(made.ok());
  const Error error = attach_error(duplicate(made->fd()), 4096);
  EXPECT_EQ(error.code, Code::kMalformed);
  EXPECT_EQ(error.message, "the received memory file has 8192 bytes instead of 4096");
}

TEST(MemoryFile, AttachRefusesMissingSeals) {
  UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_EQ(attach_error(std::move(unsealed), 4096).code, Code::kMalformed);
}

TEST(MemoryFile, AttachRefusesWhatIsNoMemoryFile) {
  EXPECT_EQ(attach_error(UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)), 4096).code, Code::kMalformed);
  EXPECT_EQ(attach_error(UniqueFd(), 4096).code, Code::kMalformed);
  int pipe_fds[2];
  ASSERT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
  UniqueFd read_end(pipe_fds[0]);
  EXPECT_EQ(attach_error(UniqueFd(pipe_fds[1]), 4096).code, Code::kMalformed);
}

TEST(MemoryFile, AttachRefusesReadOnlyMemory) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), 4096), 0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL), 0);
  EXPECT_EQ(attach_error(std::move(fd), 4096).code, Code::kPermissionDenied);
}

TEST(MemoryFile, SizeZeroIsAnError) {
  EXPECT_FALSE(MemoryFile::create("test", 0).ok());
}

}  // namespace
}  // namespace ringmaster::shm
