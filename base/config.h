// `cluster.yaml`, read once into immutable values that are handed down; there are no environment switches and
// no globals. docs/cluster.md lists every key. Unknown keys, wrong types and values out of range are errors
// that name file, line, key, value, allowed range and the nearest known key.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace ringmaster {

struct RouterConfig {
  std::string endpoint;                // clients; empty: ipc socket "clients.sock" in the state directory
  uint32_t max_live_requests = 4096;   // running and waiting; more are refused (overloaded)
  uint32_t credit_tokens = 1024;       // unacknowledged output tokens a stream may have
  Nanos client_lease = 30 * kSecond;   // a client silent for longer counts as vanished
  Nanos worker_timeout = 2 * kSecond;  // a worker without heartbeat for longer counts as dead
  bool operator==(const RouterConfig&) const = default;
};

struct TokenizerWorkerConfig {
  uint32_t count = 2;
  uint32_t encode_threads = 1;
  uint32_t encode_queue = 1024;   // prompts waiting for an encode thread
  uint64_t encode_inline = 1024;  // bytes of short requests a turn that the stream thread encodes itself
  Nanos linger = 30 * kSecond;    // how long an ended stream waits for its last acknowledgement
  Nanos spin = 0;                 // busy waiting before sleeping
  std::vector<int> cores;         // empty: not bound
  int nice = 0;
  bool operator==(const TokenizerWorkerConfig&) const = default;
};

// `device: fake` plays a script instead of a model: tokens come from a rule, time from a timer.
struct FakeConfig {
  enum class Mode { kHash, kText };
  Mode mode =
      Mode::kHash;  // hash: token k is a hash of the whole context the worker holds; text: `text` in a loop
  std::vector<uint32_t> ids;  // mode text: the ids that every request is answered with, then its end
  Nanos step_time = 2 * kMillisecond;
  Nanos prefill_time_per_token = 0;
  uint32_t vocab_size = 0;  // 0: of the model
  uint32_t context_length = 8192;
  uint64_t fail_at_step = 0;   // 0: never; the device reports an error at this step
  uint64_t stall_at_step = 0;  // 0: never; this step does not retire
  bool operator==(const FakeConfig&) const = default;
};

struct GpuWorkerConfig {
  uint32_t count = 1;
  std::string device = "cpu";              // cpu, cuda, fake
  std::string weights = "file";            // file: of the model; random: the model is a shape
  std::string stream_priority = "normal";  // of the cuda device's work: high, normal, low
  uint32_t threads = 0;                    // compute threads; 0: from affinity and CPU quota
  uint64_t kv_memory = 512ull << 20;
  uint32_t block_tokens = 16;
  uint32_t context_length = 0;        // 0: the model's
  uint32_t max_running = 64;          // sequences in a batch (lanes)
  uint32_t max_waiting = 1024;        // accepted but not running
  uint32_t step_tokens = 512;         // token budget of a step
  uint32_t prefill_chunk = 256;       // most prompt tokens of one sequence in a step while others decode
  Nanos batching_window = 0;          // wait up to this long for company before a step from idle
  Nanos step_timeout = 20 * kSecond;  // a step of cuda or fake that takes longer hangs: the process ends
  uint32_t slots = 16;                // most tokenizer-workers
  bool prefix_cache = true;
  std::vector<int> cores;
  int nice = 0;
  FakeConfig fake;
  bool operator==(const GpuWorkerConfig&) const = default;
};

struct SupervisorConfig {
  uint32_t max_restarts = 5;  // in restart_window, then the worker is given up
  Nanos restart_window = 60 * kSecond;
  Nanos restart_delay = kSecond;      // before the second restart in a window, doubled for each further one
  Nanos hang_timeout = 10 * kSecond;  // a process whose loop is silent for longer is killed and restarted
  Nanos ready_timeout = 60 * kSecond;
  Nanos drain_timeout = 30 * kSecond;
  bool operator==(const SupervisorConfig&) const = default;
};

struct LogConfig {
  std::string level = "info";  // debug info warning error
  uint64_t max_file_bytes = 32ull << 20;
  uint32_t max_files = 4;
  bool operator==(const LogConfig&) const = default;
};

struct ClusterConfig {
  std::string source = "(built-in)";  // file name for messages
  std::string name = "default";
  std::string model = "smollm2";  // a name that `ringmaster pull` knows, or a path to a .gguf
  std::string state_dir;          // resolved: $XDG_RUNTIME_DIR/ringmaster/NAME, or /tmp/ringmaster-UID/NAME
  RouterConfig router;
  TokenizerWorkerConfig tokenizer_worker;
  GpuWorkerConfig gpu_worker;
  SupervisorConfig supervisor;
  LogConfig log;

  bool operator==(const ClusterConfig&) const = default;

  // Fixed names inside state_dir. Processes are told the configuration file and their own name, nothing else.
  std::string client_endpoint() const;                       // router.endpoint or ipc://STATE/clients.sock
  std::string worker_endpoint() const;                       // ipc://STATE/workers.sock
  std::string ring_socket(const std::string& worker) const;  // STATE/WORKER.ring
  std::string log_file(const std::string& process) const;    // STATE/logs/PROCESS.jsonl
};

// Unix sockets: sizeof(sockaddr_un::sun_path) without the final 0.
inline constexpr size_t kMaxSocketPath = 107;

// The default configuration as text: exactly the documented cluster.yaml at the project's root.
std::string_view default_cluster_yaml();

Result<ClusterConfig> parse_cluster_yaml(std::string_view text, const std::string& source);
Result<ClusterConfig> load_cluster_yaml(const std::string& path);
// The built-in default under another name (as `ringmaster --name`).
Result<ClusterConfig> default_cluster(const std::string& name);
// The resolved configuration as YAML that parses to an equal value; the supervisor writes it to
// STATE/cluster.yaml.
std::string to_yaml(const ClusterConfig& config);

// Where `model:` lives: a path as it is, a known name (base/models.h) in the model cache. Error: kNotFound
// with the remedy.
Result<std::string> resolve_model(const std::string& model);
std::string model_cache_dir();  // $XDG_CACHE_HOME/ringmaster/models or ~/.cache/ringmaster/models

}  // namespace ringmaster
