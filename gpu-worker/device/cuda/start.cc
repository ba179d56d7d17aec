#include "gpu-worker/device/cuda/start.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "gpu-worker/device/cuda/cuda_error.h"
#include "gpu-worker/model/shape.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

// Threads that convert weights: more do not make the copy faster.
constexpr unsigned kMostLoaders = 8;
// The chip that a plan is made for without one: an H200, and what it says to be there of its 141 GB.
constexpr int kPlannedMultiprocessors = 132;
constexpr uint64_t kPlannedMemory = 139ull << 30;
// Of weights drawn at random: the same on every worker.
constexpr uint64_t kShapeSeed = 1;

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

// What is needed, and whether the device has it.
Result<Sizes> plan_memory(const GpuWorkerConfig& config, uint64_t weight_bytes, Started& s) {
  Result<Sizes> sizes = size_device(config, s.description, weight_bytes, s.multiprocessors, s.info);
  if (!sizes) return sizes;
  size_t free = 0, total = 0;
  if (Status status = check(cudaMemGetInfo(&free, &total), "asking for the device's memory"); !status)
    return status.error();
  sizes->budget.free = free;
  sizes->budget.total = total;
  s.limits = sizes->limits;
  s.kv = sizes->kv;
  if (Status status = check_fits(sizes->budget); !status) return status.error();
  return sizes;
}

Status take_memory(const Sizes& sizes, Started& s) {
  const auto take = [](Memory& to, Memory::Kind kind, size_t bytes, const char* what) -> Status {
    Result<Memory> memory = Memory::create(kind, bytes, what);
    if (!memory) return memory.error();
    to = std::move(*memory);
    return ok_status();
  };
  Status status = take(s.weight_memory, Memory::Kind::kDevice, sizes.budget.weights, "weights");
  if (status) status = take(s.step_memory, Memory::Kind::kDevice, sizes.budget.step_buffers, "step buffers");
  if (status) status = take(s.kv_memory, Memory::Kind::kDevice, sizes.budget.kv, "keys and values");
  if (status)
    status = take(s.pinned_memory, Memory::Kind::kPinned, sizes.budget.pinned, "step inputs and results");
  if (!status) return status;
  // Padding reads what nobody wrote: zeros, not what another process left.
  for (const Memory* memory : {&s.step_memory, &s.kv_memory})
    if (status) status = check(cudaMemset(memory->data(), 0, memory->size()), "clearing memory");
  if (!status) return status;
  Layout layout(s.step_memory.data());
  const StepPlaces places = StepPlaces::place(s.description, s.info, s.limits, layout);
  s.buffers = places.buffers;
  s.lanes = places.lanes;
  s.context = places.context;
  s.device_inputs = places.inputs;
  s.kv.data = reinterpret_cast<bf16*>(s.kv_memory.data());
  std::byte* pinned = s.pinned_memory.data();
  for (uint32_t i = 0; i < DecodeGraphs::kSets; ++i) {
    s.pinned_inputs[i] = std::exchange(pinned, pinned + sizes.input_bytes);
    s.results[i] = reinterpret_cast<SampledToken*>(std::exchange(pinned, pinned + sizes.result_bytes));
  }
  return ok_status();
}

// A model read as far as its sizes go.
struct OpenedModel {
  std::optional<Gguf> file;  // none: a shape
  ModelDescription description;
  WeightForms forms;

  uint64_t weight_bytes() const {
    Layout count;
    place_weights(description, forms, count);
    return count.bytes();
  }
};

Result<OpenedModel> open_model(const GpuWorkerConfig& config, const std::string& path) {
  OpenedModel m;
  if (config.weights != "random") {
    Result<Gguf> opened = Gguf::open(path);
    if (!opened) return opened.error();
    m.file.emplace(std::move(*opened));
  }
  Result<ModelDescription> description = m.file ? describe(*m.file) : describe_shape(path);
  if (!description) return description.error();
  m.description = std::move(*description);
  if (Status status = check_executable(m.description); !status)
    return Error{status.error().code, path + ": " + status.error().message};
  m.forms = m.file ? forms_of(*m.file, m.description) : forms_of(m.description);
  return m;
}

}  // namespace

Result<Budget> plan(GpuWorkerConfig config, const std::string& model_path) {
  Result<OpenedModel> model = open_model(config, model_path);
  if (!model) return model.error();
  const ModelDescription& d = model->description;
  const KvView kv{.layers = d.layers, .kv_heads = d.kv_heads, .head_dim = d.head_dim};
  config.kv_memory = kv_memory_of_all(config, kv.block_values() * sizeof(bf16), d.context_length);
  DeviceInfo info;
  Result<Sizes> sizes = size_device(config, d, model->weight_bytes(), kPlannedMultiprocessors, info);
  if (!sizes) return sizes.error();
  sizes->budget.free = sizes->budget.total = kPlannedMemory;
  return sizes->budget;
}

Result<Started> start(const GpuWorkerConfig& config, const std::string& model_path) {
  Started s;
  Result<OpenedModel> model = open_model(config, model_path);
  if (!model) return model.error();
  const std::optional<Gguf>& file = model->file;
  s.description = std::move(model->description);
  if (Status status = choose_device(s); !status) return status.error();
  Layout count;
  place_weights(s.description, model->forms, count);
  const Result<Sizes> sizes = plan_memory(config, count.bytes(), s);
  if (!sizes) return sizes.error();
  if (Status status = take_memory(*sizes, s); !status) return status.error();
  Layout layout(s.weight_memory.data());
  s.weights = place_weights(s.description, model->forms, layout);
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
