#include "launcher/preflight.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/gguf.h"
#include "base/unique_fd.h"

namespace ringmaster::launcher {
namespace {

// Workers find the router by its socket, and each other through it.
constexpr int kRouterStage = 0;
constexpr int kWorkerStage = 1;

// The router first: it refuses what is new, says that it is not ready, and ends once nothing runs. Until then
// the running streams need all three kinds.
constexpr int kStopRouter = 0;
constexpr int kStopTokenizerWorkers = 1;
constexpr int kStopGpuWorkers = 2;

// What is needed is rounded up, what is there down, so that a refusal never shows two equal numbers.
std::string needed(uint64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}
std::string there(uint64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

Status check_programs(const std::vector<ChildSpec>& children) {
  for (const ChildSpec& child : children)
    if (access(child.argv[0].c_str(), X_OK) != 0)
      return Error{Code::kNotFound, "the program of " + child.name + " is missing: " + child.argv[0] + ": " +
                                        std::strerror(errno) + "; build it, or install it beside ringmaster"};
  return ok_status();
}

Status check_ipc_free(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return ok_status();
  if (!S_ISSOCK(info.st_mode))
    return Error{Code::kAlreadyExists, "router.endpoint: " + path + " exists and is not a socket"};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), std::min(path.size() + 1, sizeof address.sun_path));
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN)
    return Error{Code::kAlreadyExists, "router.endpoint: another process listens on ipc://" + path};
  return ok_status();  // left over by a dead one; the router replaces it
}

Status check_tcp_free(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0)
    return Error{Code::kInvalidArgument, "router.endpoint: host '" + host + "': " + gai_strerror(error)};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const UniqueFd fd(socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // as ZeroMQ does
  if (bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0 && listen(fd.get(), 1) == 0) return ok_status();
  const Code code = errno == EADDRINUSE ? Code::kAlreadyExists : Code::kPermissionDenied;
  return Error{code,
               "router.endpoint: port " + port + " on " + host + " cannot be used: " + std::strerror(errno)};
}

ChildSpec child(const std::string& kind, const std::string& name, const ClusterConfig& config,
                const std::string& programs) {
  ChildSpec spec;
  spec.name = name;
  spec.argv = {
      programs + "/" + kind,   "--config", config.state_dir + "/cluster.yaml", "--name", name, "--ready-fd",
      std::to_string(kReadyFd)};
  return spec;
}

}  // namespace

std::string own_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

std::vector<ChildSpec> plan_children(const ClusterConfig& config, const std::string& programs) {
  std::vector<ChildSpec> children;
  children.push_back(child("router", "router", config, programs));
  children.back().start_stage = kRouterStage;
  children.back().stop_stage = kStopRouter;
  const auto add = [&](const std::string& kind, uint32_t count, const auto& section, int stop_stage) {
    for (uint32_t i = 0; i < count; ++i) {
      ChildSpec spec = child(kind, kind + "." + std::to_string(i), config, programs);
      spec.cores = section.cores;
      spec.nice = section.nice;
      spec.start_stage = kWorkerStage;
      spec.stop_stage = stop_stage;
      children.push_back(std::move(spec));
    }
  };
  add("gpu-worker", config.gpu_worker.count, config.gpu_worker, kStopGpuWorkers);
  add("tokenizer-worker", config.tokenizer_worker.count, config.tokenizer_worker, kStopTokenizerWorkers);
  return children;
}

Result<MemoryNeed> memory_need(const ClusterConfig& config) {
  const Result<std::string> path = resolve_model(config.model);
  if (!path.ok()) return path.error();
  const Result<Gguf> model = Gguf::open(path.value());  // refuses truncated files
  if (!model.ok()) return model.error();
  MemoryNeed need;
  if (config.gpu_worker.device == "fake") return need;  // takes the vocabulary only
  for (const GgufTensor& tensor : model.value().tensors()) need.weights += tensor.data.size();
  need.kv =
      config.gpu_worker.kv_memory * config.gpu_worker.count;  // at most 16 TiB * 64; the weights are shared
  return need;
}

Status check_memory(const MemoryNeed& need, const std::optional<AvailableMemory>& available) {
  if (!available || need.weights + need.kv <= available->bytes) return ok_status();
  return Error{Code::kResourceExhausted, "too little memory: " + needed(need.weights + need.kv) +
                                             " needed (weights " + needed(need.weights) +
                                             ", keys and values " + needed(need.kv) + "), " +
                                             there(available->bytes) + " there (" + available->limit +
                                             "); lower gpu-worker.kv_memory or gpu-worker.count"};
}

Status check_endpoint_free(const std::string& endpoint) {
  if (endpoint.starts_with("ipc://")) return check_ipc_free(endpoint.substr(6));
  if (!endpoint.starts_with("tcp://")) return ok_status();
  const size_t colon = endpoint.rfind(':');
  std::string host = endpoint.substr(6, colon - 6);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  return check_tcp_free(host, endpoint.substr(colon + 1));
}

Status preflight(const ClusterConfig& config, const std::vector<ChildSpec>& children) {
  Status programs = check_programs(children);
  if (!programs.ok()) return programs;
  const Result<MemoryNeed> need = memory_need(config);
  if (!need.ok()) return need.error();
  Status memory = check_memory(need.value(), available_memory());
  if (!memory.ok()) return memory;
  return check_endpoint_free(config.router.endpoint);
}

}  // namespace ringmaster::launcher
