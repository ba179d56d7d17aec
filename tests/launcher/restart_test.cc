// How the supervisor treats children that die again and again, hang, or cannot be written about: shells as
// children, as in supervisor_test.cc.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "launcher/not_ready.h"
#include "launcher/restart_limit.h"
#include "launcher/serving_probe.h"
#include "launcher/state_dir.h"
#include "launcher/supervisor.h"
#include "running_supervisor.h"

namespace ringmaster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Backoff, TheFirstRestartIsImmediateAndTheOthersWaitTwiceAsLongEach) {
  RestartLimit limit(20, 3600 * kSecond, kSecond);
  std::vector<Nanos> waits;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(limit.allow(i));
    waits.push_back(limit.backoff(0.5));  // the middle
  }
  EXPECT_THAT(waits, ElementsAre(0, kSecond, 2 * kSecond, 4 * kSecond, 8 * kSecond));
  for (int i = 5; i < 20; ++i) EXPECT_TRUE(limit.allow(i));
  EXPECT_EQ(limit.backoff(0.5), RestartLimit::kMaxDelay);
}

TEST(Backoff, ChanceMovesItByAQuarterAndTheWindowForgets) {
  RestartLimit limit(5, 100, 1000);
  EXPECT_TRUE(limit.allow(0));
  EXPECT_TRUE(limit.allow(1));
  EXPECT_EQ(limit.backoff(0), 750);
  EXPECT_EQ(limit.backoff(0.9999), 1249);
  EXPECT_TRUE(limit.allow(500));  // both have left the window
  EXPECT_EQ(limit.backoff(0.5), 0);
}

TEST(ServingProbe, BringsTheAnswerOfItsProcess) {
  for (const Status& wanted : {ok_status(), Status(Error{Code::kDeadlineExceeded, "not yet"})}) {
    Result<ServingProbe> probe = ServingProbe::start([&] { return wanted; });
    ASSERT_TRUE(probe.ok());
    std::optional<Status> answer;
    ASSERT_TRUE(wait_until([&] { return (answer = probe->answer()).has_value(); }));
    ASSERT_EQ(answer->ok(), wanted.ok());
    if (!wanted.ok()) {
      EXPECT_EQ(answer->error().code, Code::kDeadlineExceeded);
      EXPECT_EQ(answer->error().message, "not yet");
    }
  }
}

TEST(ServingProbe, EndsWithItsOwnerAndAKilledOneIsAnError) {
  Folder folder;
  const std::string file = folder / "pid";
  const auto hang = [&]() -> Status {
    spill(file + ".new", std::to_string(getpid()));
    rename((file + ".new").c_str(), file.c_str());
    for (;;) pause();
  };
  pid_t pid = 0;
  const auto started = [&] {
    const std::string text = slurp(file);
    return !text.empty() && (pid = std::stoi(text)) > 0;
  };
  {
    Result<ServingProbe> probe = ServingProbe::start(hang);
    ASSERT_TRUE(probe.ok());
    ASSERT_TRUE(wait_until(started));
    EXPECT_FALSE(probe->answer().has_value());
  }
  EXPECT_TRUE(process_is_gone(pid));
  std::filesystem::remove(file);
  Result<ServingProbe> probe = ServingProbe::start(hang);
  ASSERT_TRUE(probe.ok());
  ASSERT_TRUE(wait_until(started));
  kill(pid, SIGKILL);
  std::optional<Status> answer;
  ASSERT_TRUE(wait_until([&] { return (answer = probe->answer()).has_value(); }));
  EXPECT_EQ(answer->error().code, Code::kInternal);
}

// In a process of its own, whose descriptors nobody else needs: what it asks must come out there.
bool holds_in_another_process(const std::function<bool()>& claim) {
  const pid_t pid = fork();
  if (pid == 0) _exit(claim() ? 0 : 1);
  int status = -1;
  return waitpid(pid, &status, 0) == pid && status == 0;
}

TEST(ServingProbe, NeedsNoStandardDescriptors) {
  EXPECT_TRUE(holds_in_another_process([] {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
    Result<ServingProbe> probe = ServingProbe::start([] { return ok_status(); });
    std::optional<Status> answer;
    return probe.ok() && wait_until([&] { return (answer = probe->answer()).has_value(); }) && answer->ok();
  }));
}

