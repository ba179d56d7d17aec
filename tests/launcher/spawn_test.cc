#include "launcher/spawn.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/wait.h>

#include "support.h"

namespace ringmaster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ChildSpec shell(const std::string& script) {
  ChildSpec spec;
  spec.name = "child";
  spec.argv = {"/bin/sh", "-c", script};
  return spec;
}

std::string read_to_end(int fd) {
  std::string text;
  const Nanos deadline = monotonic_now() + 5 * kSecond;
  while (monotonic_now() < deadline) {
    pollfd entry{fd, POLLIN, 0};
    poll(&entry, 1, 100);
    char bytes[4096];
    const ssize_t got = read(fd, bytes, sizeof bytes);
    if (got == 0) return text;
    if (got > 0) text.append(bytes, static_cast<size_t>(got));
  }
  return text + "(no end)";
}

struct Outcome {
  std::string output, ready;
  int status = -1;
  std::vector<std::string> refusals;
};

Outcome run(const ChildSpec& spec) {
  Result<Spawned> child = spawn(spec);
  EXPECT_TRUE(child.ok()) << (child.ok() ? "" : child.error().message);
  if (!child.ok()) return {};
  Outcome result;
  result.output = read_to_end(child->output.get());
  result.ready = read_to_end(child->ready.get());
  waitpid(child->pid, &result.status, 0);
  result.refusals = child->refusals;
  return result;
}

TEST(Spawn, CollectsOutputAndReadiness) {
  const Outcome result = run(shell("echo out; echo err >&2; echo READY >&3; exit 5"));
  EXPECT_EQ(result.output, "out\nerr\n");
  EXPECT_EQ(result.ready, "READY\n");
  EXPECT_EQ(WEXITSTATUS(result.status), 5);
  EXPECT_TRUE(result.refusals.empty());
}

TEST(Spawn, ChildHasItsOwnSessionEmptyInputAndNoOtherDescriptors) {
  const int leaked = open("/dev/zero", O_RDONLY);  // as a careless library would leave it: without O_CLOEXEC
  const Outcome result = run(
      shell("cat; ls /proc/self/fd | tr '\\n' ' '; test $(cut -d' ' -f6 /proc/$$/stat) = $$ && echo leader"));
  close(leaked);
  // 3 is the ready pipe; 4 is the folder that ls reads.
  EXPECT_EQ(result.output, "0 1 2 3 4 leader\n");
}

TEST(Spawn, ChildStartsWithDefaultSignalsWhateverTheSupervisorBlocks) {
  sigset_t set, before;
  sigfillset(&set);
  sigprocmask(SIG_BLOCK, &set, &before);
  const auto old = ::signal(SIGPIPE, SIG_IGN);
  const Outcome result = run(shell("grep -E 'SigBlk|SigIgn' /proc/self/status"));
  ::signal(SIGPIPE, old);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_THAT(result.output, HasSubstr("SigBlk:\t0000000000000000"));
  EXPECT_THAT(result.output, HasSubstr("SigIgn:\t0000000000000000"));
}

TEST(Spawn, OPS_13_CoresAndNicenessHoldFromTheFirstInstruction) {
  ChildSpec spec = shell("grep Cpus_allowed_list /proc/self/status; nice");
  spec.cores = {0};
  spec.nice = 7;
  const Outcome result = run(spec);
  EXPECT_EQ(result.output, "Cpus_allowed_list:\t0\n7\n");
  EXPECT_TRUE(result.refusals.empty());
}

TEST(Spawn, WhatTheHostRefusesIsReportedAndNotFatal) {
  ChildSpec spec = shell("echo runs");
  spec.cores = {8000};
  EXPECT_THAT(run(spec).refusals, ElementsAre("cores 8000: Invalid argument"));
  spec.cores = {0, 8000};
  const Outcome partly = run(spec);
  EXPECT_THAT(partly.refusals,
              ElementsAre("cores 0,8000: some of them do not exist or are not allowed here"));
  EXPECT_EQ(partly.output, "runs\n");
}

TEST(Spawn, ProgramsThatCannotRunAreErrors) {
  ChildSpec spec = shell("");
  spec.argv[0] = "/no/such/program";
  EXPECT_EQ(spawn(spec).error().code, Code::kNotFound);
  EXPECT_THAT(spawn(spec).error().message, HasSubstr("/no/such/program cannot be started: No such file"));
  Folder folder;
  spill(folder / "text", "not a program");
  spec.argv[0] = folder / "text";
  EXPECT_EQ(spawn(spec).error().code, Code::kPermissionDenied);
}

TEST(Spawn, ChildDiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const Result<Spawned> child = spawn(shell("exec sleep 1000"));
    const pid_t pid = child.ok() ? child.value().pid : 0;
    [[maybe_unused]] const ssize_t written = write(ends[1], &pid, sizeof pid);
    pause();
  }
  pid_t child = 0;
  ASSERT_EQ(read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ASSERT_GT(child, 0);
  EXPECT_FALSE(process_is_gone(child));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  EXPECT_TRUE(wait_until([&] { return process_is_gone(child); }, kSecond));
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace ringmaster::launcher
