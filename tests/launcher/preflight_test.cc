#include "launcher/preflight.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "support.h"

namespace ringmaster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string golden(const std::string& name) {
  return std::string(RINGMASTER_SOURCE_DIR) + "/tests/data/gguf/" + name + "/model.gguf";
}

TEST(Plan, NamesProgramsArgumentsAndStages) {
  ClusterConfig config;
  config.state_dir = "/s";
  config.gpu_worker.count = 2;
  config.gpu_worker.cores = {1};
  config.tokenizer_worker.count = 1;
  config.tokenizer_worker.nice = 3;
  const std::vector<ChildSpec> children = plan_children(config, "/bin");
  std::vector<std::string> names;
  for (const ChildSpec& child : children) names.push_back(child.name);
  EXPECT_THAT(names, ElementsAre("router", "gpu-worker.0", "gpu-worker.1", "tokenizer-worker.0"));
  EXPECT_THAT(children[2].argv, ElementsAre("/bin/gpu-worker", "--config", "/s/cluster.yaml", "--name",
                                            "gpu-worker.1", "--ready-fd", "3"));
  EXPECT_THAT(children[1].cores, ElementsAre(1));
  EXPECT_EQ(children[3].nice, 3);
  EXPECT_LT(children[0].start_stage, children[1].start_stage);
  EXPECT_LT(children[0].stop_stage, children[3].stop_stage);
  EXPECT_LT(children[3].stop_stage, children[1].stop_stage);
}

TEST(Preflight, MissingProgramsAreNamed) {
  Folder folder;
  ClusterConfig config;
  config.model = golden("q4_1");
  const Status status = preflight(config, plan_children(config, folder.path));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("the program of router is missing: " + (folder / "router")));
}

TEST(Preflight, MemoryIsWeightsAndKv) {
  ClusterConfig config;
  config.model = golden("q8_0");
  config.gpu_worker.count = 3;
  config.gpu_worker.kv_memory = 1 << 20;
  const Result<MemoryNeed> need = memory_need(config);
  ASSERT_TRUE(need.ok()) << need.error().message;
  EXPECT_EQ(need.value().kv, 3u << 20);
  EXPECT_GT(need.value().weights, 500'000u);  // the file has 532,736 bytes
  EXPECT_LT(need.value().weights, 532'736u);
  config.gpu_worker.device = "fake";
  EXPECT_EQ(memory_need(config).value().kv + memory_need(config).value().weights, 0u);
}

TEST(Preflight, TooLittleMemoryNamesBothNumbers) {
  const MemoryNeed need{100 << 20, 400ull << 20};
  EXPECT_TRUE(check_memory(need, AvailableMemory{500ull << 20, "x"}).ok());
  EXPECT_TRUE(check_memory(need, std::nullopt).ok());
  const Status status = check_memory(need, AvailableMemory{(500ull << 20) - 1, "MemAvailable of the host"});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kResourceExhausted);
  EXPECT_EQ(status.error().message,
            "too little memory: 500 MiB needed (weights 100 MiB, keys and values 400 MiB), 499 MiB there "
            "(MemAvailable of the host); lower gpu-worker.kv_memory or gpu-worker.count");
}

TEST(Preflight, MissingAndTruncatedModelsAreRefused) {
  Folder folder;
  ClusterConfig config;
  config.model = folder / "none.gguf";
  EXPECT_THAT(memory_need(config).error().message, HasSubstr("none.gguf does not exist"));
  const std::string bytes = slurp(golden("q4_1"));
  spill(folder / "cut.gguf", bytes.substr(0, bytes.size() / 2));
  config.model = folder / "cut.gguf";
  EXPECT_THAT(memory_need(config).error().message, HasSubstr("the file is truncated or damaged"));
}

TEST(Preflight, ATcpPortInUseIsRefused) {
  const UniqueFd holder(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(holder.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(holder.get(), 1), 0);
  socklen_t size = sizeof address;
  getsockname(holder.get(), reinterpret_cast<sockaddr*>(&address), &size);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const Status status = check_endpoint_free("tcp://127.0.0.1:" + port);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kAlreadyExists);
  EXPECT_EQ(status.error().message,
            "router.endpoint: port " + port + " on 127.0.0.1 cannot be used: Address already in use");
  EXPECT_TRUE(check_endpoint_free("").ok());
}

TEST(Preflight, AnIpcPathIsRefusedWhileSomebodyListens) {
  Folder folder;
  const std::string path = folder / "c.sock";
  EXPECT_TRUE(check_endpoint_free("ipc://" + path).ok());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  {
    const UniqueFd holder(socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(bind(holder.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(listen(holder.get(), 1), 0);
    EXPECT_THAT(check_endpoint_free("ipc://" + path).error().message,
                HasSubstr("another process listens on ipc://"));
  }
  EXPECT_TRUE(check_endpoint_free("ipc://" + path).ok());  // left over by a dead process
  spill(folder / "file", "");
  EXPECT_THAT(check_endpoint_free("ipc://" + (folder / "file")).error().message,
              HasSubstr("is not a socket"));
}

}  // namespace
}  // namespace ringmaster::launcher
