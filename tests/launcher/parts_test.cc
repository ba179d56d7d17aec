// The small parts: restart limit, merged output, record, hashes, memory.
#include <fcntl.h>
#include <gmock/gmock.h>

#include "launcher/memory.h"
#include "launcher/merged_output.h"
#include "launcher/read_file.h"
#include "launcher/record.h"
#include "launcher/restart_limit.h"
#include "launcher/sha256.h"
#include "support.h"

namespace ringmaster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RestartLimit, AllowsSoManyInTheWindowThatSlides) {
  RestartLimit limit(2, 10, 0);
  EXPECT_TRUE(limit.allow(0));
  EXPECT_TRUE(limit.allow(4));
  EXPECT_FALSE(limit.allow(9));
  EXPECT_TRUE(limit.allow(10));  // the one at 0 has left the window
  EXPECT_FALSE(limit.allow(13));
  EXPECT_TRUE(limit.allow(14));
  RestartLimit never(0, 10, 0);
  EXPECT_FALSE(never.allow(0));
}

TEST(LineSplitter, CutsLinesWhereverTheBytesWereCut) {
  LineSplitter splitter(8);
  std::vector<std::string> lines;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  splitter.feed("on", take);
  splitter.feed("e\ntwo\n\nth", take);
  EXPECT_THAT(lines, ElementsAre("one", "two"));
  splitter.finish(take);
  splitter.feed("12345678abc\n", take);
  EXPECT_THAT(lines, ElementsAre("one", "two", "th", "12345678", "abc"));
}

TEST(MergedOutput, PrefixesColoursAndCleansLines) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  MergedOutput plain(ends[1], false, {"supervisor", "router"});
  EXPECT_EQ(plain.prefix("router"), "router     | ");
  plain.line("router", "a\tb\x1B[2J");
  MergedOutput coloured(ends[1], true, {"supervisor", "router"});
  coloured.line("router", "x");
  char bytes[256] = {};
  ASSERT_GT(read(ends[0], bytes, sizeof bytes - 1), 0);
  EXPECT_STREQ(bytes, "router     | a b?[2J\n\x1B[32mrouter     | \x1B[0mx\n");
  close(ends[0]);
  close(ends[1]);
}

TEST(MergedOutput, ACloggedReaderCostsLinesNotTime) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  MergedOutput output(ends[1], false, {"r"});
  const std::string text(4000, 'x');
  for (int i = 0; i < 40; ++i) output.line("r", text);  // the pipe holds 16 pages
  std::string all;
  char bytes[65536];
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  for (ssize_t got; (got = read(ends[0], bytes, sizeof bytes)) > 0;)
    all.append(bytes, static_cast<size_t>(got));
  output.line("r", "after");
  const ssize_t got = read(ends[0], bytes, sizeof bytes);
  ASSERT_GT(got, 0);
  EXPECT_THAT(std::string(bytes, static_cast<size_t>(got)),
              ::testing::MatchesRegex("\\([0-9]+ log lines dropped: stderr was not read\\)\nr \\| after\n"));
  close(ends[0]);
  close(ends[1]);
}

TEST(Record, RoundTrips) {
  SupervisorRecord record{.name = "lab",
                          .pid = 7,
                          .start_ticks = 99,
                          .started_at = 1'700'000'000'000'000'000,
                          .state = "ready",
                          .client_endpoint = "ipc:///x/clients.sock",
                          .worker_endpoint = "ipc:///x/workers.sock",
                          .children = {{"router", 8, "ready", 2, 5, "killed by signal 9 (Killed)"}}};
  const Result<SupervisorRecord> again = parse_record(to_json(record));
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(to_json(again.value()), to_json(record));
  EXPECT_EQ(again.value().children[0].restarts, 2u);
  EXPECT_EQ(again.value().start_ticks, 99u);
}

