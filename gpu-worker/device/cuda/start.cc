#include "gpu-worker/device/cuda/start.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "gpu-worker/device/common/kv_size.h"
#include "gpu-worker/device/cuda/cuda_error.h"
#include "gpu-worker/model/shape.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr uint32_t kBlockTokens = 16;
// Left on the device: CUDA's own context and graphs (some 600 MB with all kernels loaded), and what the
// driver rounds up.
constexpr uint64_t kReserve = 1ull << 30;
// Threads that convert weights: more do not make the copy faster.
constexpr unsigned kMostLoaders = 8;
// Of weights drawn at random: the same on every worker.
constexpr uint64_t kShapeSeed = 1;

std::string mebibytes(uint64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

// Devices of this build: kernels are compiled for compute capability 9.0 with its own instructions.
Status choose_device(Started& s) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
    return Error{Code::kUnavailable, "the NVIDIA driver serves CUDA " + version(driver) +
                                         "; this build needs " + version(runtime) + ". Update the driver"};
  }
  if (code != cudaSuccess || count == 0)
    return Error{Code::kUnavailable,
                 std::string("no GPU: ") +
                     (code == cudaSuccess ? "the driver lists none" : cudaGetErrorString(code)) +
                     ". Check nvidia-smi, or set gpu-worker.device to cpu"};
  cudaDeviceProp properties{};
  if (Status status = check(cudaGetDeviceProperties(&properties, s.device), "asking for the device"); !status)
    return status;
  if (properties.major != 9 || properties.minor != 0)
    return Error{Code::kUnsupported, std::string(properties.name) + " has compute capability " +
                                         std::to_string(properties.major) + "." +
                                         std::to_string(properties.minor) +
                                         "; this build has kernels for 9.0"};
  if (Status status = check(cudaSetDevice(s.device), "choosing the device"); !status) return status;
  s.multiprocessors = properties.multiProcessorCount;
  s.info.kind = "cuda";
  s.info.variant = "sm_90a";
  return ok_status();
}

Status check_config(const GpuWorkerConfig& config) {
  if (config.block_tokens != kBlockTokens)
    return Error{Code::kInvalidArgument, "gpu-worker.block_tokens is " + std::to_string(config.block_tokens) +
                                             "; the cuda device has blocks of " +
                                             std::to_string(kBlockTokens)};
  if (config.max_running == 0)
    return Error{Code::kInvalidArgument, "gpu-worker.max_running is 0; allowed: at least 1"};
  return ok_status();
}

struct StepPlaces {
  StepBuffers buffers;
  LaneTables lanes;
  uint32_t* context;
  std::array<std::byte*, DecodeGraphs::kSets> inputs;
};

StepPlaces place_step(const Started& s, Layout& layout) {
  StepPlaces p;
  const size_t lanes = s.info.num_lanes + 1;  // and the scratch lane
  p.buffers = StepBuffers::place(s.description, s.limits, layout);
  p.lanes.state = layout.take<LaneState>(lanes);
  p.lanes.bias = layout.take<LogitBias>(lanes * kMaxLogitBias);
  p.lanes.suppressed = layout.take<uint32_t>(lanes * kMaxSuppressed);
  p.lanes.seen = layout.take<uint16_t>(lanes * s.description.vocab_size);
  p.lanes.last_id = layout.take<uint32_t>(lanes);
  p.context = layout.take<uint32_t>(s.info.context_length);
  for (std::byte*& inputs : p.inputs)
    inputs = layout.take<std::byte>(StepInputs::place(s.limits, nullptr).bytes);
  return p;
}

// Blocks, context and step limits from the one budget: what the device has free.
Status plan_memory(const GpuWorkerConfig& config, uint64_t weight_bytes, Started& s) {
  const ModelDescription& d = s.description;
  size_t free = 0, total = 0;
  if (Status status = check(cudaMemGetInfo(&free, &total), "asking for the device's memory"); !status)
    return status;
  s.kv = {.layers = d.layers, .kv_heads = d.kv_heads, .head_dim = d.head_dim};
  const uint64_t block_bytes = s.kv.block_values() * sizeof(bf16);
  s.info.num_lanes = config.max_running;
  if (Status status = size_kv(config, block_bytes, d.context_length, s.info); !status) return status;
  const uint64_t table =
      uint64_t{config.max_running} * ((s.info.context_length + kBlockTokens - 1) / kBlockTokens);
  s.limits = {.tokens = std::max(config.step_tokens, config.max_running),
              .rows = config.max_running,
              .blocks = static_cast<uint32_t>(std::min<uint64_t>(table, UINT32_MAX)),
              .scratch_block = s.info.num_blocks,
              .scratch_lane = config.max_running,
              .kv_heads = d.kv_heads,
              .decode_warps = static_cast<uint32_t>(s.multiprocessors) * decode_warps(d.head_dim)};
  Layout count;
  place_step(s, count);
  s.info.kv_bytes += block_bytes;  // the scratch block
  const uint64_t needed = weight_bytes + count.bytes() + s.info.kv_bytes + kReserve;
  s.info.weights_bytes = weight_bytes;
  if (needed <= free) return ok_status();
  return Error{Code::kResourceExhausted, "the cuda device needs " + mebibytes(needed) + " (weights " +
                                             mebibytes(weight_bytes) + ", kv_memory " +
                                             mebibytes(s.info.kv_bytes) + ", step buffers " +
                                             mebibytes(count.bytes()) + ", reserve " + mebibytes(kReserve) +
                                             "); free: " + mebibytes(free) + " of " + mebibytes(total) +
                                             ". Lower gpu-worker.kv_memory or max_running, choose a smaller "
                                             "model, or end the process that holds the rest"};
}

