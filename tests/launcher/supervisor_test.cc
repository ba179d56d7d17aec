// The supervisor with shells as children: it knows processes, not what they do.
#include "launcher/supervisor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstring>

#include "base/log.h"
#include "launcher/state_dir.h"
#include "running_supervisor.h"

namespace ringmaster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SupervisorTest : public RunningSupervisor {
 protected:
  SupervisorTest() {
    limits_.max_restarts = 2;
    limits_.ready_timeout = 5 * kSecond;
  }

  SupervisorRecord record() {
    Result<SupervisorRecord> record = read_record(state());
    EXPECT_TRUE(record.ok()) << (record.ok() ? "" : record.error().message);
    return record.ok() ? record.value() : SupervisorRecord{};
  }
  ChildRecord child_record(const std::string& name) {
    for (const ChildRecord& child : record().children)
      if (child.name == name) return child;
    return {};
  }
  bool state_is_clean() {
    return !state_dir_is_locked(state()) && !std::filesystem::exists(state() + "/supervisor.json") &&
           !std::filesystem::exists(state() + "/lock");
  }
};

constexpr const char* kReady = "echo READY >&3; exec 3>&-; ";
constexpr const char* kServe = "echo READY >&3; exec 3>&-; exec sleep 1000";
std::string drains(const std::string& name, const std::string& how = "exit 0") {
  return "trap 'echo " + name + " >>$J; " + how + "' TERM; " + kReady + "while :; do sleep 0.01; done";
}

TEST_F(SupervisorTest, StartsStageAfterStageAndIsReadyOnceAllAre) {
  child("router", std::string("sleep 0.1; echo router >>$J; ") + kServe, 0);
  child("gpu-worker.0", std::string("echo worker >>$J; sleep 0.1; echo worker-ready >>$J; ") + kServe, 1);
  start_until_ready();
  EXPECT_EQ(journal(), "router\nworker\nworker-ready\n");
  const SupervisorRecord record = this->record();
  EXPECT_EQ(record.state, "ready");
  EXPECT_EQ(record.pid, pid_);
  EXPECT_EQ(record.start_ticks, process_start_ticks(pid_));
  ASSERT_EQ(record.children.size(), 2u);
  EXPECT_EQ(record.children[1].name, "gpu-worker.0");
  EXPECT_EQ(record.children[1].state, "ready");
  EXPECT_EQ(record.children[1].restarts, 0u);
  EXPECT_FALSE(process_is_gone(record.children[1].pid));
}

TEST_F(SupervisorTest, MergesTheLogsAndKeepsOnDiskWhatTheProcessesDoNot) {
  child("router", std::string("echo '12:00:00.123 I a log line'; echo terminate called >&2; ") + kServe);
  start_until_ready();
  EXPECT_TRUE(wait_until([&] { return messages().find("terminate called") != std::string::npos; }));
  EXPECT_THAT(messages(), HasSubstr("router     | 12:00:00.123 I a log line\n"));
  EXPECT_THAT(messages(),
              ::testing::ContainsRegex("supervisor \\| [0-9:.]+ W router says: terminate called\n"));
  EXPECT_THAT(slurp(state() + "/logs/supervisor.jsonl"), HasSubstr("router says: terminate called"));
  EXPECT_EQ(slurp(state() + "/logs/supervisor.jsonl").find("a log line"), std::string::npos);
}

TEST_F(SupervisorTest, AFailedStartNamesTheChildAndItsLastLines) {
  child("router", kServe, 0);
  child("gpu-worker.0", "echo loading; echo 'no such tensor' >&2; exit 3", 1);
  child("tokenizer-worker.0", kServe, 1);
  start();
  EXPECT_EQ(ended(), 1);
  EXPECT_THAT(slurp(folder_ / "failure"),
              HasSubstr("gpu-worker.0 exited with status 3 before the cluster was ready; its last lines:\n"
                        "  loading\n  no such tensor"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "ready"));
  EXPECT_TRUE(state_is_clean());
}

TEST_F(SupervisorTest, AFailedStartEndsTheOthers) {
  child("router", "echo $$ >>$J; " + std::string(kServe), 0);
  child("gpu-worker.0", "exit 1", 1);
  start();
  EXPECT_EQ(ended(), 1);
  EXPECT_TRUE(process_is_gone(std::stoi(journal())));
}

TEST_F(SupervisorTest, AProgramThatIsNotThereFailsTheStart) {
  child("router", "");
  specs_[0].argv[0] = "/no/such/router";
  start();
  EXPECT_EQ(ended(), 1);
  EXPECT_THAT(slurp(folder_ / "failure"),
              HasSubstr("router /no/such/router cannot be started: No such file"));
}

TEST_F(SupervisorTest, AChildThatNeverAnnouncesFailsTheStart) {
  limits_.ready_timeout = 100 * kMillisecond;
  child("router", "exec 3>&-; exec sleep 1000");
  start();
  EXPECT_EQ(ended(), 1);
  EXPECT_THAT(slurp(folder_ / "failure"), HasSubstr("router was not ready within 100 ms"));
}

