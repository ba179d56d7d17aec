#include "gpu-worker/device/cpu/cpu_device.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/gguf.h"
#include "gpu-worker/device/common/budget.h"
#include "gpu-worker/device/common/kv_size.h"
#include "gpu-worker/device/common/plan_check.h"
#include "gpu-worker/device/cpu/decoder.h"
#include "gpu-worker/device/cpu/host.h"
#include "gpu-worker/device/cpu/kv_memory.h"
#include "gpu-worker/device/cpu/step_buffers.h"
#include "gpu-worker/device/cpu/team.h"
#include "gpu-worker/kernels/dispatch.h"
#include "gpu-worker/model/description.h"
#include "gpu-worker/model/weights.h"

namespace ringmaster::gpu_worker {
namespace {

// A model of the sizes this device is for gains nothing from more; barriers cost more with every thread.
constexpr unsigned kMostThreads = 64;
// Left to the rest of the process and the host when memory is counted: stacks, queues, the sampler's buffers.
constexpr uint64_t kMemoryReserve = 64ull << 20;

// Everything a running device consists of, in the order it is made.
struct Parts {
  ModelDescription description;
  Region memory;  // weights, then step buffers
  Region kv_region;
  KvMemory kv;
  Weights weights;
  std::unique_ptr<StepBuffers> buffers;
  DeviceInfo info;
};

class CpuDevice final : public Device {
 public:
  CpuDevice(Parts parts, const kernels::Table& table, unsigned threads, shm::Doorbell& bell)
      : parts_(std::move(parts)),
        bell_(bell),
        team_(threads),
        decoder_(parts_.description, parts_.weights, table, parts_.kv, *parts_.buffers, team_,
                 parts_.info.num_lanes),
        executor_([this] { execute(); }) {}

  ~CpuDevice() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    executor_.join();
  }

  const DeviceInfo& info() const override { return parts_.info; }

  void submit(StepPlan plan) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(plan));
    }
    wake_.notify_one();
  }

  std::optional<StepResult> retire(Nanos) override {
    const std::lock_guard lock(mutex_);
    if (finished_.empty()) return std::nullopt;
    StepResult result = std::move(finished_.front());
    finished_.pop_front();
    return result;
  }

 private:
  // The executor's life. A step that was begun is finished even when the device is being taken down.
  void execute() {
    for (;;) {
      StepPlan plan;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
        if (stop_) return;
        plan = std::move(waiting_.front());
        waiting_.pop_front();
      }
      StepResult result = run(plan);
      {
        const std::lock_guard lock(mutex_);
        finished_.push_back(std::move(result));
      }
      bell_.ring();
    }
  }

  StepResult run(const StepPlan& plan) {
    StepResult result;
    result.step = plan.step;
    if (std::optional<Error> error = impossible(plan, parts_.info)) {
      result.error = std::move(error);
      return result;
    }
    try {
      result.rows = decoder_.run(plan);
    } catch (const std::exception& e) {  // of the standard containers: out of memory
      result.rows.clear();
      result.error = Error{Code::kInternal, std::string("the cpu device failed in a step: ") + e.what()};
    }
    return result;
  }

  Parts parts_;
  shm::Doorbell& bell_;
  Team team_;
  Decoder decoder_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<StepPlan> waiting_;     // guarded by mutex_; at most kMaxInFlight with the one that runs
  std::deque<StepResult> finished_;  // guarded by mutex_
  bool stop_ = false;                // guarded by mutex_
  std::thread executor_;             // last: it uses everything above
};

Status check_config(const GpuWorkerConfig& config) {
  if (config.block_tokens == 0 || config.block_tokens % kernels::kTile != 0)
    return Error{Code::kInvalidArgument, "block_tokens is " + std::to_string(config.block_tokens) +
                                             "; the cpu device needs a multiple of " +
                                             std::to_string(kernels::kTile)};
  if (config.weights != "file")
    return Error{Code::kUnsupported,
                 "gpu-worker.weights is '" + config.weights + "'; the cpu device reads them from a file"};
  if (config.max_running == 0) return Error{Code::kInvalidArgument, "max_running is 0; allowed: at least 1"};
  return ok_status();
}

Result<KvMemory> plan_kv(const GpuWorkerConfig& config, const ModelDescription& d, DeviceInfo& info) {
  KvMemory kv{.layers = d.layers,
              .kv_heads = d.kv_heads,
              .head_dim = d.head_dim,
              .block_tokens = config.block_tokens};
  if (Status status = size_kv(config, kv.block_bytes(), d.context_length, info); !status)
    return status.error();
  return kv;
}

