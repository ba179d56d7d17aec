#include "launcher/janitor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include "launcher/state_dir.h"
#include "shm/unix_socket.h"
#include "support.h"

namespace ringmaster::launcher {
namespace {

// A process that nothing but the janitor would end: no parent-death signal.
pid_t start_sleeper() {
  const pid_t pid = fork();
  if (pid == 0) {
    setsid();
    execl("/bin/sleep", "sleep", "1000", nullptr);
    _exit(127);
  }
  return pid;
}

class JanitorTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(create_state_dir(state()).ok()); }
  std::string state() const { return folder_ / "state"; }

  // Runs `body` as the supervisor; it reports the pids it wants watched through the pipe and must not return.
  pid_t supervise(const std::function<void(Janitor&, int report)>& body) {
    EXPECT_EQ(pipe(report_), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      const Result<UniqueFd> lock = lock_state_dir(state());
      if (!lock.ok()) _exit(1);
      spill(state() + "/supervisor.json", "{}");
      Result<Janitor> janitor = Janitor::start({state(), {}, lock.value().get(), LogConfig{}}, {});
      if (!janitor.ok()) _exit(1);
      body(janitor.value(), report_[1]);
      _exit(0);
    }
    close(report_[1]);
    return pid;
  }
  pid_t reported() {
    pid_t pid = 0;
    EXPECT_EQ(read(report_[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
    return pid;
  }
  static void report(int fd, pid_t pid) { [[maybe_unused]] const ssize_t n = write(fd, &pid, sizeof pid); }

  bool all_is_clean() {
    return !std::filesystem::exists(state() + "/supervisor.json") &&
           !std::filesystem::exists(state() + "/lock") && !state_dir_is_locked(state());
  }

  Folder folder_;
  int report_[2] = {-1, -1};
};

TEST_F(JanitorTest, KillsWhatIsLeftWhenTheSupervisorIsKilled) {
  const pid_t supervisor = supervise([](Janitor& janitor, int fd) {
    // "a" is replaced by a later incarnation; only the present ones are watched.
    for (const char* name : {"a", "b", "a"}) {
      const pid_t sleeper = start_sleeper();
      const UniqueFd pidfd = shm::open_pidfd(sleeper).value();
      if (!janitor.watch({name, pidfd.get()}).ok()) _exit(1);
      report(fd, sleeper);
    }
    pause();
  });
  const pid_t old_a = reported(), b = reported(), new_a = reported();
  kill(supervisor, SIGKILL);
  waitpid(supervisor, nullptr, 0);
  EXPECT_TRUE(wait_until([&] { return all_is_clean() && process_is_gone(b) && process_is_gone(new_a); },
                         2 * kSecond));
  EXPECT_FALSE(process_is_gone(old_a));  // not its business any more
  kill(old_a, SIGKILL);
  EXPECT_THAT(slurp(state() + "/logs/janitor.jsonl"), ::testing::HasSubstr("2 processes were still there"));
}

TEST_F(JanitorTest, IgnoresInterruptsAndOutlivesItsGroup) {
  const pid_t supervisor = supervise([](Janitor& janitor, int fd) {
    const pid_t sleeper = start_sleeper();
    const UniqueFd pidfd = shm::open_pidfd(sleeper).value();
    if (!janitor.watch({"a", pidfd.get()}).ok()) _exit(1);
    report(fd, sleeper);
    pause();
  });
  const pid_t sleeper = reported();
  kill(supervisor, SIGINT);
  waitpid(supervisor, nullptr, 0);
  EXPECT_TRUE(wait_until([&] { return all_is_clean() && process_is_gone(sleeper); }, 2 * kSecond));
}

TEST_F(JanitorTest, CleansUpInOrderWithoutComplaint) {
  const pid_t supervisor =
      supervise([](Janitor& janitor, int) { _exit(janitor.finish(2 * kSecond).ok() ? 0 : 1); });
  int status = -1;
  waitpid(supervisor, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(all_is_clean());  // before finish() returned
  EXPECT_FALSE(std::filesystem::exists(state() + "/logs/janitor.jsonl"));
}

TEST_F(JanitorTest, KeepsNoDescriptorOfTheSupervisorOpen) {
  int output[2];
  ASSERT_EQ(pipe(output), 0);
  const pid_t supervisor = supervise([&](Janitor& janitor, int fd) {
    const pid_t sleeper = start_sleeper();
    const UniqueFd pidfd = shm::open_pidfd(sleeper).value();
    if (!janitor.watch({"a", pidfd.get()}).ok()) _exit(1);
    report(fd, sleeper);
    pause();
  });
  close(output[1]);
  const pid_t sleeper = reported();
  kill(sleeper, SIGKILL);  // it holds the pipe too
  kill(supervisor, SIGSTOP);
  kill(supervisor, SIGKILL);
  char byte;
  EXPECT_EQ(read(output[0], &byte, 1), 0);  // ends although the janitor may still be at work
  waitpid(supervisor, nullptr, 0);
  EXPECT_TRUE(wait_until([&] { return all_is_clean(); }, 2 * kSecond));
  close(output[0]);
}

TEST_F(JanitorTest, RefusesNamesItCannotCarry) {
  const pid_t supervisor = supervise([](Janitor& janitor, int) {
    const bool refused = !janitor.watch({"", 0}).ok() && !janitor.watch({std::string(129, 'n'), 0}).ok();
    (void)janitor.finish(2 * kSecond);
    _exit(refused ? 0 : 1);
  });
  int status = -1;
  waitpid(supervisor, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ringmaster::launcher
