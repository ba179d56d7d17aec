#include "launcher/stop_cluster.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

#include "launcher/record.h"
#include "launcher/state_dir.h"
#include "support.h"

namespace ringmaster::launcher {
namespace {

// Plays a supervisor: holds the lock until a signal ends it.
pid_t lock_holder(const std::string& dir) {
  const pid_t pid = fork();
  if (pid == 0) {
    const Result<UniqueFd> lock = lock_state_dir(dir);
    while (lock.ok()) pause();
    _exit(1);
  }
  EXPECT_TRUE(wait_until([&] { return state_dir_is_locked(dir); }));
  return pid;
}

class StopCluster : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(create_state_dir(dir()).ok());
    holder_ = lock_holder(dir());
  }
  void TearDown() override {
    if (holder_ > 0) kill(holder_, SIGKILL), waitpid(holder_, nullptr, 0);
  }
  std::string dir() const { return folder_ / "state"; }
  void write_record(pid_t pid, uint64_t ticks) {
    SupervisorRecord record;
    record.name = "t";
    record.pid = pid;
    record.start_ticks = ticks;
    record.state = "starting";
    ASSERT_TRUE(write_atomically(record_path(dir()), to_json(record)).ok());
  }
  void write_record_of_holder() { write_record(holder_, process_start_ticks(holder_)); }
  int signal_that_ended_holder() {
    int status = 0;
    waitpid(std::exchange(holder_, 0), &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

  Folder folder_;
  pid_t holder_ = 0;
};

TEST_F(StopCluster, OneThatHasJustBegunToStartIsStoppedOnceItSaysWhoItIs) {
  write_record(1, 1);  // left by a former one that was killed together with its janitor
  auto stopped = std::async(std::launch::async, [&] { return stop_cluster(dir(), {.drain = kSecond}); });
  EXPECT_EQ(stopped.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  write_record_of_holder();
  EXPECT_EQ(signal_that_ended_holder(), SIGTERM);
  EXPECT_TRUE(stopped.get().ok());
}

TEST_F(StopCluster, WhenAJanitorFreesTheLockThatIsTheEnd) {
  auto stopped = std::async(std::launch::async, [&] { return stop_cluster(dir(), {.drain = kSecond}); });
  EXPECT_EQ(stopped.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  kill(holder_, SIGKILL);
  EXPECT_EQ(signal_that_ended_holder(), SIGKILL);
  EXPECT_TRUE(stopped.get().ok());
}

TEST_F(StopCluster, NoClusterIsAnError) {
  kill(holder_, SIGKILL);
  (void)signal_that_ended_holder();
  EXPECT_EQ(stop_cluster(dir(), {}).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace ringmaster::launcher
