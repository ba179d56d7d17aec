#include "base/config_keys.h"

#include <algorithm>
#include <charconv>

namespace ringmaster {
namespace {

constexpr uint64_t kKiB = 1ull << 10;
constexpr uint64_t kTiB = 1ull << 40;

template <auto... Members>
auto& at(ClusterConfig& config) {
  return (config.*....*Members);
}

bool valid_name(std::string_view text) {
  constexpr size_t kMaxName = 64;
  const auto allowed_char = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= kMaxName && text[0] != '.' && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), allowed_char);
}

bool valid_text(std::string_view text) {
  return !text.empty() && text.find('\0') == std::string_view::npos;
}

bool valid_directory(std::string_view text) {
  return text.find('\0') == std::string_view::npos;
}

// Only what nobody outside this host can reach: other addresses need keys, which this version does not have.
bool valid_endpoint(std::string_view text) {
  if (text.empty()) return true;
  if (text.starts_with("ipc:///")) return text.size() > 7 && text.find('\0') == std::string_view::npos;
  if (!text.starts_with("tcp://")) return false;
  text.remove_prefix(6);
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number == 0) return false;
  return host == "127.0.0.1" || host == "localhost" || host == "[::1]";
}

using C = ClusterConfig;
using R = RouterConfig;
using T = TokenizerWorkerConfig;
using G = GpuWorkerConfig;
using F = FakeConfig;
using S = SupervisorConfig;
using L = LogConfig;

