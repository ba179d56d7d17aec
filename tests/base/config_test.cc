#include "base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "base/config_keys.h"
#include "base/models.h"

namespace ringmaster {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

ClusterConfig parsed(std::string_view text) {
  Result<ClusterConfig> config = parse_cluster_yaml(text, "cluster.yaml");
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? config.value() : ClusterConfig{};
}

std::string refusal(std::string_view text) {
  const Result<ClusterConfig> config = parse_cluster_yaml(text, "my.yaml");
  return config.ok() ? std::string("accepted") : config.error().message;
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Variable {  // sets an environment variable while it lives
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Variable() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

class Folder {
 public:
  Folder() {
    std::string pattern = "/tmp/config_test.XXXXXX";
    path = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

TEST(Config, BuiltInDefaultIsTheDocumentedFile) {
  EXPECT_EQ(default_cluster_yaml(), slurp(RINGMASTER_SOURCE_DIR "/cluster.yaml"));
}

TEST(Config, BuiltInDefaultHasTheDefaultValues) {
  const ClusterConfig from_file = parsed(default_cluster_yaml());
  EXPECT_EQ(from_file, parsed(""));
  EXPECT_EQ(from_file.gpu_worker.kv_memory, 512ull << 20);
  EXPECT_EQ(from_file.gpu_worker.fake, FakeConfig{});
  EXPECT_EQ(from_file.supervisor, SupervisorConfig{});
  EXPECT_EQ(from_file.model, "smollm2");
}

TEST(Config, ReadsEveryKindOfValue) {
  const ClusterConfig config = parsed(R"(
name: lab-1
state_dir: /run/rm
router: {endpoint: "tcp://127.0.0.1:7070", client_lease: 500ms}
tokenizer-worker:
  count: 3
  cores: 2-4,0
  nice: -5
gpu-worker:
  device: fake
  kv_memory: 1GiB
  prefix_cache: false
  cores: [1, 1, 0]
  fake:
    mode: text
    ids: [5, 6, 7]
    step_time: 1.5ms
    fail_at_step: 18446744073709551615
log: {level: debug}
)");
  EXPECT_EQ(config.name, "lab-1");
  EXPECT_EQ(config.client_endpoint(), "tcp://127.0.0.1:7070");
  EXPECT_EQ(config.worker_endpoint(), "ipc:///run/rm/workers.sock");
  EXPECT_EQ(config.ring_socket("gpu-worker.0"), "/run/rm/gpu-worker.0.ring");
  EXPECT_EQ(config.log_file("router"), "/run/rm/logs/router.jsonl");
  EXPECT_EQ(config.router.client_lease, 500 * kMillisecond);
  EXPECT_EQ(config.tokenizer_worker.count, 3u);
  EXPECT_THAT(config.tokenizer_worker.cores, ::testing::ElementsAre(0, 2, 3, 4));
  EXPECT_EQ(config.tokenizer_worker.nice, -5);
  EXPECT_EQ(config.gpu_worker.device, "fake");
  EXPECT_EQ(config.gpu_worker.kv_memory, 1ull << 30);
  EXPECT_FALSE(config.gpu_worker.prefix_cache);
  EXPECT_THAT(config.gpu_worker.cores, ::testing::ElementsAre(0, 1));
  EXPECT_EQ(config.gpu_worker.fake.mode, FakeConfig::Mode::kText);
  EXPECT_THAT(config.gpu_worker.fake.ids, ::testing::ElementsAre(5, 6, 7));
  EXPECT_EQ(config.gpu_worker.fake.step_time, 1'500'000);
  EXPECT_EQ(config.gpu_worker.fake.fail_at_step, UINT64_MAX);
  EXPECT_EQ(config.log.level, "debug");
}

TEST(Config, UnknownKeysNameFileLineAndTheNearestKey) {
  EXPECT_THAT(
      refusal("name: x\ngpu-worker:\n  kv_memroy: 1GiB\n"),
      StartsWith("my.yaml:3: unknown key 'gpu-worker.kv_memroy'; nearest known key: 'gpu-worker.kv_memory'"));
  EXPECT_THAT(refusal("tokeniser-worker:\n  count: 1\n"),
              HasSubstr("my.yaml:1: unknown key 'tokeniser-worker'; nearest "
                        "known key: 'tokenizer-worker'"));
  EXPECT_THAT(refusal("router:\n  max_live: 5\n"),
              HasSubstr("nearest known key: 'router.max_live_requests'"));
  EXPECT_THAT(refusal("kv_memory: 1GiB\n"), HasSubstr("nearest known key: 'gpu-worker.kv_memory'"));
  EXPECT_THAT(refusal("gpu-worker:\n  fakes: {}\n"), HasSubstr("nearest known key: 'gpu-worker.fake'"));
  EXPECT_THAT(refusal("gpu-worker: {fake: {steptime: 1ms}}"), HasSubstr("'gpu-worker.fake.step_time'"));
}

TEST(Config, WrongValuesNameFileLineKeyValueAndRange) {
  EXPECT_EQ(refusal("\n\nrouter:\n  max_live_requests: 0\n"),
            "my.yaml:4: router.max_live_requests is '0'; allowed: 1 to 1000000");
  EXPECT_EQ(
      refusal("supervisor: {drain_timeout: 2 weeks}"),
      "my.yaml:1: supervisor.drain_timeout is '2 weeks'; allowed: 0s to 1h (units ns, us, ms, s, min, h)");
  EXPECT_EQ(
      refusal("gpu-worker:\n  kv_memory: 512MB"),
      "my.yaml:2: gpu-worker.kv_memory is '512MB'; allowed: 64KiB to 16TiB (units B, KiB, MiB, GiB, TiB)");
  EXPECT_EQ(refusal("log:\n  level: loud"),
            "my.yaml:2: log.level is 'loud'; allowed: debug, info, warning, error");
  EXPECT_EQ(refusal("gpu-worker: {prefix_cache: yes}"),
            "my.yaml:1: gpu-worker.prefix_cache is 'yes'; allowed: true, false");
  EXPECT_THAT(refusal("gpu-worker: {count: -1}"), HasSubstr("gpu-worker.count is '-1'; allowed: 1 to 64"));
  EXPECT_THAT(refusal("gpu-worker: {count: 4294967297}"), HasSubstr("allowed: 1 to 64"));
  EXPECT_THAT(refusal("gpu-worker: {count: [1]}"), HasSubstr("gpu-worker.count is a list; allowed: 1 to 64"));
  EXPECT_THAT(refusal("gpu-worker: {count: {a: 1}}"), HasSubstr("gpu-worker.count is a section"));
  EXPECT_THAT(refusal("gpu-worker: {count: }"), HasSubstr("gpu-worker.count is empty"));
  EXPECT_THAT(refusal("gpu-worker: {nice: 20}"), HasSubstr("allowed: -20 to 19"));
  EXPECT_THAT(refusal("gpu-worker: {cores: 3-1}"), HasSubstr("gpu-worker.cores is '3-1'"));
  EXPECT_THAT(refusal("gpu-worker: {cores: [[1]]}"), HasSubstr("gpu-worker.cores is a list"));
  EXPECT_THAT(refusal("gpu-worker: {cores: 0-2000000000}"), HasSubstr("each 0 to 8191"));
  EXPECT_THAT(refusal("gpu-worker: {device: tpu}"), HasSubstr("allowed: cpu, cuda, fake"));
  EXPECT_THAT(refusal("name: ../x"), HasSubstr("name is '../x'"));
  EXPECT_THAT(refusal("name: ''"), HasSubstr("name is ''"));
  EXPECT_THAT(refusal("router: hello"), HasSubstr("section 'router' is not a list of"));
  EXPECT_THAT(refusal("[1, 2]"), HasSubstr("my.yaml:1: the file is not a list of"));
}

TEST(Config, SEC_03_EndpointsOutsideThisHostAreRefused) {
  for (const char* endpoint :
       {"tcp://0.0.0.0:7070", "tcp://*:7070", "tcp://192.168.1.2:7070", "tcp://127.0.0.1",
        "tcp://127.0.0.1:0", "tcp://127.0.0.1:70000", "inproc://x", "ipc://relative"})
    EXPECT_THAT(refusal("router: {endpoint: '" + std::string(endpoint) + "'}"),
                HasSubstr("router.endpoint is '" + std::string(endpoint) + "'; allowed: empty, ipc:///PATH"));
  EXPECT_EQ(parsed("router: {endpoint: 'tcp://[::1]:1'}").router.endpoint, "tcp://[::1]:1");
}

TEST(Config, DuplicatesAndBrokenYamlNameTheLine) {
  EXPECT_EQ(refusal("name: a\nname: b\n"), "my.yaml:2: key 'name' is there twice");
  EXPECT_THAT(refusal("router:\n  endpoint: [\n"), StartsWith("my.yaml:"));
  EXPECT_THAT(refusal("name: a\n---\nname: b\n"), HasSubstr("a second document"));
  EXPECT_THAT(refusal(std::string(100'000, '[')), HasSubstr(": nested too deeply"));
  EXPECT_THAT(refusal("? [a]\n: b\n"), HasSubstr("is not a word"));
}

TEST(Config, ChecksAcrossKeysNameTheLine) {
  EXPECT_EQ(refusal("gpu-worker: {slots: 2}\ntokenizer-worker:\n  count: 3\n"),
            "my.yaml:3: tokenizer-worker.count is 3; allowed: at most gpu-worker.slots, which is 2");
  EXPECT_THAT(refusal("gpu-worker: {fake: {vocab_size: 10, ids: [9, 10]}}"),
              HasSubstr("holds 10; allowed: below"));
}

TEST(Config, ToYamlParsesToAnEqualValue) {
  Variable runtime("XDG_RUNTIME_DIR", nullptr);
  ClusterConfig config = parsed("{}");
  config.name = "other";
  config.model = "/models/a \"quoted\" name.gguf";
  config.state_dir = "/run/x: y";
  config.router.endpoint = "tcp://localhost:9";
  config.tokenizer_worker.cores = {0, 3};
  config.gpu_worker.fake.mode = FakeConfig::Mode::kText;
  config.gpu_worker.fake.ids = {1, 2};
  config.gpu_worker.fake.step_time = 1'234'567;
  config.gpu_worker.kv_memory = (64ull << 10) + 1;
  config.gpu_worker.prefix_cache = false;
  config.supervisor.restart_window = 90 * kSecond;
  config.log.level = "error";
  Result<ClusterConfig> again = parse_cluster_yaml(to_yaml(config), config.source);
  ASSERT_TRUE(again.ok()) << again.error().message << "\n" << to_yaml(config);
  EXPECT_EQ(again.value(), config);
}

TEST(Config, EveryKeyIsDocumented) {
  const std::string page = slurp(RINGMASTER_SOURCE_DIR "/docs/cluster.md");
  EXPECT_NE(page.find(config_reference()), std::string::npos) << "docs/cluster.md must hold this table:\n"
                                                              << config_reference();
}

struct AnyValue {
  template <typename T>
  operator T() const;  // NOLINT: only named in unevaluated expressions
};

// The number of members of an aggregate: the most initialisers it takes.
template <typename T, typename... Values>
constexpr size_t members() {
  if constexpr (requires { T{Values{}..., AnyValue{}}; })
    return members<T, Values..., AnyValue>();
  else
    return sizeof...(Values);
}

// A member without a key could not be set, and would be lost on the way through STATE/cluster.yaml.
TEST(Config, EveryMemberHasAKey) {
  std::map<std::string_view, size_t> keys;
  std::set<std::string> paths;
  for (const ConfigKey& key : config_keys()) {
    ++keys[key.section];
    paths.insert(key.path());
  }
  EXPECT_EQ(paths.size(), config_keys().size());
  EXPECT_EQ(keys["router"], members<RouterConfig>());
  EXPECT_EQ(keys["tokenizer-worker"], members<TokenizerWorkerConfig>());
  EXPECT_EQ(keys["gpu-worker"], members<GpuWorkerConfig>() - 1);  // fake is a section
  EXPECT_EQ(keys["gpu-worker.fake"], members<FakeConfig>());
  EXPECT_EQ(keys["supervisor"], members<SupervisorConfig>());
  EXPECT_EQ(keys["log"], members<LogConfig>());
  EXPECT_EQ(keys[""], members<ClusterConfig>() - 6);  // source, five sections
  EXPECT_EQ(keys["router"], 5u);
}

TEST(Config, StateDirFollowsTheRuntimeDirectory) {
  Folder folder;
  const std::string own = "/tmp/ringmaster-" + std::to_string(getuid());
  {
    Variable runtime("XDG_RUNTIME_DIR", folder.path.c_str());
    EXPECT_EQ(parsed("name: lab").state_dir, folder.path + "/ringmaster/lab");
    EXPECT_EQ(default_cluster("two").value().state_dir, folder.path + "/ringmaster/two");
    EXPECT_EQ(default_cluster("two").value().name, "two");
  }
  Variable runtime("XDG_RUNTIME_DIR", nullptr);
  EXPECT_EQ(parsed("name: lab").state_dir, own + "/lab");
  Variable gone("XDG_RUNTIME_DIR", "/no/such/directory");
  EXPECT_EQ(parsed("name: lab").state_dir, own + "/lab");
  EXPECT_FALSE(default_cluster("a/b").ok());
}

TEST(Config, OPS_07_LongDefaultDirectoriesBecomeShortHashedOnes) {
  Folder folder;
  const std::string deep = folder.path + "/" + std::string(150, 'd');
  ASSERT_TRUE(std::filesystem::create_directory(deep));
  Variable runtime("XDG_RUNTIME_DIR", deep.c_str());
  const ClusterConfig one = parsed("name: one");
  const ClusterConfig two = parsed("name: two");
  EXPECT_THAT(one.state_dir, ::testing::MatchesRegex("/tmp/ringmaster-[0-9]+/h-[0-9a-f]{16}"));
  EXPECT_EQ(one.state_dir, parsed("name: one").state_dir);
  EXPECT_NE(one.state_dir, two.state_dir);
  EXPECT_LE(one.ring_socket("gpu-worker.63").size(), kMaxSocketPath);
}

TEST(Config, OPS_07_LongGivenDirectoriesAreRefusedWithTheNumbers) {
  // STATE + "/gpu-worker.0.ring" (18 bytes) must fit 107.
  EXPECT_EQ(parsed("state_dir: /" + std::string(88, 's')).state_dir.size(), 89u);
  EXPECT_THAT(refusal("name: x\nstate_dir: /" + std::string(89, 's')),
              ::testing::AllOf(
                  StartsWith("my.yaml:2: state_dir is '/sss"),
                  HasSubstr("has 108 bytes, a Unix socket path at most 107; choose a shorter directory")));
  EXPECT_THAT(refusal("router: {endpoint: 'ipc:///" + std::string(107, 'e') + "'}"),
              HasSubstr("has 108 bytes"));
}

TEST(Config, RelativePathsStartAtTheFile) {
  Folder folder;
  std::ofstream(folder.path + "/c.yaml") << "model: models/tiny.gguf\nstate_dir: state/\n";
  const Result<ClusterConfig> config = load_cluster_yaml(folder.path + "/c.yaml");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config.value().model, folder.path + "/models/tiny.gguf");
  EXPECT_EQ(config.value().state_dir, folder.path + "/state");
  EXPECT_EQ(parsed("model: other-name").model, "other-name");
  Variable home("HOME", "/home/somebody");
  EXPECT_EQ(parsed("model: ~/m.gguf").model, "/home/somebody/m.gguf");
  EXPECT_EQ(parsed("model: ~//a/../m.gguf").model, "/home/somebody/m.gguf");  // written again, it stays
}

// yaml-cpp would replace or drop them, and another model than the one that was written would be looked for.
TEST(Config, TextIsUtf8WithoutControlCharacters) {
  EXPECT_THAT(refusal("name: a\nmodel: \xFB.gguf\n"), StartsWith("my.yaml:2: bytes that are not UTF-8"));
  EXPECT_THAT(refusal(std::string("model: a\0b\n", 11)), StartsWith("my.yaml:1: the control character 0"));
  EXPECT_THAT(refusal("model: a\x7F\n"), HasSubstr("the control character 127"));
  EXPECT_EQ(parsed("model:\t/models/\xC3\xA9.gguf\r\n").model, "/models/\xC3\xA9.gguf");
}

// yaml-cpp's LoadAll never came back from these.
TEST(Config, TextThatBelongsToNoValueIsRefused) {
  EXPECT_THAT(refusal(",na~lmax:ve_re\n 0"), StartsWith("my.yaml:1: "));
  EXPECT_THAT(refusal("name: a\n]\n"), StartsWith("my.yaml:2: "));
}

TEST(Config, FilesThatCannotBeReadAreRefused) {
  Folder folder;
  EXPECT_EQ(load_cluster_yaml(folder.path + "/none.yaml").error().code, Code::kNotFound);
  EXPECT_THAT(load_cluster_yaml(folder.path).error().message, HasSubstr("not a regular file"));
  std::ofstream(folder.path + "/big.yaml") << std::string((1 << 20) + 1, '#');
  EXPECT_EQ(load_cluster_yaml(folder.path + "/big.yaml").error().code, Code::kTooLarge);
}

TEST(Config, ResolvesModels) {
  Folder folder;
  Variable cache("XDG_CACHE_HOME", folder.path.c_str());
  EXPECT_EQ(model_cache_dir(), folder.path + "/ringmaster/models");
  EXPECT_THAT(resolve_model("smollm2").error().message, HasSubstr("run `ringmaster pull smollm2`"));
  EXPECT_EQ(resolve_model("smollm2").error().code, Code::kNotFound);
  std::filesystem::create_directories(model_cache_dir());
  const std::string file = model_cache_dir() + "/SmolLM2-135M-Instruct.Q4_1.gguf";
  std::ofstream(file) << "x";
  EXPECT_EQ(resolve_model("smollm2").value(), file);
  EXPECT_EQ(resolve_model(file).value(), file);
  EXPECT_THAT(resolve_model("/no/such.gguf").error().message, HasSubstr("/no/such.gguf does not exist"));
  std::filesystem::create_symlink("loop.gguf", folder.path + "/loop.gguf");  // fails for root too
  EXPECT_EQ(resolve_model(folder.path + "/loop.gguf").error().code, Code::kUnavailable);
  EXPECT_THAT(resolve_model(folder.path + "/loop.gguf").error().message,
              HasSubstr("cannot be looked at: Too many levels of symbolic links"));
  EXPECT_THAT(resolve_model("llama9").error().message, HasSubstr("one of: smollm2"));
}

TEST(ConfigValues, Durations) {
  EXPECT_EQ(parse_duration("2ms"), 2 * kMillisecond);
  EXPECT_EQ(parse_duration("0"), 0);
  EXPECT_EQ(parse_duration("1.5 s"), 1'500'000'000);
  EXPECT_EQ(parse_duration("1h"), 3600 * kSecond);
  EXPECT_EQ(parse_duration("0.000000001s"), 1);
  for (const char* bad : {"", "2", "ms", "-2ms", "2 m", "1e3s", "1.s", ".5s", "1.5ns", "0.0000000001s",
                          "2ms ", "999999999999h", "1.2.3s"})
    EXPECT_EQ(parse_duration(bad), std::nullopt) << bad;
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(90 * kSecond), "90s");
  EXPECT_EQ(duration_text(120 * kSecond), "2min");
  EXPECT_EQ(duration_text(1'234'567), "1234567ns");
}

TEST(ConfigValues, Sizes) {
  EXPECT_EQ(parse_size("512MiB"), 512ull << 20);
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("10B"), 10u);
  for (const char* bad : {"", "1GB", "-1", "1.5GiB", "99999999999999999999", "16777216TiB", "MiB"})
    EXPECT_EQ(parse_size(bad), std::nullopt) << bad;
  EXPECT_EQ(size_text(512ull << 20), "512MiB");
  EXPECT_EQ(size_text(1000), "1000B");
}

TEST(ConfigValues, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("same", "same"), 0u);
}

}  // namespace
}  // namespace ringmaster