TEST_F(SupervisorTest, RestartsADeadChildAndCountsIt) {
  child("router", kServe);
  child("gpu-worker.0", kServe);
  start_until_ready();
  const ChildRecord before = child_record("gpu-worker.0");
  kill(before.pid, SIGKILL);
  ASSERT_TRUE(wait_until([&] { return child_record("gpu-worker.0").restarts == 1; }));
  ASSERT_TRUE(wait_until([&] { return child_record("gpu-worker.0").state == "ready"; }));
  const ChildRecord after = child_record("gpu-worker.0");
  EXPECT_NE(after.pid, before.pid);
  EXPECT_EQ(after.last_end, "killed by signal 9 (Killed)");
  EXPECT_GE(after.started_at, before.started_at);
  EXPECT_EQ(child_record("router").restarts, 0u);
  EXPECT_THAT(messages(), HasSubstr("W gpu-worker.0 killed by signal 9 (Killed); restarting"));
}

TEST_F(SupervisorTest, GivesUpAChildThatDiesTooOftenAndKeepsTheOthers) {
  child("router", kServe);
  child("gpu-worker.0",
        "test -e $J.2 && exit 7; test -e $J.1 && touch $J.2; touch $J.1; " + std::string(kServe));
  start_until_ready();
  kill(child_record("gpu-worker.0").pid, SIGKILL);  // the second incarnation starts, the third exits at once
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(folder_ / "journal.2"); }));
  kill(child_record("gpu-worker.0").pid, SIGKILL);
  ASSERT_TRUE(wait_until([&] { return child_record("gpu-worker.0").state == "given up"; })) << messages();
  EXPECT_EQ(child_record("gpu-worker.0").restarts, 2u);
  EXPECT_EQ(child_record("gpu-worker.0").pid, 0);
  EXPECT_EQ(child_record("gpu-worker.0").last_end, "exited with status 7");
  EXPECT_EQ(child_record("router").state, "ready");
  EXPECT_THAT(messages(),
              HasSubstr("E gpu-worker.0 exited with status 7; given up after 2 restarts within 60 s"));
  kill(pid_, SIGTERM);
  EXPECT_EQ(ended(), 0);
}

TEST_F(SupervisorTest, ARestartedChildThatIsNeverReadyIsKilledAndCounted) {
  limits_.ready_timeout = 300 * kMillisecond;
  limits_.max_restarts = 1;
  child("router", "test -e $J && { exec 3>&-; exec sleep 1000; }; touch $J; " + std::string(kServe));
  start_until_ready();
  kill(child_record("router").pid, SIGKILL);
  EXPECT_TRUE(wait_until([&] { return child_record("router").state == "given up"; })) << messages();
  EXPECT_THAT(messages(), HasSubstr("router was not ready within 300 ms"));
}

TEST_F(SupervisorTest, StopsInOrderAndLeavesNothing) {
  child("router", drains("router"), 0, 1);
  child("gpu-worker.0", drains("gpu-worker"), 0, 2);
  child("tokenizer-worker.0", drains("tokenizer-worker", "sleep 0.1; echo drained >>$J; exit 0"), 0, 0);
  start_until_ready();
  kill(pid_, SIGTERM);
  EXPECT_EQ(ended(), 0) << messages();
  EXPECT_EQ(journal(), "tokenizer-worker\ndrained\nrouter\ngpu-worker\n");
  EXPECT_TRUE(state_is_clean());
  EXPECT_TRUE(std::filesystem::exists(state() + "/logs/supervisor.jsonl"));
}

TEST_F(SupervisorTest, OPS_05_InterruptOfTheWholeGroupDrainsInOrderToo) {
  child("router", drains("router"), 0, 1);
  child("tokenizer-worker.0", drains("tokenizer-worker"), 0, 0);
  start_until_ready();
  kill(-pid_, SIGINT);  // what a terminal does
  EXPECT_EQ(ended(), 0);
  EXPECT_EQ(journal(), "tokenizer-worker\nrouter\n");
}

TEST_F(SupervisorTest, OPS_11_DrainHasALimitAndThenKills) {
  limits_.drain_timeout = 100 * kMillisecond;  // and 2 s for last words
  child("router", drains("router"), 0, 1);
  child("tokenizer-worker.0", drains("never", "sleep 1000"), 0, 0);
  start_until_ready();
  const pid_t stuck = child_record("tokenizer-worker.0").pid;
  kill(pid_, SIGTERM);
  EXPECT_EQ(ended(), 0);
  EXPECT_TRUE(process_is_gone(stuck));
  EXPECT_EQ(journal(), "never\nrouter\n");  // the router still had its turn
  EXPECT_THAT(messages(), HasSubstr("W tokenizer-worker.0 has not ended in time: killed"));
}

