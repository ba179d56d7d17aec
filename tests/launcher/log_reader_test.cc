#include "launcher/log_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>

#include "base/log.h"
#include "support.h"

namespace ringmaster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LogReaderTest : public ::testing::Test {
 protected:
  void append(const std::string& file, int64_t t, const std::string& process, const std::string& text) {
    std::ofstream(folder_ / file, std::ios::app) << R"({"t":)" << t << R"(,"level":"info","process":")"
                                                 << process << R"(","pid":1,"text":")" << text << "\"}\n";
  }
  void rename(const std::string& from, const std::string& to) {
    std::filesystem::rename(folder_ / from, folder_ / to);
  }
  static std::vector<std::string> texts(LogReader& reader) {
    std::vector<std::string> out;
    while (auto line = reader.next()) out.push_back(line->text);
    return out;
  }
  Folder folder_;
};

TEST_F(LogReaderTest, MergesProcessesAndOldFilesByTime) {
  append("router.1.jsonl", 1, "router", "r1");
  append("router.jsonl", 4, "router", "r4");
  append("gpu-worker.0.2.jsonl", 0, "gpu-worker.0", "g0");
  append("gpu-worker.0.1.jsonl", 2, "gpu-worker.0", "g2");
  append("gpu-worker.0.jsonl", 5, "gpu-worker.0", "g5");
  append("gpu-worker.1.jsonl", 3, "gpu-worker.1", "h3");
  LogReader reader(folder_.path, "");
  EXPECT_EQ(reader.streams(), 3u);
  EXPECT_THAT(texts(reader), ElementsAre("g0", "r1", "g2", "h3", "r4", "g5"));
}

TEST_F(LogReaderTest, SelectsAProcessOrAKind) {
  append("router.jsonl", 1, "router", "r");
  append("gpu-worker.0.jsonl", 2, "gpu-worker.0", "g0");
  append("gpu-worker.1.jsonl", 3, "gpu-worker.1", "g1");
  const auto selected = [&](const std::string& filter) {
    LogReader reader(folder_.path, filter);
    return texts(reader);
  };
  EXPECT_THAT(selected("gpu-worker"), ElementsAre("g0", "g1"));
  EXPECT_THAT(selected("gpu-worker.1"), ElementsAre("g1"));
  EXPECT_THAT(selected("router"), ElementsAre("r"));
  EXPECT_THAT(selected("gpu"), IsEmpty());
}

TEST_F(LogReaderTest, SkipsWhatDoesNotParse) {
  std::ofstream(folder_ / "router.jsonl") << "not json\n{\"t\":\"x\"}\n[1]\n\n";
  append("router.jsonl", 7, "router", "good");
  std::ofstream(folder_ / "router.jsonl", std::ios::app) << "{\"t\":8,\"text\":\"half";
  LogReader reader(folder_.path, "");
  EXPECT_THAT(texts(reader), ElementsAre("good"));
  // The rest of the line comes later.
  std::ofstream(folder_ / "router.jsonl", std::ios::app) << " a line\"}\n";
  EXPECT_THAT(texts(reader), ElementsAre("half a line"));
}

TEST_F(LogReaderTest, FollowsAcrossRotations) {
  append("router.jsonl", 1, "router", "one");
  LogReader reader(folder_.path, "");
  EXPECT_THAT(texts(reader), ElementsAre("one"));
  // Two rotations between two looks, the first file having grown before.
  append("router.jsonl", 2, "router", "two");
  rename("router.jsonl", "router.1.jsonl");
  append("router.jsonl", 3, "router", "three");
  rename("router.1.jsonl", "router.2.jsonl");
  rename("router.jsonl", "router.1.jsonl");
  EXPECT_THAT(texts(reader), ElementsAre("two", "three"));  // the newest is about to be created
  append("router.jsonl", 4, "router", "four");
  EXPECT_THAT(texts(reader), ElementsAre("four"));
  // Rotated out of the folder: what is left is read from its oldest file.
  std::filesystem::remove(folder_ / "router.2.jsonl");
  std::filesystem::remove(folder_ / "router.1.jsonl");
  std::filesystem::remove(folder_ / "router.jsonl");
  append("router.1.jsonl", 6, "router", "six");
  append("router.jsonl", 7, "router", "seven");
  EXPECT_THAT(texts(reader), ElementsAre("six", "seven"));
}

// The writer died between renaming its file and opening the next.
TEST_F(LogReaderTest, ReadsAFileThatWasRotatedBeforeTheFirstLook) {
  LogStream stream(folder_.path, "router");
  append("router.1.jsonl", 1, "router", "one");
  const auto line = stream.next();
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->text, "one");
}

TEST_F(LogReaderTest, FindsProcessesThatBeginLater) {
  LogReader reader(folder_.path, "");
  EXPECT_THAT(texts(reader), IsEmpty());
  append("router.jsonl", 1, "router", "one");
  reader.find_streams();
  EXPECT_THAT(texts(reader), ElementsAre("one"));
}

// The real writer: every line once and in order, whatever is rotated between the looks.
TEST_F(LogReaderTest, FollowsTheLoggerItself) {
  LogConfig config;
  config.max_file_bytes = 4096;
  config.max_files = 3;
  const int saved = dup(STDERR_FILENO);
  const int null_fd = open("/dev/null", O_WRONLY);
  dup2(null_fd, STDERR_FILENO);
  ASSERT_TRUE(log::open("router", folder_ / "router.jsonl", config).ok());
  LogReader reader(folder_.path, "");
  std::vector<std::string> seen;
  for (int i = 0; i < 500; ++i) {
    log::info("{}", i);
    if (i % 17 == 0)
      for (const std::string& text : texts(reader)) seen.push_back(text);
  }
  for (const std::string& text : texts(reader)) seen.push_back(text);
  ASSERT_TRUE(log::open("test", "", LogConfig{}).ok());
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(null_fd);
  ASSERT_EQ(seen.size(), 500u);
  for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], std::to_string(i));
}

TEST(LogLine, IsReadableAndClean) {
  setenv("TZ", "UTC", 1);
  tzset();
  const auto line = parse_log_line(
      R"({"t":1700000000123456789,"level":"warning","process":"router","pid":1,"uid":"00ff","epoch":7,"text":"a\u001b[2J\nb"})");
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(readable(*line), "2023-11-14 22:13:20.123 router W [00ff] a?[2J?b");
  const auto hostile =
      parse_log_line(R"({"t":-1,"level":"\u001b","process":"r\u001b[2J","uid":"\n","text":"a"})");
  ASSERT_TRUE(hostile.has_value());
  EXPECT_EQ(readable(*hostile), "1969-12-31 23:59:59.999 r?[2J ? [?] a");
  EXPECT_FALSE(parse_log_line("{}").has_value());
  EXPECT_FALSE(parse_log_line("3").has_value());
}

}  // namespace
}  // namespace ringmaster::launcher
