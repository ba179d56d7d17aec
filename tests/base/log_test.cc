#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace ringmaster {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Replaces stderr by a pipe while it lives.
class StderrPipe {
 public:
  StderrPipe() {
    saved_ = dup(STDERR_FILENO);
    if (pipe2(ends_, O_CLOEXEC) != 0) std::abort();
    dup2(ends_[1], STDERR_FILENO);
    close(ends_[1]);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~StderrPipe() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    close_reader();
  }
  void close_reader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  std::string read_all() {
    std::string text(1 << 20, '\0');
    size_t size = 0;
    ssize_t got = 0;
    while ((got = read(ends_[0], text.data() + size, text.size() - size)) > 0)
      size += static_cast<size_t>(got);
    text.resize(size);
    return text;
  }

 private:
  int saved_ = -1;
  int ends_[2] = {-1, -1};
};

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "log_test.XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~LogTest() override {
    (void)log::open("test", "", LogConfig{}).ok();
    std::filesystem::remove_all(folder_);
  }
  std::vector<nlohmann::json> lines(const std::string& file) {
    std::ifstream in(folder_ + "/" + file);
    std::vector<nlohmann::json> out;
    for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }
  std::string folder_;
};

TEST_F(LogTest, WritesBothStreams) {
  StderrPipe pipe;
  ASSERT_TRUE(log::open("gpu-worker.0", folder_ + "/a.jsonl", LogConfig{}).ok());
  log::info("slot {} attached to {}", 3, "tokenizer-worker.1");
  log::with("00ff", 77).warning("late record");
  log::debug("not at this level");
  const std::string text = pipe.read_all();
  EXPECT_THAT(text, ContainsRegex("^[0-9:.]+ I slot 3 attached to tokenizer-worker.1\n"));
  EXPECT_THAT(text, ContainsRegex("W \\[00ff 4d\\] late record\n"));
  const auto json = lines("a.jsonl");
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["level"], "info");
  EXPECT_EQ(json[0]["process"], "gpu-worker.0");
  EXPECT_EQ(json[0]["pid"], getpid());
  EXPECT_EQ(json[0]["text"], "slot 3 attached to tokenizer-worker.1");
  EXPECT_FALSE(json[0].contains("uid"));
  EXPECT_GT(json[0]["t"].get<int64_t>(), 1'600'000'000ll * kSecond);
  EXPECT_EQ(json[1]["uid"], "00ff");
  EXPECT_EQ(json[1]["epoch"], 77);
}

TEST_F(LogTest, PrefixesItsLines) {
  StderrPipe pipe;
  log::set_stderr_prefix("100% supervisor | ");
  log::info("up");
  log::set_stderr_prefix("");
  log::info("down");
  EXPECT_THAT(pipe.read_all(), ContainsRegex("^100% supervisor \\| [0-9:.]+ I up\n[0-9:.]+ I down\n$"));
}

TEST_F(LogTest, HonoursTheLevel) {
  StderrPipe pipe;
  LogConfig config;
  config.level = "error";
  ASSERT_TRUE(log::open("p", "", config).ok());
  EXPECT_FALSE(log::enabled(log::Level::kWarning));
  log::warning("hidden");
  log::error("shown");
  const std::string text = pipe.read_all();
  EXPECT_THAT(text, HasSubstr("E shown"));
  EXPECT_EQ(text.find("hidden"), std::string::npos);
  config.level = "loud";
  const Status refused = log::open("p", "", config);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("'loud'; allowed: debug, info, warning, error"));
}

TEST_F(LogTest, MutedItWritesNothing) {
  StderrPipe pipe;
  log::mute(true);
  EXPECT_FALSE(log::enabled(log::Level::kError));
  log::error("hidden");
  log::mute(false);
  log::error("shown");
  const std::string text = pipe.read_all();
  EXPECT_EQ(text.find("hidden"), std::string::npos);
  EXPECT_THAT(text, HasSubstr("E shown"));
}

