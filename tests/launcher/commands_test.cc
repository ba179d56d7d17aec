// The `ringmaster` program itself, beside shells that play router and workers, or the real ones where the
// cluster has to serve: exit codes, messages, logs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/config.h"
#include "launcher/record.h"
#include "launcher/run_command.h"
#include "launcher/state_dir.h"
#include "support.h"

namespace ringmaster::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // The programs of the processes are looked for beside the executable.
    std::filesystem::copy(RINGMASTER_BINARY_DIR "/bin/ringmaster", folder_ / "ringmaster");
    for (const char* name : {"router", "gpu-worker", "tokenizer-worker"})
      program(name, "echo READY >&3; exec 3>&-; exec sleep 1000");
    spill(
        config(),
        "name: lab\nmodel: " RINGMASTER_SOURCE_DIR "/tests/data/gguf/q4_1/model.gguf\nstate_dir: " + state() +
            "\ngpu-worker: {kv_memory: 1MiB}\nsupervisor: {drain_timeout: 100ms, ready_timeout: 1s}\n");
  }
  // The real router and workers, on the fake device: a cluster that serves.
  void real_programs() {
    for (const char* name : {"router", "gpu-worker", "tokenizer-worker"}) {
      std::filesystem::remove(folder_ / name);
      std::filesystem::create_symlink(std::string(RINGMASTER_BINARY_DIR "/bin/") + name, folder_ / name);
    }
    spill(config(), "name: lab\nstate_dir: " + state() + "\ngpu-worker: {device: fake, kv_memory: 64MiB}\n");
  }
  void TearDown() override { (void)run("down --now -c " + config()); }

  void program(const std::string& name, const std::string& script) {
    spill(folder_ / name, "#!/bin/sh\n" + script + "\n");
    chmod((folder_ / name).c_str(), 0755);
  }
  std::string config() const { return folder_ / "c.yaml"; }
  std::string state() const { return folder_ / "state"; }

  struct Outcome {
    int code = -1;
    std::string out, err;
  };
  Outcome run(const std::string& arguments) {
    const Result<int> code = run_command(
        {"sh", "-c",
         (folder_ / "ringmaster ") + arguments + " >" + (folder_ / "out") + " 2>" + (folder_ / "err")},
        Output::kHidden, 20 * kSecond);
    return {code.ok() ? code.value() : -1, slurp(folder_ / "out"), slurp(folder_ / "err")};
  }
  // `up` in the foreground, until it has printed its endpoints.
  pid_t up() {
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(open((folder_ / "up.out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
      dup2(open((folder_ / "up.err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      execl((folder_ / "ringmaster").c_str(), "ringmaster", "up", "-c", config().c_str(), nullptr);
      _exit(127);
    }
    EXPECT_TRUE(wait_until([&] { return slurp(folder_ / "up.out").find("is ready") != std::string::npos; },
                           20 * kSecond))
        << slurp(folder_ / "up.err");
    return pid;
  }

  Folder folder_;
};

TEST_F(CommandsTest, WrongArgumentsAreUsageErrors) {
  EXPECT_EQ(run("").code, 2);
  const Outcome command = run("upp");
  EXPECT_EQ(command.code, 2);
  EXPECT_EQ(command.err, "ringmaster: unknown command 'upp'; see `ringmaster --help`\n");
  const Outcome option = run("up --detahc");
  EXPECT_EQ(option.code, 2);
  EXPECT_THAT(option.err,
              ::testing::AllOf(HasSubstr("--detahc"), HasSubstr("; see `ringmaster up --help`\n")));
  EXPECT_EQ(run("status -c x --name y").code, 2);
  for (const char* words : {"up -c nofile.yaml", "status -c nofile.yaml", "generate -c nofile.yaml -p hi"}) {
    const Outcome file = run(words);
    EXPECT_EQ(file.code, 2) << words;
    EXPECT_EQ(file.err, "ringmaster: nofile.yaml: cannot be opened: No such file or directory\n");
  }
  EXPECT_EQ(run("--help").code, 0);
  EXPECT_THAT(run("generate --help").out, HasSubstr("--priority INT:-128 to 127=0"));
  EXPECT_THAT(run("--version").out, ::testing::MatchesRegex("ringmaster [0-9.]+\n"));
  const Outcome name = run("up --name a/b");
  EXPECT_EQ(name.code, 2);
  EXPECT_THAT(name.err, HasSubstr("the name is 'a/b'; allowed: up to 64 letters"));
  const Outcome model = run("pull llama9");
  EXPECT_EQ(model.code, 2);
  EXPECT_THAT(model.err, HasSubstr("the model is 'llama9'; known: smollm2"));
  spill(config(), "gpu-worker:\n  kv_memroy: 1MiB\n");
  const Outcome key = run("up -c " + config());
  EXPECT_EQ(key.code, 2);
  EXPECT_THAT(key.err, HasSubstr(config() + ":2: unknown key 'gpu-worker.kv_memroy'"));
}

TEST_F(CommandsTest, CommandsSayThatNothingRuns) {
  const Outcome status = run("status -c " + config());
  EXPECT_EQ(status.code, 3);
  EXPECT_EQ(status.err, "ringmaster: cluster 'lab' is not running (looked in " + state() +
                            "); start it with `ringmaster up`\n");
  const Outcome json = run("status --json -c " + config());
  EXPECT_EQ(json.code, 3);
  EXPECT_EQ(json.out, "{\"name\":\"lab\",\"running\":false}\n");
  for (const char* command : {"down -c ", "logs -c "}) {
    const Outcome outcome = run(command + config());
    EXPECT_EQ(outcome.code, 3);
    EXPECT_THAT(outcome.err, HasSubstr("cluster 'lab' was never started here (looked in " + state()));
  }
  EXPECT_FALSE(std::filesystem::exists(state()));
}

TEST_F(CommandsTest, UpNeedsNoStandardDescriptors) {
  real_programs();
  const std::string up = (folder_ / "ringmaster") + " up --detach -c " + config() + " <&- >&- 2>&-";
  const Result<int> code = run_command({"sh", "-c", up}, Output::kHidden, 20 * kSecond);
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(code.value(), 0);
  EXPECT_THAT(run("status -c " + config()).out, HasSubstr("cluster 'lab': ready"));
}

TEST_F(CommandsTest, ForegroundUpRunsUntilDown) {
  real_programs();
  const pid_t supervisor = up();
  EXPECT_THAT(slurp(folder_ / "up.out"),
              StartsWith("cluster 'lab' is ready\n  clients     ipc://" + state() + "/clients.sock\n"));
  EXPECT_THAT(slurp(folder_ / "up.err"),
              ::testing::ContainsRegex("supervisor +\\| [0-9:.]+ I gpu-worker.0 is ready\n"));

  const Outcome status = run("status -c " + config());
  EXPECT_EQ(status.code, 0) << "ready means ready, at once";
  EXPECT_THAT(status.out, HasSubstr("cluster 'lab': ready"));
  EXPECT_THAT(status.out, HasSubstr("tokenizer-worker.1"));

  const Outcome second = run("up -c " + config());
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, HasSubstr("the state directory " + state() + " is in use by a running cluster"));

  const Outcome down = run("down -c " + config());
  EXPECT_EQ(down.code, 0) << down.err;
  EXPECT_EQ(down.out, "cluster 'lab' has ended\n");
  int exit_status = -1;
  ASSERT_TRUE(wait_until([&] { return waitpid(supervisor, &exit_status, WNOHANG) == supervisor; }));
  EXPECT_EQ(WEXITSTATUS(exit_status), 0);
  EXPECT_EQ(run("down -c " + config()).code, 3);
  EXPECT_EQ(run("status -c " + config()).code, 3);
}

TEST_F(CommandsTest, LogsStayReadableAfterTheEnd) {
  real_programs();
  up();
  ASSERT_EQ(run("down -c " + config()).code, 0);
  EXPECT_THAT(run("logs -c " + config()).out,
              ::testing::ContainsRegex(" supervisor I router started, process [0-9]+\n"));
  EXPECT_THAT(run("logs --json -n 1 -c " + config()).out, StartsWith("{\"t\":"));
  const std::string last = run("logs -n 2 supervisor -c " + config()).out;
  EXPECT_EQ(std::count(last.begin(), last.end(), '\n'), 2);
  const Outcome unknown = run("logs gpu-worker.7 -c " + config());
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(
      unknown.err,
      HasSubstr(
          "no process 'gpu-worker.7' has logged in " + state() +
          "/logs; there are: gpu-worker.0, router, supervisor, tokenizer-worker.0, tokenizer-worker.1\n"));
}

TEST_F(CommandsTest, DetachedUpReportsAFailedStartWithTheLastLines) {
  program("gpu-worker", "echo the weights are odd; exit 9");
  const Outcome outcome = run("up --detach -c " + config());
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err,
              StartsWith("ringmaster: gpu-worker.0 exited with status 9 before the cluster was ready; its "
                         "last lines:\n  the weights are odd\n"));
  EXPECT_FALSE(state_dir_is_locked(state()));
}

TEST_F(CommandsTest, UpInsistsThatTheRouterServesAndLeavesNothingOtherwise) {
  for (const char* words : {"up --detach -c ", "up -c "}) {
    const Outcome outcome = run(words + config());
    EXPECT_EQ(outcome.code, 1) << words;
    EXPECT_THAT(outcome.err, HasSubstr("all processes run, but the router says: "));
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(wait_until([&] { return !state_dir_is_locked(state()); }));
  }
}

TEST_F(CommandsTest, ValuesOutOfRangeNameTheRange) {
  for (const auto& [words, range] : std::vector<std::pair<std::string, std::string>>{
           {"generate -p hi --temperature warm", "'warm' is not allowed; allowed: 0 or more"},
           {"generate -p hi --top-p 1.5", "'1.5' is not allowed; allowed: above 0, at most 1"},
           {"generate -p hi --top-p 0", "'0' is not allowed; allowed: above 0, at most 1"},
           {"generate -p hi --min-p -0.5", "'-0.5' is not allowed; allowed: 0 to 1"},
           {"generate -p hi --repeat-penalty 0", "'0' is not allowed; allowed: above 0"},
           {"generate -p hi --presence-penalty 3", "'3' is not allowed; allowed: -2 to 2"},
           {"generate -p hi --priority 200", "'200' is not allowed; allowed: -128 to 127"},
           {"generate -p hi --max-tokens 0", "'0' is not allowed; allowed: 1 to 4294967295"},
           {"generate -p hi --logprobs 21", "'21' is not allowed; allowed: 0 to 20"},
           {"logs -n many", "'many' is not allowed; allowed: 1 to 2147483647"},
           {"audit --wait-idle nan", "'nan' is not allowed; allowed: 0 to 3600"},
           {"audit --wait-idle 5s", "'5s' is not allowed; allowed: 0 to 3600"},
           // An unset shell variable must not mean the default cluster.
           {"down --name ''", "--name: '' is not allowed; leave the option out for the default cluster"},
           {"down -c ''", "--config: '' is not allowed"}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << words;
    EXPECT_THAT(outcome.err, HasSubstr(range));
  }
}

TEST_F(CommandsTest, MissingProgramsAreFoundBeforeAnythingStarts) {
  std::filesystem::remove(folder_ / "tokenizer-worker");
  const Outcome outcome = run("up -c " + config());
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("the program of tokenizer-worker.0 is missing"));
  EXPECT_FALSE(std::filesystem::exists(state()));
}

TEST_F(CommandsTest, ResolvedConfigurationIsWhatTheProcessesGet) {
  real_programs();
  std::filesystem::remove(folder_ / "router");
  program("router", "cp $2 " + (folder_ / "seen.yaml") + "; echo $* >" + (folder_ / "arguments") +
                        "; exec " RINGMASTER_BINARY_DIR "/bin/router \"$@\"");
  up();
  EXPECT_EQ(slurp(folder_ / "arguments"),
            "--config " + state() + "/cluster.yaml --name router --ready-fd 3\n");
  const Result<ClusterConfig> seen = load_cluster_yaml(folder_ / "seen.yaml");
  ASSERT_TRUE(seen.ok());
  EXPECT_EQ(seen.value().state_dir, state());
  EXPECT_EQ(seen.value().gpu_worker.kv_memory, 64u << 20);
}

TEST_F(CommandsTest, PlanPrintsTheBudgetAndWhetherItFits) {
  real_programs();
  const std::string model = RINGMASTER_SOURCE_DIR "/tests/data/gguf/q4_1/model.gguf";
  const Outcome fits = run("plan " + model + " --device cpu --context 64 --batch 4 --memory 1GiB");
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_THAT(fits.out, HasSubstr(" on cpu: 4 sequences of 64 tokens\n"));
  EXPECT_THAT(fits.out, HasSubstr("memory                1024 MiB\n"));
  const Outcome json = run("plan " + model + " --device cpu --memory 1MiB --json");
  EXPECT_EQ(json.code, 5) << json.err;
  EXPECT_THAT(json.out, HasSubstr("\"fits\": false"));
  EXPECT_EQ(run("plan " + model + " --device tpu").code, 2);
  EXPECT_EQ(run("plan " + model + " --memory much").code, 2);
  EXPECT_EQ(run("plan " + model + " --device cpu --context 99999").code, 2);
  const Outcome missing = run("plan /no/such.gguf");
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(missing.err, "ringmaster: the model file /no/such.gguf does not exist\n");
}

}  // namespace
}  // namespace ringmaster::launcher