TEST(ReadFile, WhatCannotBeReadIsEmpty) {
  Folder folder;
  const std::string text(10'000, 'x');
  spill(folder / "text", text);
  EXPECT_EQ(read_file(folder / "text"), text);
  EXPECT_EQ(read_file(folder / "missing"), "");
  EXPECT_EQ(read_file(folder.path), "");  // opens, but read() fails
  // The memory of this process at address 0: as /proc/PID/stat of a process that ends, it fails in read().
  EXPECT_EQ(read_file("/proc/self/mem"), "");
}

TEST(Record, BrokenTextIsAnError) {
  for (const char* text : {"", "{", "[]", "{\"name\":1}", "{\"name\":\"x\",\"pid\":\"y\"}"})
    EXPECT_FALSE(parse_record(text).ok()) << text;
  std::string negative = to_json({.name = "n", .pid = -1});
  EXPECT_FALSE(parse_record(negative).ok());
  for (const char* pid : {"4294967297", "1e3", "18446744073709551615"}) {  // none of them is 1, 1000 or -1
    std::string text = to_json({.name = "n", .pid = 77});
    const auto parsed = parse_record(text.replace(text.find("77"), 2, pid));
    ASSERT_FALSE(parsed.ok()) << pid;
    EXPECT_EQ(parsed.error().message, "pid is no whole number in its range");
  }
  Folder folder;
  EXPECT_EQ(read_record(folder.path).error().code, Code::kNotFound);
  spill(folder / "supervisor.json", "{\"na");
  EXPECT_EQ(read_record(folder.path).error().code, Code::kMalformed);
}

TEST(Record, StartTicksTellProcessesApart) {
  EXPECT_GT(process_start_ticks(getpid()), 0u);
  EXPECT_EQ(process_start_ticks(getpid()), process_start_ticks(getpid()));
  EXPECT_EQ(process_start_ticks(0x3FFFFFFF), 0u);
}

TEST(Sha256, OfKnownFiles) {
  Folder folder;
  spill(folder / "empty", "");
  spill(folder / "abc", "abc");
  EXPECT_EQ(sha256_of_file(folder / "empty").value(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_of_file(folder / "abc").value(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of_file(folder / "none").error().code, Code::kNotFound);
  EXPECT_FALSE(sha256_of_file(folder.path).ok());  // a folder
}

class MemoryTest : public ::testing::Test {
 protected:
  void host(const std::string& available_kib) {
    std::filesystem::create_directories(root_ / "proc/self");
    spill(root_ / "proc/meminfo",
          "MemTotal:  999999 kB\nMemAvailable:   " + available_kib + " kB\nCached: 5 kB\n");
  }
  void group(const std::string& path, const std::string& max, const std::string& current,
             const std::string& file) {
    const std::string folder = root_ / ("sys/fs/cgroup" + path);
    std::filesystem::create_directories(folder);
    spill(folder + "/memory.max", max + "\n");
    spill(folder + "/memory.current", current + "\n");
    spill(folder + "/memory.stat", "anon 1\nfile " + file + "\nfile_mapped 77\n");
  }
  Folder root_;
};

TEST_F(MemoryTest, IsWhatTheHostSays) {
  host("1000");
  EXPECT_EQ(available_memory(root_.path)->bytes, 1'024'000u);
  EXPECT_THAT(available_memory(root_.path)->limit, HasSubstr("MemAvailable"));
  EXPECT_GT(available_memory()->bytes, 0u);
}

TEST_F(MemoryTest, IsLessInAGroupWithALimit) {
  host("1000");
  spill(root_ / "proc/self/cgroup", "0::/user/app\n");
  group("/user/app", "max", "5", "0");
  group("/user", "500000", "300000", "100000");  // 100,000 of the 300,000 are page cache
  const auto available = available_memory(root_.path);
  EXPECT_EQ(available->bytes, 300'000u);
  EXPECT_EQ(available->limit, "memory.max of control group /user");
  group("/user", "1000", "300000", "0");  // over its limit already
  EXPECT_EQ(available_memory(root_.path)->bytes, 0u);
}

TEST_F(MemoryTest, IsUnknownWithoutProc) {
  EXPECT_FALSE(available_memory(root_.path).has_value());
}

}  // namespace
}  // namespace ringmaster::launcher