TEST_F(LogTest, ForeignTextCannotBreakALine) {
  StderrPipe pipe;
  ASSERT_TRUE(log::open("p", folder_ + "/a.jsonl", LogConfig{}).ok());
  log::info("name '{}'", "a\nb\x1B[31m\xFF{}");
  EXPECT_THAT(pipe.read_all(), HasSubstr("name 'a?b?[31m\xFF{}'\n"));
  const auto json = lines("a.jsonl");
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["text"], "name 'a\nb\x1B[31m\xEF\xBF\xBD{}'");
}

TEST_F(LogTest, RotatesBySize) {
  StderrPipe pipe;
  LogConfig config;
  config.max_file_bytes = 4096;
  config.max_files = 3;
  ASSERT_TRUE(log::open("p", folder_ + "/a.jsonl", config).ok());
  for (int i = 0; i < 400; ++i) log::info("line {}", i);
  std::vector<int> seen;
  for (const char* file : {"a.2.jsonl", "a.1.jsonl", "a.jsonl"}) {
    EXPECT_LE(std::filesystem::file_size(folder_ + "/" + file), 4096u) << file;
    for (const auto& line : lines(file)) seen.push_back(std::stoi(line["text"].get<std::string>().substr(5)));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/a.3.jsonl"));
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back(), 399);
  for (size_t i = 1; i < seen.size(); ++i) ASSERT_EQ(seen[i], seen[i - 1] + 1);
}

TEST_F(LogTest, AppendsAfterARestart) {
  StderrPipe pipe;
  for (int run = 0; run < 2; ++run) {
    ASSERT_TRUE(log::open("p", folder_ + "/a.jsonl", LogConfig{}).ok());
    log::info("run {}", run);
  }
  EXPECT_EQ(lines("a.jsonl").size(), 2u);
}

TEST_F(LogTest, ReturnsTheErrorOfAFileThatCannotBeOpened) {
  const Status status = log::open("p", "/proc/no/such/folder/a.jsonl", LogConfig{});
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("/proc/no/such/folder/a.jsonl cannot be opened"));
  StderrPipe pipe;
  log::info("still here");
  EXPECT_THAT(pipe.read_all(), HasSubstr("still here"));
}

TEST_F(LogTest, AFullDiskCostsTheLineOnlyAndIsReportedOnce) {
  StderrPipe pipe;
  ASSERT_TRUE(log::open("p", "/dev/full", LogConfig{}).ok());
  for (int i = 0; i < 5; ++i) log::info("line {}", i);
  const std::string text = pipe.read_all();
  for (int i = 0; i < 5; ++i) EXPECT_THAT(text, HasSubstr("line " + std::to_string(i)));
  const std::string complaint = "log file /dev/full cannot be written";
  const size_t first = text.find(complaint);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(text.find(complaint, first + 1), std::string::npos);
}

TEST_F(LogTest, AReaderThatStopsNeverBlocksAndIsToldWhatItMissed) {
  StderrPipe pipe;
  ASSERT_TRUE(log::open("p", "", LogConfig{}).ok());
  const std::string long_text(3000, 'x');
  for (int i = 0; i < 200; ++i) log::info("{}", long_text);  // the pipe holds 16 pages
  const std::string before = pipe.read_all();
  log::info("after");
  const std::string after = pipe.read_all();
  EXPECT_THAT(after, ContainsRegex("^\\([0-9]+ log lines dropped: stderr was not read\\)\n"));
  EXPECT_THAT(after, HasSubstr("after\n"));
  EXPECT_EQ(before.back(), '\n');  // whole lines only
}

TEST_F(LogTest, AClosedStderrDoesNotEndTheProcess) {
  StderrPipe pipe;
  ASSERT_TRUE(log::open("p", folder_ + "/a.jsonl", LogConfig{}).ok());
  pipe.close_reader();
  log::info("nobody reads this");
  EXPECT_EQ(lines("a.jsonl").size(), 1u);
}

TEST_F(LogTest, LinesOfSeveralThreadsStayWhole) {
  StderrPipe pipe;
  ASSERT_TRUE(log::open("p", folder_ + "/a.jsonl", LogConfig{}).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) log::info("thread {} line {}", t, i);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines("a.jsonl").size(), 800u);  // each parses
}

}  // namespace
}  // namespace ringmaster
