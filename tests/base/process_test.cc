#include "base/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/ready.h"
#include "base/unique_fd.h"

namespace ringmaster {
namespace {

using ::testing::HasSubstr;

Result<ProcessArguments> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "gpu-worker");
  return parse_process_arguments(static_cast<int>(arguments.size()), arguments.data());
}

TEST(ProcessArguments, AreRead) {
  const auto a = parse({"--config", "/s/cluster.yaml", "--name", "gpu-worker.3"});
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(a.value().config_path, "/s/cluster.yaml");
  EXPECT_EQ(a.value().name, "gpu-worker.3");
  EXPECT_EQ(a.value().index, 3u);
  EXPECT_EQ(a.value().ready_fd, -1);
  EXPECT_EQ(parse({"--name", "router", "--config", "f"}).value().index, 0u);
}

TEST(ProcessArguments, SayWhatIsWrong) {
  const auto message = [](std::vector<const char*> arguments) {
    const auto result = parse(std::move(arguments));
    return result.ok() ? std::string("accepted") : result.error().message;
  };
  EXPECT_THAT(message({"--config", "f"}), HasSubstr("--name is missing"));
  EXPECT_THAT(message({"--config"}), HasSubstr("--config has no value"));
  EXPECT_THAT(message({"--nmae", "x"}), HasSubstr("unknown argument '--nmae'"));
  EXPECT_THAT(message({"--config", "f", "--name", "gpu-worker.x"}), HasSubstr("KIND.NUMBER"));
  EXPECT_THAT(message({"--config", "f", "--name", "gpu-worker.-1"}), HasSubstr("KIND.NUMBER"));
  EXPECT_THAT(message({"--config", "f", "--name", "n", "--ready-fd", "-2"}), HasSubstr("--ready-fd is '-2'"));
  EXPECT_THAT(message({"--config", "f", "--name", "n", "--ready-fd", "3x"}), HasSubstr("--ready-fd is '3x'"));
}

TEST(ExitNames, NameTheDevicesFaultsAlone) {
  EXPECT_EQ(exit_name(22), "its device hung");
  EXPECT_EQ(exit_name(21), "its device ran out of memory");
  EXPECT_EQ(exit_name(20), "its device failed");
  for (const int other : {0, 1, 2, 3, 23, 255}) EXPECT_EQ(exit_name(other), "") << other;
}

TEST(DescriptorLimit, SoftBecomesHard) {
  rlimit before{}, after{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{64, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(raise_descriptor_limit(), before.rlim_max);
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(ReadyLine, AnnouncesOnceAndThenSaysNowAndThenThatItLives) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  const UniqueFd in(ends[0]);
  char text[16] = {};
  {
    ReadyLine line(ends[1]);
    line.announce();
    EXPECT_EQ(read(in.get(), text, sizeof text), 6);
    EXPECT_STREQ(text, "READY\n");
    line.alive(kSecond);
    line.alive(kSecond + ReadyLine::kPeriod - 1);
    line.alive(kSecond + ReadyLine::kPeriod);
    EXPECT_EQ(read(in.get(), text, sizeof text), 2);
    EXPECT_STREQ(text, "..ADY\n");
  }
  EXPECT_EQ(read(in.get(), text, sizeof text), 0);  // closed
}

TEST(ReadyLine, NeverWaitsForAParentThatDoesNotRead) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd in(ends[0]);
  ReadyLine line(ends[1]);
  for (Nanos i = 1; i < 100'000; ++i) line.alive(i * ReadyLine::kPeriod);  // more than a pipe holds
}

TEST(ReadyLine, SurvivesAParentThatIsGone) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  ReadyLine line(ends[1]);
  line.announce();
  line.alive(kSecond);
  ReadyLine nobody(-1);
  nobody.announce();
  nobody.alive(kSecond);
}

}  // namespace
}  // namespace ringmaster
