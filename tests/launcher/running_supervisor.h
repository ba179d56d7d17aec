// A Supervisor in a process group of its own, as a shell would run it, with shells as children.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/log.h"
#include "launcher/state_dir.h"
#include "launcher/supervisor.h"
#include "support.h"

namespace ringmaster::launcher {

class RunningSupervisor : public ::testing::Test {
 protected:
  RunningSupervisor() {
    limits_.restart_window = 60 * kSecond;
    limits_.restart_delay = 20 * kMillisecond;
    limits_.drain_timeout = 5 * kSecond;
  }
  ~RunningSupervisor() override {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    wait_until([&] { return !state_dir_is_locked(state()); });
  }

  std::string state() const { return folder_ / "state"; }
  std::string journal() const { return slurp(folder_ / "journal"); }
  std::string messages() const { return slurp(folder_ / "stderr"); }

  // `script` sees $J, a file that all children append to.
  void child(const std::string& name, const std::string& script, int start_stage = 0, int stop_stage = 0) {
    ChildSpec spec;
    spec.name = name;
    spec.argv = {"/bin/sh", "-c", "J=" + (folder_ / "journal") + "; " + script};
    spec.start_stage = start_stage;
    spec.stop_stage = stop_stage;
    specs_.push_back(spec);
  }

  void start() {
    ASSERT_TRUE(create_state_dir(state()).ok());
    pid_ = fork();
    ASSERT_GE(pid_, 0);
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    const int out = open((folder_ / "stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(out, STDERR_FILENO);
    const Result<UniqueFd> lock = lock_state_dir(state());
    std::vector<std::string> names = {"supervisor"};
    for (const ChildSpec& spec : specs_) names.push_back(spec.name);
    MergedOutput output(STDERR_FILENO, false, names);
    log::set_stderr_prefix(output.prefix("supervisor"));
    if (!lock.ok() || !log::open("supervisor", state() + "/logs/supervisor.jsonl", LogConfig{}).ok())
      _exit(9);
    Supervisor supervisor(
        {"test", "ipc://c", "ipc://w", {state(), {}, lock.value().get(), LogConfig{}}, limits_, serves_},
        specs_, output, [&] { spill(folder_ / "ready", "yes"); });
    const Status ended = supervisor.run();
    if (!ended.ok()) spill(folder_ / "failure", ended.error().message);
    _exit(ended.ok() ? 0 : 1);
  }
  void start_until_ready() {
    start();
    ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(folder_ / "ready"); })) << messages();
  }

  // The exit status of the supervisor; 99: it did not end in time.
  int ended(Nanos limit = 5 * kSecond) {
    int status = -1;
    if (!wait_until([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, limit)) return 99;
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
  }

  Folder folder_;
  SupervisorConfig limits_;
  std::function<Status()> serves_;
  std::vector<ChildSpec> specs_;
  pid_t pid_ = 0;
};

}  // namespace ringmaster::launcher