std::vector<ConfigKey> make_keys() {
  constexpr auto kRouter = &C::router;
  constexpr auto kText = &C::tokenizer_worker;
  constexpr auto kGpu = &C::gpu_worker;
  constexpr auto kFake = &G::fake;
  constexpr auto kSupervisor = &C::supervisor;
  constexpr auto kLog = &C::log;
  constexpr std::string_view r = "router", t = "tokenizer-worker", g = "gpu-worker", f = "gpu-worker.fake",
                             s = "supervisor", l = "log";
  return {
      {"", "name", TextField{at<&C::name>, valid_name, "up to 64 letters, digits, '-', '_', '.'"},
       "Name of the cluster; several clusters with different names run side by side."},
      {"", "model", TextField{at<&C::model>, valid_text, "smollm2, or a path to a .gguf file"},
       "What is served. Known names come from `ringmaster pull NAME`; relative paths start at this file's "
       "folder."},
      {"", "state_dir", TextField{at<&C::state_dir>, valid_directory, "a directory; empty for the default"},
       "Sockets, logs and state of the cluster. Default: $XDG_RUNTIME_DIR/ringmaster/NAME, or "
       "/tmp/ringmaster-UID/NAME."},

      {r, "endpoint",
       TextField{at<kRouter, &R::endpoint>, valid_endpoint,
                 "empty, ipc:///PATH, or tcp://HOST:PORT with HOST 127.0.0.1, localhost or [::1]"},
       "Where clients connect. Empty: ipc socket clients.sock in state_dir."},
      {r, "max_live_requests", CountField{at<kRouter, &R::max_live_requests>, 1, 1'000'000},
       "Requests running and waiting; more are refused as overloaded."},
      {r, "credit_tokens", CountField{at<kRouter, &R::credit_tokens>, 1, 16'384},
       "Output tokens of a stream that its client may leave unacknowledged; then the stream is paused."},
      {r, "client_lease", DurationField{at<kRouter, &R::client_lease>, 10 * kMillisecond, 3600 * kSecond},
       "A client silent for longer counts as vanished."},
      {r, "worker_timeout", DurationField{at<kRouter, &R::worker_timeout>, 10 * kMillisecond, 3600 * kSecond},
       "A worker without heartbeat for longer counts as dead."},

      {t, "count", CountField{at<kText, &T::count>, 1, 64}, "Processes; at most gpu-worker.slots."},
      {t, "encode_threads", CountField{at<kText, &T::encode_threads>, 1, 64},
       "Threads that turn prompts into tokens, beside the thread that serves the streams."},
      {t, "encode_queue", CountField{at<kText, &T::encode_queue>, 1, 65'536},
       "Prompts waiting for an encode thread."},
      {t, "encode_inline", SizeField{at<kText, &T::encode_inline>, 0, 64 * kKiB},
       "Bytes of short requests (text or ids, no chats) that the thread of the streams encodes itself in a "
       "turn, which saves two changes of thread; the rest goes to the encode threads. 0: all."},
      {t, "linger", DurationField{at<kText, &T::linger>, 0, 3600 * kSecond},
       "How long an ended stream waits for its last acknowledgement."},
      {t, "spin", DurationField{at<kText, &T::spin>, 0, 10 * kMillisecond},
       "Busy waiting before sleeping: lower latency for CPU time."},
      {t, "cores", CoresField{at<kText, &T::cores>}, "Cores the processes are bound to; empty: not bound."},
      {t, "nice", NiceField{at<kText, &T::nice>},
       "Scheduling niceness; below 0 needs the right to raise priority."},

      {g, "count", CountField{at<kGpu, &G::count>, 1, 64}, "Processes."},
      {g, "device", ChoiceField{at<kGpu, &G::device>, {"cpu", "cuda", "fake"}},
       "What computes. `fake` plays a script instead of a model, for tests and for measuring the cluster "
       "itself."},
      {g, "weights", ChoiceField{at<kGpu, &G::weights>, {"file", "random"}},
       "`random`: `model` is a shape (a config.json as in gpu-worker/model/shapes) and the cuda device draws "
       "its weights, for measuring speed; the gpu-worker alone takes one."},
      {g, "stream_priority", ChoiceField{at<kGpu, &G::stream_priority>, {"high", "normal", "low"}},
       "Of the cuda device's work beside that of other streams of the process."},
      {g, "threads", CountField{at<kGpu, &G::threads>, 0, 1024},
       "Compute threads; 0: from the cores and CPU quota this process has."},
      {g, "kv_memory", SizeField{at<kGpu, &G::kv_memory>, 64 * kKiB, 16 * kTiB},
       "Memory for keys and values."},
      {g, "block_tokens", CountField{at<kGpu, &G::block_tokens>, 1, 1024},
       "Tokens in a block of keys and values."},
      {g, "context_length", CountField{at<kGpu, &G::context_length>, 0, 1u << 24},
       "Most tokens of prompt and output together; 0: the model's. Never more than fit into kv_memory."},
      {g, "max_running", CountField{at<kGpu, &G::max_running>, 1, 4096}, "Sequences in a batch."},
      {g, "max_waiting", CountField{at<kGpu, &G::max_waiting>, 1, 1'000'000},
       "Sequences accepted but not running."},
      {g, "step_tokens", CountField{at<kGpu, &G::step_tokens>, 1, 65'536}, "Token budget of a step."},
      {g, "prefill_chunk", CountField{at<kGpu, &G::prefill_chunk>, 1, 65'536},
       "Most prompt tokens of one sequence in a step while others decode."},
      {g, "batching_window", DurationField{at<kGpu, &G::batching_window>, 0, kSecond},
       "From idle, wait up to this long for company before a step."},
      {g, "step_timeout", DurationField{at<kGpu, &G::step_timeout>, 100 * kMillisecond, 3600 * kSecond},
       "A step of the cuda device (or the fake) that takes longer is held to hang: its requests end with "
       "worker_lost and the process is replaced."},
      {g, "slots", CountField{at<kGpu, &G::slots>, 1, 64}, "Most tokenizer-workers that can be attached."},
      {g, "prefix_cache", FlagField{at<kGpu, &G::prefix_cache>},
       "Reuse keys and values of equal beginnings."},
      {g, "cores", CoresField{at<kGpu, &G::cores>}, "Cores the processes are bound to; empty: not bound."},
      {g, "nice", NiceField{at<kGpu, &G::nice>},
       "Scheduling niceness; below 0 needs the right to raise priority."},

      {f, "mode", ModeField{at<kGpu, kFake, &F::mode>},
       "hash: token k is a hash of the whole context the worker holds. text: the tokens `ids`, then the "
       "end."},
      {f, "ids", IdsField{at<kGpu, kFake, &F::ids>}, "Mode text: the tokens every request is answered with."},
      {f, "step_time", DurationField{at<kGpu, kFake, &F::step_time>, 0, 60 * kSecond},
       "Time of a step (a timer)."},
      {f, "prefill_time_per_token", DurationField{at<kGpu, kFake, &F::prefill_time_per_token>, 0, kSecond},
       "Added to a step for each prompt token in it."},
      {f, "vocab_size", CountField{at<kGpu, kFake, &F::vocab_size>, 0, 1u << 24}, "0: the model's."},
      {f, "context_length", CountField{at<kGpu, kFake, &F::context_length>, 1, 1u << 24},
       "Of the pretended model."},
      {f, "fail_at_step", StepField{at<kGpu, kFake, &F::fail_at_step>},
       "The device reports an error at this step; 0: never."},
      {f, "stall_at_step", StepField{at<kGpu, kFake, &F::stall_at_step>},
       "This step does not end; 0: never."},

      {s, "max_restarts", CountField{at<kSupervisor, &S::max_restarts>, 0, 1000},
       "Restarts of one process within restart_window; then it is given up and `status` says so."},
      {s, "restart_window",
       DurationField{at<kSupervisor, &S::restart_window>, 100 * kMillisecond, 86'400 * kSecond},
       "See max_restarts."},
      {s, "restart_delay", DurationField{at<kSupervisor, &S::restart_delay>, 0, 3600 * kSecond},
       "The first restart in a restart_window is immediate, the second waits this long, each further one "
       "twice as long, at most 5min; all of it 25 % more or less at random."},
      {s, "hang_timeout", DurationField{at<kSupervisor, &S::hang_timeout>, 3 * kSecond, 3600 * kSecond},
       "A process whose loop gives no sign of life for so long (stopped, looping) is killed and restarted."},
      {s, "ready_timeout",
       DurationField{at<kSupervisor, &S::ready_timeout>, 100 * kMillisecond, 3600 * kSecond},
       "A process that is not ready by then counts as failed."},
      {s, "drain_timeout", DurationField{at<kSupervisor, &S::drain_timeout>, 0, 3600 * kSecond},
       "How long running requests may take after `down` or the first interrupt."},

      {l, "level", ChoiceField{at<kLog, &L::level>, {"debug", "info", "warning", "error"}},
       "Lines below this level are not written."},
      {l, "max_file_bytes", SizeField{at<kLog, &L::max_file_bytes>, 4 * kKiB, kTiB},
       "Size at which a process's log file is rotated."},
      {l, "max_files", CountField{at<kLog, &L::max_files>, 1, 100}, "Log files kept for each process."},
  };
}

}  // namespace

std::string ConfigKey::path() const {
  return section.empty() ? std::string(name) : std::string(section) + "." + std::string(name);
}

std::span<const ConfigKey> config_keys() {
  static const std::vector<ConfigKey> keys = make_keys();
  return keys;
}

std::string config_reference() {
  ClusterConfig defaults;
  std::string out = "| key | default | allowed | what |\n|---|---|---|---|\n";
  for (const ConfigKey& key : config_keys())
    out += "| `" + key.path() + "` | `" + yaml_value(key.field, defaults) + "` | " + allowed(key.field) +
           " | " + std::string(key.help) + " |\n";
  return out;
}

}  // namespace ringmaster
