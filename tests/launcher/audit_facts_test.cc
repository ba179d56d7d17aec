// What `ringmaster audit` reads of processes, and of an audit before.
#include "launcher/audit_facts.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace ringmaster::launcher {
namespace {

TEST(AuditFacts, AFormerAuditIsReadOrRefusedByName) {
  const std::string path = testing::TempDir() + "/former_audit.json";
  EXPECT_EQ(read_former_audit(path + ".none").error().code, Code::kNotFound);
  // Can be opened, but not read: as /proc/PID/maps of a process that ends meanwhile.
  EXPECT_EQ(read_former_audit(testing::TempDir()).error().code, Code::kNotFound);
  std::ofstream(path) << R"({"processes": [{"name": "router", "threads": 4}]})";
  const auto refused = read_former_audit(path);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("descriptors"));
  std::string kinds;
  for (const DescriptorKind& kind : kDescriptorKinds)
    kinds += (kinds.empty() ? "\"" : ", \"") + std::string(kind.name) + "\": " + std::to_string(kinds.size());
  std::ofstream(path) << R"({"processes": [{"name": "router", "threads": 4, "descriptors": {)" + kinds +
                             "}}]}";
  const auto read = read_former_audit(path);
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ((*read)[0].threads, 4u);
  EXPECT_EQ((*read)[0].descriptors.slots, 0u);
  EXPECT_EQ((*read)[0].descriptors.bells, std::string("\"slots\": 0").size());
  std::remove(path.c_str());
}

TEST(AuditFacts, UnixSocketsByInode) {
  const auto sockets = parse_unix_sockets(
      "Num       RefCount Protocol Flags    Type St Inode Path\n"
      "0000000000000000: 00000003 00000000 00000000 0001 03 1785291 /run/x/workers.sock\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01 1785278 /run/x/a b.sock\n"
      "0000000000000000: 00000003 00000000 00000000 0001 03 77\n"
      "garbage\n");
  ASSERT_EQ(sockets.size(), 3u);
  EXPECT_EQ(sockets.at(1785291).path, "/run/x/workers.sock");
  EXPECT_FALSE(sockets.at(1785291).listening);
  EXPECT_EQ(sockets.at(1785278).path, "/run/x/a b.sock");
  EXPECT_TRUE(sockets.at(1785278).listening);
  EXPECT_EQ(sockets.at(77).path, "");
}

TEST(AuditFacts, OfThisProcessAndOfNone) {
  const ProcessFacts before = read_process("me", getpid(), "ready", {}, {});
  EXPECT_TRUE(before.alive);
  EXPECT_FALSE(before.stopped);
  EXPECT_GE(before.threads, 1u);
  EXPECT_LT(before.age, 3600 * kSecond);
  usleep(30'000);  // clock ticks are 10 ms
  EXPECT_GT(read_process("me", getpid(), "ready", {}, {}).age, before.age);
  const int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(read_process("me", getpid(), "ready", {}, {}).descriptors.files, before.descriptors.files + 1);
  close(fd);
  const ProcessFacts none = read_process("none", 0, "stopped", {}, {});
  EXPECT_FALSE(none.alive);
  EXPECT_EQ(none.descriptors.total, 0u);
}

}  // namespace
}  // namespace ringmaster::launcher
