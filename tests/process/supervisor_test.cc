// What a user does to a cluster from the outside: starts it wrongly, twice, kills its supervisor, reads its
// logs.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/process/support/cluster.h"

namespace ringmaster {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFakeCluster = R"(model: smollm2
gpu-worker:
  device: fake
  kv_memory: 256MiB
)";

std::vector<std::string> shm_entries() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) out.push_back(entry.path());
  return out;
}

std::vector<std::string> sockets_in(const std::string& dir) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(dir, error))
    if (entry.is_socket()) out.push_back(entry.path());
  return out;
}

TEST(Supervisor, KilledItLeavesNothingBehind) {
  const auto shm_before = shm_entries();
  test::Cluster cluster(kFakeCluster);
  ASSERT_TRUE(cluster.up());
  const auto children = cluster.children();
  ASSERT_EQ(children.size(), 4u);
  EXPECT_FALSE(sockets_in(cluster.state_dir()).empty());
  cluster.kill_supervisor();
  usleep(2'000'000);
  for (const test::Child& child : children) EXPECT_FALSE(test::alive(child.pid)) << child.name;
  EXPECT_EQ(sockets_in(cluster.state_dir()), std::vector<std::string>{});
  EXPECT_FALSE(fs::exists(cluster.state_dir() + "/supervisor.json"));
  EXPECT_EQ(shm_entries(), shm_before);
}

TEST(Supervisor, ASecondClusterOfThatNameIsRefusedAndTheFirstGoesOn) {
  test::Cluster cluster(kFakeCluster);
  ASSERT_TRUE(cluster.up());
  const test::Ended second = cluster.command({"up"}, 10 * kSecond);
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_NE(second.err.find("running"), std::string::npos) << second.err;
  EXPECT_TRUE(cluster.status().ready);
  EXPECT_EQ(cluster.down(), 0);
}

TEST(Supervisor, StatusAndLogsTellWhatRuns) {
  test::Cluster cluster(kFakeCluster);
  EXPECT_EQ(cluster.command({"status"}).exit_code, 3);
  ASSERT_TRUE(cluster.up());
  const test::Ended text = cluster.command({"status"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* name : {"router", "gpu-worker.0", "tokenizer-worker.0", "tokenizer-worker.1"})
    EXPECT_NE(text.out.find(name), std::string::npos) << name;
  const test::Ended json = cluster.command({"status", "--json"});
  EXPECT_EQ(json.exit_code, 0);
  EXPECT_TRUE(nlohmann::json::accept(json.out)) << json.out;
  const test::Ended answer = cluster.command({"generate", "-p", "Hello", "--max-tokens", "5", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_EQ(nlohmann::json::parse(answer.out)["ids"].size(), 5u);
  const test::Ended audit = cluster.command({"audit", "--wait-idle", "10"});
  EXPECT_EQ(audit.exit_code, 0) << audit.out << audit.err;
  EXPECT_NE(audit.out.find("books balance"), std::string::npos) << audit.out;
  EXPECT_EQ(cluster.down(), 0);
  EXPECT_EQ(cluster.command({"generate", "-p", "Hello"}).exit_code, 3);
  const test::Ended logs = cluster.command({"logs"});
  EXPECT_EQ(logs.exit_code, 0);
  EXPECT_NE(logs.out.find("gpu-worker.0"), std::string::npos) << logs.out;
}

struct BadConfig {
  const char* name;
  const char* yaml;
  std::vector<const char*> says;
};

class RefusedBeforeStart : public testing::TestWithParam<BadConfig> {};

TEST_P(RefusedBeforeStart, WithFileValueAndRemedy) {
  test::Cluster cluster(GetParam().yaml);
  const test::Ended ended = cluster.command({"up"}, 20 * kSecond);
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_NE(ended.exit_code, -1) << "it started, or hung";
  for (const char* words : GetParam().says) EXPECT_NE(ended.err.find(words), std::string::npos) << ended.err;
  EXPECT_EQ(cluster.children().size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, RefusedBeforeStart,
    testing::Values(
        BadConfig{
            "UnknownKey", "gpu-worker:\n  max_runing: 3\n", {"cluster.yaml:3", "max_runing", "max_running"}},
        BadConfig{"WrongValue",
                  "gpu-worker:\n  step_tokens: banana\n",
                  {"cluster.yaml:3", "step_tokens", "banana"}},
        BadConfig{"MissingModel", "model: /nowhere/model.gguf\n", {"/nowhere/model.gguf"}},
        BadConfig{"NoModel", "model: /dev/null\n", {"/dev/null"}},
        BadConfig{"TooMuchMemory", "gpu-worker:\n  kv_memory: 100TiB\n", {"memory", "kv_memory"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

TEST(Supervisor, ATruncatedModelIsNamedWithItsSizes) {
  test::Cluster probe(kFakeCluster);
  const std::string path = fs::path(probe.config_file()).parent_path() / "cut.gguf";
  {
    std::ifstream in(std::string(RINGMASTER_SOURCE_DIR) + "/tests/data/gguf/q4_1/model.gguf",
                     std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    ASSERT_GT(bytes.size(), 1000u);
    std::ofstream(path, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size() - 100));
  }
  test::Cluster cluster("model: " + path + "\n");
  const test::Ended ended = cluster.command({"up"}, 20 * kSecond);
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_NE(ended.err.find("cut.gguf"), std::string::npos) << ended.err;
}

TEST(Supervisor, OPS_05_InterruptEndsAllAndTwiceEndsNow) {
  for (const int interrupts : {1, 2}) {
    test::Cluster cluster(kFakeCluster);
    ASSERT_TRUE(cluster.up());
    const auto children = cluster.children();
    auto client = cluster.connect();
    client::Request request;
    request.prompt = std::string("Hello");
    request.max_tokens = 1000;  // two seconds at 2 ms a step
    ASSERT_TRUE(client.start(request).ok());
    usleep(100'000);
    const Nanos start = monotonic_now();
    for (int i = 0; i < interrupts; ++i) {
      kill(cluster.supervisor(), SIGINT);
      usleep(50'000);
    }
    const int code = cluster.wait(20 * kSecond);
    if (interrupts == 1) {
      EXPECT_EQ(code, 0);
    }
    if (interrupts == 2) {
      EXPECT_LT(monotonic_now() - start, 1500 * kMillisecond);
    }
    for (const test::Child& child : children) EXPECT_FALSE(test::alive(child.pid)) << child.name;
    // Drained: the stream ran to its end. Ended now: it was cut, but not without its prefix being right.
    uint32_t tokens = 0;
    while (const auto event = client.next(monotonic_now() + 100 * kMillisecond)) {
      if (!event->has_value()) break;
      if (const auto* piece = std::get_if<client::Piece>(&(*event)->what))
        tokens += static_cast<uint32_t>(piece->ids.size());
    }
    if (interrupts == 1) {
      EXPECT_EQ(tokens, 1000u);
    }
    if (interrupts == 2) {
      EXPECT_LT(tokens, 1000u);
    }
  }
}

}  // namespace
}  // namespace ringmaster
