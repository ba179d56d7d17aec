#include "launcher/state_dir.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>

#include "support.h"

namespace ringmaster::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

mode_t mode_of(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

void bind_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

TEST(StateDir, IsCreatedForItsOwnerOnly) {
  Folder folder;
  ASSERT_TRUE(create_state_dir(folder / "a/b/state").ok());
  for (const char* made : {"a", "a/b", "a/b/state", "a/b/state/logs"})
    EXPECT_EQ(mode_of(folder / made), 0700u) << made;
  EXPECT_TRUE(create_state_dir(folder / "a/b/state").ok());  // again
}

TEST(StateDir, RefusesWhatOthersCanReach) {
  Folder folder;
  const std::string open_dir = folder / "open";
  mkdir(open_dir.c_str(), 0700);
  chmod(open_dir.c_str(), 0755);
  EXPECT_THAT(create_state_dir(open_dir).error().message,
              HasSubstr("has mode 0755; allowed: 0700 (chmod 700 "));
  EXPECT_EQ(mode_of(open_dir), 0755u);  // not ours to change

  const std::string parent = folder / "parent";
  mkdir(parent.c_str(), 0700);
  chmod(parent.c_str(), 0777);
  EXPECT_THAT(create_state_dir(parent + "/state").error().message, HasSubstr("other users can replace it"));

  spill(folder / "file", "");
  EXPECT_EQ(create_state_dir(folder / "file").error().code, Code::kAlreadyExists);
  ASSERT_EQ(symlink("/tmp", (folder / "link").c_str()), 0);
  EXPECT_FALSE(create_state_dir(folder / "link").ok());
  EXPECT_FALSE(create_state_dir("/proc/no/state").ok());
}

TEST(StateDir, IsHeldByOne) {
  Folder folder;
  EXPECT_FALSE(state_dir_is_locked(folder.path));
  {
    const Result<UniqueFd> lock = lock_state_dir(folder.path);
    ASSERT_TRUE(lock.ok());
    EXPECT_TRUE(state_dir_is_locked(folder.path));
    const Result<UniqueFd> second = lock_state_dir(folder.path);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code, Code::kAlreadyExists);
    EXPECT_THAT(second.error().message, HasSubstr(folder.path + " is in use by a running cluster"));
  }
  EXPECT_FALSE(state_dir_is_locked(folder.path));
  EXPECT_TRUE(lock_state_dir(folder.path).ok());
}

TEST(StateDir, ALockOnARemovedFileDoesNotCount) {
  Folder folder;
  const Result<UniqueFd> old = lock_state_dir(folder.path);
  remove_runtime_files(folder.path, {});
  EXPECT_FALSE(state_dir_is_locked(folder.path));
  EXPECT_TRUE(lock_state_dir(folder.path).ok());  // a new file
}

TEST(StateDir, KeepsLogsAndConfigurationAfterTheEnd) {
  Folder folder;
  ASSERT_TRUE(create_state_dir(folder / "s").ok());
  const std::string dir = folder / "s";
  for (const char* name : {"/cluster.yaml", "/incarnation", "/incarnation.new", "/logs/router.jsonl",
                           "/supervisor.json", "/lock"})
    spill(dir + name, "x");
  bind_socket(dir + "/clients.sock");
  bind_socket(dir + "/gpu-worker.0.ring");
  bind_socket(folder / "elsewhere.sock");
  EXPECT_THAT(
      remove_runtime_files(dir, {folder / "elsewhere.sock"}),
      UnorderedElementsAre(dir + "/clients.sock", dir + "/gpu-worker.0.ring", dir + "/supervisor.json",
                           dir + "/incarnation.new", dir + "/lock", folder / "elsewhere.sock"));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir))
    left.push_back(entry.path().filename().string());
  EXPECT_THAT(left, UnorderedElementsAre("cluster.yaml", "incarnation", "logs", "router.jsonl"));
}

TEST(StateDir, WritesInOneStep) {
  Folder folder;
  const std::string path = folder / "f";
  ASSERT_TRUE(write_atomically(path, "one").ok());
  const int reader = open(path.c_str(), O_RDONLY);
  ASSERT_TRUE(write_atomically(path, "two").ok());
  char old[8] = {};
  EXPECT_EQ(read(reader, old, sizeof old), 3);
  EXPECT_STREQ(old, "one");  // a reader of the old text is not disturbed
  close(reader);
  EXPECT_EQ(slurp(path), "two");
  EXPECT_EQ(mode_of(path), 0600u);
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
  EXPECT_FALSE(write_atomically(folder / "none/f", "x").ok());
}

}  // namespace
}  // namespace ringmaster::launcher