Status take_memory(uint64_t weight_bytes, Started& s) {
  const auto take = [](Memory& to, Memory::Kind kind, size_t bytes, const char* what) -> Status {
    Result<Memory> memory = Memory::create(kind, bytes, what);
    if (!memory) return memory.error();
    to = std::move(*memory);
    return ok_status();
  };
  Layout count;
  place_step(s, count);
  const size_t input_bytes = (StepInputs::place(s.limits, nullptr).bytes + 255) / 256 * 256;
  const size_t result_bytes = (s.limits.rows * sizeof(SampledToken) + 255) / 256 * 256;
  Status status = take(s.weight_memory, Memory::Kind::kDevice, weight_bytes, "weights");
  if (status) status = take(s.step_memory, Memory::Kind::kDevice, count.bytes(), "step buffers");
  if (status) status = take(s.kv_memory, Memory::Kind::kDevice, s.info.kv_bytes, "keys and values");
  if (status)
    status = take(s.pinned_memory, Memory::Kind::kPinned, DecodeGraphs::kSets * (input_bytes + result_bytes),
                  "step inputs and results");
  if (!status) return status;
  // Padding reads what nobody wrote: zeros, not what another process left.
  for (const Memory* memory : {&s.step_memory, &s.kv_memory})
    if (status) status = check(cudaMemset(memory->data(), 0, memory->size()), "clearing memory");
  if (!status) return status;
  Layout layout(s.step_memory.data());
  const StepPlaces places = place_step(s, layout);
  s.buffers = places.buffers;
  s.lanes = places.lanes;
  s.context = places.context;
  s.device_inputs = places.inputs;
  s.kv.data = reinterpret_cast<bf16*>(s.kv_memory.data());
  std::byte* pinned = s.pinned_memory.data();
  for (uint32_t i = 0; i < DecodeGraphs::kSets; ++i) {
    s.pinned_inputs[i] = std::exchange(pinned, pinned + input_bytes);
    s.results[i] = reinterpret_cast<SampledToken*>(std::exchange(pinned, pinned + result_bytes));
  }
  return ok_status();
}

}  // namespace

Result<Started> start(const GpuWorkerConfig& config, const std::string& model_path) {
  Started s;
  std::optional<Gguf> file;
  if (!is_shape(model_path)) {
    Result<Gguf> opened = Gguf::open(model_path);
    if (!opened) return opened.error();
    file.emplace(std::move(*opened));
  }
  Result<ModelDescription> description = file ? describe(*file) : describe_shape(model_path);
  if (!description) return description.error();
  s.description = std::move(*description);
  if (Status status = check_executable(s.description); !status)
    return Error{status.error().code, model_path + ": " + status.error().message};
  if (Status status = check_config(config); !status) return status.error();
  if (Status status = choose_device(s); !status) return status.error();
  Layout count;
  place_weights(s.description, count);
  if (Status status = plan_memory(config, count.bytes(), s); !status) return status.error();
  if (Status status = take_memory(count.bytes(), s); !status) return status.error();
  Layout layout(s.weight_memory.data());
  s.weights = place_weights(s.description, layout);
  const unsigned threads = config.threads != 0
                               ? config.threads
                               : std::clamp(std::thread::hardware_concurrency(), 1u, kMostLoaders);
  if (Status status = file ? load_weights(*file, s.description, s.weights, threads)
                           : random_weights(s.description, s.weights, kShapeSeed);
      !status)
    return status.error();
  Result<Matmul> matmul = Matmul::create();
  if (!matmul) return matmul.error();
  s.matmul = std::make_unique<Matmul>(std::move(*matmul));
  s.info.model = s.description.name;
  s.info.weights_hash = file ? file->header_hash() : kShapeSeed;
  s.info.vocab_size = s.description.vocab_size;
  return s;
}

}  // namespace ringmaster::gpu_worker::cuda