TEST(ServingProbe, WithoutDescriptorsItDoesNotStart) {
  EXPECT_TRUE(holds_in_another_process([] {
    close_range(STDERR_FILENO + 1, ~0u, 0);
    size_t refused = 0;
    for (rlim_t most = STDERR_FILENO + 1; most < 16; ++most) {
      rlimit limit{};
      getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = most;
      if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
      Result<ServingProbe> probe = ServingProbe::start([] { return ok_status(); });
      if (probe.ok()) {
        std::optional<Status> answer;
        return refused == 5 && wait_until([&] { return (answer = probe->answer()).has_value(); }) &&
               answer->ok();
      }
      if (probe.error().code != Code::kResourceExhausted) return false;
      ++refused;
    }
    return false;
  }));
}

TEST(ServingProbe, AnAnswerThatCannotBeReadIsAnError) {
  Folder folder;
  Result<ServingProbe> probe = ServingProbe::start([] { return ok_status(); });
  ASSERT_TRUE(probe.ok());
  const int directory = open(folder.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(dup2(directory, probe->fd()), probe->fd());
  close(directory);
  const std::optional<Status> answer = probe->answer();
  ASSERT_TRUE(answer.has_value());
  ASSERT_FALSE(answer->ok());
  EXPECT_EQ(answer->error().message, "whether the cluster serves cannot be read: Is a directory");
}

// ---- supervisor.json ----

SupervisorRecord sample(uint32_t restarts) {
  return {.name = "t",
          .pid = 7,
          .start_ticks = 1,
          .started_at = 2,
          .state = "ready",
          .client_endpoint = "ipc://c",
          .worker_endpoint = "ipc://w",
          .children = {
              {.name = "router", .pid = 8, .state = "backing off", .restarts = restarts, .restart_at = 9}}};
}

TEST(RecordFile, KeepsTheBlocksOfTheNextVersionAndEveryVersionIsWhole) {
  Folder folder;
  RecordFile file(folder.path, 16'384);
  for (const uint32_t restarts : {1u, 123'456u, 2u}) {
    ASSERT_TRUE(file.write(sample(restarts)).ok());
    const Result<SupervisorRecord> read = read_record(folder.path);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->children.at(0).restarts, restarts);
    EXPECT_EQ(read->children.at(0).restart_at, 9);
    struct stat now {
    }, next{};
    ASSERT_EQ(stat((folder / "supervisor.json").c_str(), &now), 0);
    ASSERT_EQ(stat((folder / "supervisor.json.new").c_str(), &next), 0);
    EXPECT_EQ(now.st_size, 16'384);
    EXPECT_EQ(next.st_size, 16'384);
    EXPECT_EQ(next.st_blocks, now.st_blocks);
    EXPECT_GE(next.st_blocks * 512, 16'384);
  }
  EXPECT_TRUE(RecordFile(folder.path, 10).write(sample(3)).ok()) << "longer than foreseen";
  EXPECT_EQ(read_record(folder.path)->children.at(0).restarts, 3u);
}

TEST(RecordFile, WhatCannotBeWrittenLeavesTheFormerVersion) {
  Folder folder;
  RecordFile file(folder.path, 4096);
  ASSERT_TRUE(file.write(sample(1)).ok());
  std::filesystem::remove(folder / "supervisor.json.new");
  std::filesystem::create_directory(folder / "supervisor.json.new");
  EXPECT_FALSE(file.write(sample(2)).ok());
  EXPECT_EQ(read_record(folder.path)->children.at(0).restarts, 1u);
}

// ---- why a cluster is not ready ----

client::ClusterStatus service(const std::string& gpu_state) {
  client::ClusterStatus out;
  out.workers.resize(2);
  out.workers[0].kind = out.workers[0].name = "tokenizer-worker";
  out.workers[0].state = "ready";
  out.workers[1].kind = "gpu-worker";
  out.workers[1].name = "gpu-worker.0";
  out.workers[1].state = gpu_state;
  return out;
}

TEST(NotReady, NamesEveryCause) {
  SupervisorRecord record = sample(3);
  record.children = {{.name = "router", .pid = 8, .state = "ready"},
                     {.name = "gpu-worker.0",
                      .state = "backing off",
                      .restarts = 2,
                      .last_end = "killed by signal 9",
                      .restart_at = 10 * kSecond}};
  EXPECT_THAT(not_ready_reasons(record, service("dead"), 7 * kSecond),
              ElementsAre("gpu-worker.0 waits 3 s before its next restart, before: killed by signal 9",
                          "no gpu-worker is ready: gpu-worker.0 is dead"));
  record.children[1].state = "given up";
  EXPECT_THAT(
      not_ready_reasons(record, Error{Code::kDeadlineExceeded, "no answer in 2 s"}, 0),
      ElementsAre(
          "gpu-worker.0 is given up after 2 restarts (`ringmaster logs gpu-worker.0`), before: killed "
          "by signal 9",
          "the router does not answer: no answer in 2 s"));
  record.children.clear();
  EXPECT_THAT(not_ready_reasons(record, client::ClusterStatus{}, 0),
              ElementsAre("no gpu-worker is ready; none has registered",
                          "no tokenizer-worker is ready; none has registered"));
  EXPECT_THAT(not_ready_reasons(record, service("ready"), 0), ElementsAre(HasSubstr("takes no requests")));
  record.state = "stopping";
  EXPECT_THAT(not_ready_reasons(record, service("ready"), 0), ElementsAre(HasSubstr("is ending")));
  client::ClusterStatus good = service("ready");
  good.ready = true;
  EXPECT_THAT(not_ready_reasons(record, good, 0), IsEmpty());
}

// ---- the whole supervisor ----

class RestartTest : public RunningSupervisor {
 protected:
  RestartTest() {
    limits_.max_restarts = 3;
    limits_.ready_timeout = 20 * kSecond;
    limits_.hang_timeout = 20 * kSecond;
  }

  bool is_up() const { return std::filesystem::exists(folder_ / "ready"); }
  void start(const std::string& script) {
    child("worker", script);
    RunningSupervisor::start();
  }
  bool wait_for_up() {
    return wait_until([&] { return is_up(); }, kLimit);
  }
  int ended() { return RunningSupervisor::ended(kLimit); }

  ChildRecord worker() {
    const Result<SupervisorRecord> record = read_record(state());
    return record.ok() && !record->children.empty() ? record->children[0] : ChildRecord{};
  }

  static constexpr Nanos kLimit = 15 * kSecond;
};

constexpr const char* kServe = "echo READY >&3; exec 3>&-; exec sleep 1000";

// Announces, and says that it lives until somebody stops it or it is told to loop.
constexpr const char* kTicks =
    "echo READY >&3; while ! test -e $J.loop; do printf . >&3; sleep 0.02; done; rm $J.loop; while :; do :; "
    "done";

TEST_F(RestartTest, AChildThatIsStoppedIsKilledAndReplaced) {
  limits_.hang_timeout = 500 * kMillisecond;
  start(kTicks);
  ASSERT_TRUE(wait_for_up()) << messages();
  usleep(700'000);
  EXPECT_EQ(worker().restarts, 0u) << "it gave signs of life: " << messages();
  const pid_t stopped = worker().pid;
  kill(stopped, SIGSTOP);
  ASSERT_TRUE(wait_until([&] { return worker().restarts == 1 && worker().state == "ready"; }, kLimit))
      << messages();
  EXPECT_TRUE(process_is_gone(stopped));
  EXPECT_EQ(worker().last_end, "killed: no sign of life for 500 ms");
  EXPECT_THAT(messages(), HasSubstr("worker hangs, no sign of life for 500 ms (supervisor.hang_timeout)"));
}

TEST_F(RestartTest, AChildThatLoopsIsKilledAndReplaced) {
  limits_.hang_timeout = 500 * kMillisecond;
  start(kTicks);
  ASSERT_TRUE(wait_for_up()) << messages();
  spill(folder_ / "journal.loop", "");
  ASSERT_TRUE(wait_until([&] { return worker().restarts == 1 && worker().state == "ready"; }, kLimit))
      << messages();
}

TEST_F(RestartTest, AStoppedSupervisorDoesNotBlameItsChildren) {
  limits_.hang_timeout = 500 * kMillisecond;
  // Gives a sign of life when asked, so that none waits in the pipe.
  start("echo READY >&3; while :; do test -e $J.tick && printf . >&3; sleep 0.02; done");
  spill(folder_ / "journal.tick", "");
  ASSERT_TRUE(wait_for_up()) << messages();
  kill(worker().pid, SIGSTOP);
  kill(pid_, SIGSTOP);
  usleep(2'000'000);  // longer than both limits
  kill(pid_, SIGCONT);
  usleep(100'000);
  kill(worker().pid, SIGCONT);
  usleep(1'000'000);
  EXPECT_EQ(worker().restarts, 0u) << messages();
}

TEST_F(RestartTest, ALastingCauseDoesNotUseUpTheRestartsInAMoment) {
  limits_.restart_delay = 400 * kMillisecond;
  start("test -e $J && exit 7; touch $J; " + std::string(kServe));
  ASSERT_TRUE(wait_for_up()) << messages();
  const Nanos killed = monotonic_now();
  kill(worker().pid, SIGKILL);
  // The first restart is immediate, the second visibly waits, the third longer; then it is given up.
  ASSERT_TRUE(wait_until([&] { return worker().state == "backing off" && worker().restarts == 2; }, kLimit))
      << messages();
  EXPECT_GT(worker().restart_at, 0);
  EXPECT_EQ(worker().pid, 0);
  ASSERT_TRUE(wait_until([&] { return worker().state == "given up"; }, kLimit)) << messages();
  EXPECT_GE(monotonic_now() - killed, 300 * kMillisecond + 600 * kMillisecond);
  EXPECT_EQ(worker().restarts, 3u);
  EXPECT_EQ(worker().last_end, "exited with status 7");
  EXPECT_THAT(messages(), ::testing::ContainsRegex("exited with status 7; restarting in [345][0-9][0-9] ms"));
}

TEST_F(RestartTest, StoppingDoesNotWaitForABackOff) {
  limits_.restart_delay = 3600 * kSecond;
  start("test -e $J && exit 7; touch $J; " + std::string(kServe));
  ASSERT_TRUE(wait_for_up()) << messages();
  kill(worker().pid, SIGKILL);
  ASSERT_TRUE(wait_until([&] { return worker().state == "backing off" && worker().restarts == 2; }, kLimit))
      << messages();
  kill(pid_, SIGTERM);
  EXPECT_EQ(ended(), 0);
}

TEST_F(RestartTest, AProgramThatIsGoneForAWhileIsTriedAgain) {
  limits_.restart_delay = 300 * kMillisecond;
  const std::string program = folder_ / "program";
  std::filesystem::copy("/bin/sh", program);
  // The child replaces itself by nothing: only its next start looks for the interpreter's file.
  start("exec " + program + " -c '" + kServe + "'");
  ASSERT_TRUE(wait_for_up()) << messages();
  std::filesystem::rename(program, program + ".away");
  kill(worker().pid, SIGKILL);
  ASSERT_TRUE(wait_until([&] { return worker().restarts == 2; }, kLimit)) << messages();
  std::filesystem::rename(program + ".away", program);
  EXPECT_TRUE(wait_until([&] { return worker().state == "ready"; }, kLimit)) << messages();
}

TEST_F(RestartTest, IsReadyOnceTheClusterServesAndNotBefore) {
  serves_ = [this]() -> Status {
    return wait_until([&] { return std::filesystem::exists(folder_ / "serve"); }, kLimit)
               ? ok_status()
               : Status(Error{Code::kDeadlineExceeded, "never"});
  };
  start(kServe);
  ASSERT_TRUE(wait_until([&] { return worker().state == "ready"; }, kLimit));
  usleep(200'000);
  EXPECT_FALSE(is_up());
  EXPECT_EQ(read_record(state())->state, "starting");
  spill(folder_ / "serve", "");
  EXPECT_TRUE(wait_for_up());
  EXPECT_EQ(read_record(state())->state, "ready");
}

TEST_F(RestartTest, AClusterThatDoesNotServeIsAFailedStart) {
  serves_ = []() -> Status { return Error{Code::kDeadlineExceeded, "the router says: not ready"}; };
  start(kServe);
  EXPECT_EQ(ended(), 1);
  EXPECT_EQ(slurp(folder_ / "failure"), "all processes run, but the router says: not ready");
  EXPECT_FALSE(is_up());
}

TEST_F(RestartTest, AnInterruptWhileItIsAskedWhetherItServesEndsTheStart) {
  serves_ = []() -> Status {
    for (;;) pause();
  };
  start(kServe);
  ASSERT_TRUE(wait_until([&] { return worker().state == "ready"; }, kLimit));
  kill(pid_, SIGINT);
  EXPECT_EQ(ended(), 0);
  EXPECT_FALSE(is_up());
}

TEST_F(RestartTest, WhatCannotBeWrittenIsWrittenAsSoonAsItCan) {
  start(kServe);
  ASSERT_TRUE(wait_for_up());
  const std::string next = state() + "/supervisor.json.new";
  std::filesystem::remove(next);
  std::filesystem::create_directory(next);
  kill(worker().pid, SIGKILL);
  ASSERT_TRUE(
      wait_until([&] { return messages().find("status is out of date") != std::string::npos; }, kLimit));
  std::filesystem::remove(next);
  EXPECT_TRUE(wait_until([&] { return worker().restarts == 1 && worker().state == "ready"; }, kLimit))
      << messages();
  // Said after the file is there.
  EXPECT_TRUE(
      wait_until([&] { return messages().find("status is up to date again") != std::string::npos; }, kLimit))
      << messages();
}

}  // namespace
}  // namespace ringmaster::launcher