TEST_F(SupervisorTest, OPS_05_TheSecondInterruptEndsEverythingNow) {
  limits_.drain_timeout = 600 * kSecond;
  child("router", drains("router", "sleep 1000"), 0, 1);
  child("tokenizer-worker.0", drains("tokenizer-worker", "sleep 1000"), 0, 0);
  start_until_ready();
  kill(pid_, SIGINT);
  ASSERT_TRUE(wait_until([&] { return journal() == "tokenizer-worker\n"; }));
  kill(pid_, SIGINT);
  EXPECT_EQ(ended(2 * kSecond), 0);
  EXPECT_EQ(journal(), "tokenizer-worker\n");
  EXPECT_TRUE(state_is_clean());
}

TEST_F(SupervisorTest, AnInterruptDuringTheStartEndsIt) {
  child("router", "exec sleep 1000");
  start();
  ASSERT_TRUE(wait_until([&] { return read_record(state()).ok(); }));
  const pid_t router = child_record("router").pid;
  kill(pid_, SIGINT);
  EXPECT_EQ(ended(), 0);
  EXPECT_TRUE(process_is_gone(router));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "ready"));
  EXPECT_TRUE(state_is_clean());
}

// Everything a killed supervisor could leave behind: processes, sockets, state files.
TEST_F(SupervisorTest, AKilledSupervisorLeavesNothingBehind) {
  child("router", kServe);
  child("gpu-worker.0", "trap '' TERM INT HUP; " + std::string(kReady) + "while :; do sleep 0.01; done");
  start_until_ready();
  const pid_t router = child_record("router").pid, worker = child_record("gpu-worker.0").pid;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (state() + "/clients.sock").c_str());
  const UniqueFd socket_fd(socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(bind(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);

  kill(pid_, SIGKILL);
  EXPECT_EQ(ended(), 100 + SIGKILL);
  EXPECT_TRUE(wait_until(
      [&] {
        return process_is_gone(router) && process_is_gone(worker) && state_is_clean() &&
               !std::filesystem::exists(state() + "/clients.sock");
      },
      2 * kSecond));
  EXPECT_TRUE(std::filesystem::exists(state() + "/logs/supervisor.jsonl"));
}

// The janitor that shares the lock of `state_dir`; 0: there is none, or a former one is not gone yet.
pid_t janitor_of(const std::string& state_dir) {
  std::vector<pid_t> found;
  std::error_code error;  // processes and descriptors vanish while we look
  std::filesystem::directory_iterator end, process("/proc", error);
  for (; !error && process != end; process.increment(error)) {
    const std::string pid = process->path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (slurp(process->path().string() + "/comm") != "rm-janitor\n") continue;
    std::error_code gone;
    std::filesystem::directory_iterator fd(process->path() / "fd", gone);
    for (; !gone && fd != end; fd.increment(gone))
      if (std::filesystem::read_symlink(fd->path(), gone).string() == state_dir + "/lock") {
        found.push_back(std::stoi(pid));
        break;
      }
  }
  return found.size() == 1 ? found[0] : 0;
}

TEST_F(SupervisorTest, AKilledJanitorIsReplacedAndTheNewOneKnowsTheChildren) {
  child("router", kServe);
  start_until_ready();
  pid_t first = 0, second = 0;
  ASSERT_TRUE(wait_until([&] { return (first = janitor_of(state())) != 0; }));
  kill(first, SIGKILL);
  ASSERT_TRUE(wait_until([&] { return (second = janitor_of(state())) != 0 && second != first; }));
  EXPECT_THAT(messages(), HasSubstr("the janitor process was killed; starting another"));
  const pid_t router = child_record("router").pid;
  kill(pid_, SIGKILL);
  EXPECT_EQ(ended(), 100 + SIGKILL);
  EXPECT_TRUE(wait_until([&] { return process_is_gone(router) && state_is_clean(); }, 2 * kSecond));
}

TEST_F(SupervisorTest, AJanitorKilledWhileDrainingIsReplacedToo) {
  child("router", drains("router", "while ! test -e $J.go; do sleep 0.01; done; exit 0"));
  start_until_ready();
  pid_t first = 0, second = 0;
  ASSERT_TRUE(wait_until([&] { return (first = janitor_of(state())) != 0; }));
  kill(pid_, SIGTERM);
  ASSERT_TRUE(wait_until([&] { return journal() == "router\n"; }));
  kill(first, SIGKILL);
  ASSERT_TRUE(wait_until([&] { return (second = janitor_of(state())) != 0 && second != first; }));
  spill(folder_ / "journal.go", "");
  EXPECT_EQ(ended(), 0);
  EXPECT_TRUE(state_is_clean());
}

TEST_F(SupervisorTest, WhatTheHostRefusesIsLogged) {
  child("router", kServe);
  specs_[0].cores = {8000};
  start_until_ready();
  EXPECT_THAT(messages(), HasSubstr("W router: the host refused cores 8000: Invalid argument"));
}

}  // namespace
}  // namespace ringmaster::launcher