// A model read, and everything about it counted, before memory is taken.
struct Sized {
  Gguf file;
  ModelDescription description;
  std::unique_ptr<WeightPlan> weights;  // of `file`
  KvMemory kv;
  std::unique_ptr<StepBuffers> buffers;
  unsigned threads = 0;
  DeviceInfo info;
  Budget budget;
};

// all: as much kv_memory as max_running sequences of context_length need, whatever config.kv_memory says.
Result<std::unique_ptr<Sized>> size_device(GpuWorkerConfig config, const std::string& model_path,
                                           const kernels::Table& table, bool all) {
  if (Status status = check_config(config); !status) return status.error();
  Result<Gguf> file = Gguf::open(model_path);
  if (!file) return file.error();
  auto s = std::make_unique<Sized>(Sized{.file = std::move(*file)});
  Result<ModelDescription> description = describe(s->file);
  if (!description) return description.error();
  s->description = std::move(*description);
  const ModelDescription& d = s->description;
  if (Status status = check_executable(d); !status)
    return Error{status.error().code, model_path + ": " + status.error().message};
  Result<WeightPlan> weights = WeightPlan::make(s->file, d);
  if (!weights) return weights.error();
  s->weights = std::make_unique<WeightPlan>(std::move(*weights));
  if (all) {
    const KvMemory kv{.layers = d.layers,
                      .kv_heads = d.kv_heads,
                      .head_dim = d.head_dim,
                      .block_tokens = config.block_tokens};
    config.kv_memory = kv_memory_of_all(config, kv.block_bytes(), d.context_length);
  }
  Result<KvMemory> kv = plan_kv(config, d, s->info);
  if (!kv) return kv.error();
  s->kv = *kv;
  s->threads = std::min(config.threads != 0 ? config.threads : usable_threads(), kMostThreads);
  s->buffers = std::make_unique<StepBuffers>(d, table, s->threads);
  s->info.num_lanes = config.max_running;
  s->info.weights_bytes = s->weights->bytes();
  s->budget = {.device = "cpu",
               .model = d.name,
               .weights = s->weights->bytes(),
               .step_buffers = s->buffers->bytes(),
               .kv = s->info.kv_bytes,
               .reserve = kMemoryReserve,
               .free = available_memory(),
               .block_bytes = s->kv.block_bytes(),
               .block_tokens = config.block_tokens,
               .context_length = s->info.context_length,
               .lanes = config.max_running};
  return s;
}

}  // namespace

Result<std::unique_ptr<Device>> make_cpu_device(const GpuWorkerConfig& config, const std::string& model_path,
                                                shm::Doorbell& bell) {
  return make_cpu_device(config, model_path, bell, kernels::best_table());
}

Result<std::unique_ptr<Device>> make_cpu_device(const GpuWorkerConfig& config, const std::string& model_path,
                                                shm::Doorbell& bell, const kernels::Table& table) {
  Result<std::unique_ptr<Sized>> counted = size_device(config, model_path, table, false);
  if (!counted) return counted.error();
  Sized& sized = **counted;
  if (Status status = check_fits(sized.budget); !status) return status.error();
  const WeightPlan* const plan = sized.weights.get();
  const unsigned threads = sized.threads;
  Parts parts;
  parts.description = std::move(sized.description);
  parts.buffers = std::move(sized.buffers);
  parts.info = std::move(sized.info);

  Result<Region> memory = Region::create(plan->bytes() + parts.buffers->bytes(), "weights and step buffers");
  if (!memory) return memory.error();
  Result<Region> kv_region = Region::create(parts.info.kv_bytes, "keys and values");
  if (!kv_region) return kv_region.error();
  parts.memory = std::move(*memory);
  parts.kv_region = std::move(*kv_region);
  parts.kv = sized.kv;
  parts.kv.data = parts.kv_region.data();
  WeightPlan::Loaded loaded = plan->load(parts.memory.data(), threads);
  parts.weights = std::move(loaded.weights);
  parts.buffers->place(parts.memory.data() + plan->bytes());
  parts.info.kind = "cpu";
  parts.info.variant = table.name;
  parts.info.model = parts.description.name;
  parts.info.weights_hash = loaded.hash;
  parts.info.vocab_size = parts.description.vocab_size;
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(std::move(parts), table, threads, bell));
}

Result<Budget> plan_cpu_device(const GpuWorkerConfig& config, const std::string& model_path) {
  Result<std::unique_ptr<Sized>> sized = size_device(config, model_path, kernels::best_table(), true);
  if (!sized) return sized.error();
  return (*sized)->budget;
}

}  // namespace ringmaster::gpu_worker
