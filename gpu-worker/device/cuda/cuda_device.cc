#include "gpu-worker/device/cuda/cuda_device.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/gguf.h"
#include "base/log.h"
#include "base/process.h"
#include "gpu-worker/device/common/plan_check.h"
#include "gpu-worker/device/cuda/cuda_error.h"
#include "gpu-worker/device/cuda/decoder.h"
#include "gpu-worker/device/cuda/graphs.h"
#include "gpu-worker/device/cuda/start.h"

namespace ringmaster::gpu_worker {
namespace cuda {
namespace {

constexpr uint32_t kSets = DecodeGraphs::kSets;
static_assert(kSets >= Device::kMaxInFlight);

// What the loop thread has to end a worker whose step hangs, before the watcher does: as much as a busy turn.
constexpr Nanos kLoopGrace = 50 * kMillisecond;

struct Stream {
  cudaStream_t handle = nullptr;
  ~Stream() {
    if (handle != nullptr) (void)cudaStreamDestroy(handle);
  }
};

struct Event {
  cudaEvent_t handle = nullptr;
  ~Event() {
    if (handle != nullptr) (void)cudaEventDestroy(handle);
  }
};

class CudaDevice final : public Device {
 public:
  CudaDevice(Started parts, shm::Doorbell& bell)
      : parts_(std::move(parts)),
        bell_(bell),
        decoder_({.description = parts_.description,
                  .weights = parts_.weights,
                  .buffers = parts_.buffers,
                  .kv = parts_.kv,
                  .lanes = parts_.lanes,
                  .matmul = *parts_.matmul,
                  .multiprocessors = parts_.multiprocessors}) {}

  // Streams, events, graphs, a first step of each kind. After it the device serves.
  Status prepare(const std::string& stream_priority) {
    int lowest = 0, highest = 0;  // as CUDA counts: the highest is the lowest number
    Status s = check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for priorities");
    const int priority = stream_priority == "high" ? highest : stream_priority == "low" ? lowest : 0;
    for (cudaStream_t* stream : {&compute_.handle, &copies_.handle})
      if (s)
        s = check(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, priority), "making a stream");
    for (Set& set : sets_) {
      if (s)
        s = check(cudaEventCreateWithFlags(&set.copied.handle, cudaEventDisableTiming), "making an event");
      if (s) s = check(cudaEventCreateWithFlags(&set.done.handle, cudaEventDisableTiming), "making an event");
    }
    if (!s) return s;
    for (uint32_t i = 0; i < kSets; ++i) {
      sets_[i].host = StepInputs::place(parts_.limits, parts_.pinned_inputs[i]);
      sets_[i].device = StepInputs::place(parts_.limits, parts_.device_inputs[i]);
      sets_[i].results = parts_.results[i];
    }
    // cuBLASLt chooses algorithms and loads kernels at a shape's first use, which must not happen inside a
    // capture.
    const auto enqueue = [&](cudaStream_t stream, uint32_t rows, uint32_t set) {
      const StepShape shape{.tokens = rows, .samples = rows, .real_samples = rows, .decode_only = true};
      return decoder_.enqueue(stream, shape, sets_[set].device, sets_[set].results);
    };
    *sets_[0].host.piece_count = 0;
    for (const uint32_t rows : DecodeGraphs::classes(parts_.info.num_lanes)) {
      if (s = warm_up(rows, enqueue); !s) return s;
    }
    Result<DecodeGraphs> graphs = DecodeGraphs::capture(compute_.handle, parts_.info.num_lanes, enqueue);
    if (!graphs) return graphs.error();
    graphs_ = std::move(*graphs);
    if (s = check(cudaStreamSynchronize(compute_.handle), "the first steps"); !s) return s;
    watcher_ = std::thread([this] { watch(); });
    return s;
  }

  ~CudaDevice() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    if (watcher_.joinable()) watcher_.join();
    if (compute_.handle != nullptr) (void)cudaStreamSynchronize(compute_.handle);
  }

  const DeviceInfo& info() const override { return parts_.info; }

  void submit(StepPlan plan) override {
    Flight flight{.step = plan.step, .set = next_set_};
    flight.error = enqueue(plan, flight);
    next_set_ = (next_set_ + 1) % kSets;
    {
      const std::lock_guard lock(mutex_);
      flying_.push_back(std::move(flight));
    }
    wake_.notify_one();
  }

  std::optional<StepResult> retire(Nanos) override {
    Flight flight;
    {
      const std::lock_guard lock(mutex_);
      if (landed_.empty()) return std::nullopt;
      flight = std::move(landed_.front());
      landed_.pop_front();
    }
    StepResult result;
    result.step = flight.step;
    result.error = std::move(flight.error);
    if (!result.error)
      for (size_t i = 0; i < flight.lanes.size(); ++i)
        result.rows.push_back(sampled(flight.lanes[i], sets_[flight.set].results[i]));
    return result;
  }

 private:
  struct Set {
    StepInputs host, device;
    SampledToken* results = nullptr;
    Event copied, done;
  };

  struct Flight {
    uint64_t step = 0;
    uint32_t set = 0;
    std::vector<Lane> lanes;  // of the samples
    std::optional<Error> error;
  };

  template <typename Enqueue>
  Status warm_up(uint32_t rows, const Enqueue& enqueue) {
    std::fill_n(sets_[0].host.ids, rows, 0);
    std::fill_n(sets_[0].host.lane, rows, parts_.limits.scratch_lane);
    std::fill_n(sets_[0].host.position, rows, 0);
    std::fill_n(sets_[0].host.kv_slot, rows, parts_.limits.scratch_block * parts_.info.block_tokens);
    std::fill_n(sets_[0].host.sample_token, rows, 0);
    std::fill_n(sets_[0].host.samples, rows, SampleRow{parts_.limits.scratch_lane, 0});
    Status s = check(cudaMemcpyAsync(parts_.device_inputs[0], parts_.pinned_inputs[0],
                                     sets_[0].host.table_offset, cudaMemcpyHostToDevice, compute_.handle),
                     "copying a step's inputs");
    if (s) s = enqueue(compute_.handle, rows, 0);
    return s ? check(cudaStreamSynchronize(compute_.handle),
                     "a first step of " + std::to_string(rows) + " rows")
             : s;
  }

  // A step that fails half-way leaves lanes and keys nobody knows: nothing is enqueued behind it.
  std::optional<Error> enqueue(const StepPlan& plan, Flight& flight) {
    if (!lost_) lost_ = try_enqueue(plan, flight);
    return lost_;
  }

  std::optional<Error> try_enqueue(const StepPlan& plan, Flight& flight) {
    if (std::optional<Error> error = impossible(plan, parts_.info)) return error;
    Set& set = sets_[flight.set];
    // 0: not a step for a graph.
    const uint32_t graph_rows =
        decode_only(plan) ? graphs_.class_of(static_cast<uint32_t>(plan.rows.size())).value_or(0) : 0;
    Result<StepShape> shape = fill_inputs(plan, parts_.limits, graph_rows, set.host);
    if (!shape) return shape.error();
    for (const StepRow& row : plan.rows)
      if (row.samples) flight.lanes.push_back(row.lane);
    Status s = copy_inputs(flight.set, *shape);
    for (const LaneOpen& open : plan.opens)
      if (s) s = open_lane(open);
    if (s) s = check(cudaStreamWaitEvent(compute_.handle, set.copied.handle), "waiting for a step's inputs");
    if (s)
      s = graph_rows != 0 ? graphs_.launch(graph_rows, flight.set, compute_.handle)
                          : decoder_.enqueue(compute_.handle, *shape, set.device, set.results);
    if (s) s = check(cudaEventRecord(set.done.handle, compute_.handle), "marking the end of a step");
    if (s) return std::nullopt;
    return s.error();
  }

  // The device's copy was read by the step that had this set before, which has retired.
  Status copy_inputs(uint32_t index, const StepShape& shape) {
    const StepInputs& host = sets_[index].host;
    std::byte* const to = parts_.device_inputs[index];
    const std::byte* const from = parts_.pinned_inputs[index];
    Status s = check(cudaMemcpyAsync(to, from, host.table_offset, cudaMemcpyHostToDevice, copies_.handle),
                     "copying a step's inputs");
    if (s && shape.blocks > 0)
      s = check(cudaMemcpyAsync(to + host.table_offset, from + host.table_offset,
                                shape.blocks * sizeof(uint32_t), cudaMemcpyHostToDevice, copies_.handle),
                "copying block tables");
    return s ? check(cudaEventRecord(sets_[index].copied.handle, copies_.handle), "marking a copy") : s;
  }

  // Rare beside steps: from pageable memory, which CUDA has taken when the call returns.
  Status open_lane(const LaneOpen& open) {
    LaneState state{.temperature = open.sampling.temperature,
                    .top_p = open.sampling.top_p,
                    .min_p = open.sampling.min_p,
                    .repetition_penalty = open.sampling.repetition_penalty,
                    .frequency_penalty = open.sampling.frequency_penalty,
                    .presence_penalty = open.sampling.presence_penalty,
                    .top_k = open.sampling.top_k,
                    .min_tokens = open.min_tokens,
                    .logprobs = open.logprobs,
                    .penalises = open.sampling.repetition_penalty != 1 ||
                                 open.sampling.frequency_penalty != 0 || open.sampling.presence_penalty != 0,
                    .seed = open.sampling.seed};
    std::vector<LogitBias> bias = open.sampling.logit_bias;
    std::erase_if(bias, [&](const LogitBias& b) { return b.id >= parts_.info.vocab_size; });
    std::vector<TokenId> suppressed = open.suppressed;
    std::erase_if(suppressed, [&](TokenId id) { return id >= parts_.info.vocab_size; });
    if (bias.size() > kMaxLogitBias || suppressed.size() > kMaxSuppressed)
      return Error{Code::kInternal, "a request with " + std::to_string(bias.size()) + " logit biases and " +
                                        std::to_string(suppressed.size()) + " suppressed ids; at most " +
                                        std::to_string(kMaxLogitBias) + " and " +
                                        std::to_string(kMaxSuppressed)};
    state.num_bias = static_cast<uint32_t>(bias.size());
    state.num_suppressed = static_cast<uint32_t>(suppressed.size());
    const LaneTables& lanes = parts_.lanes;
    const auto copy = [&](void* to, const void* from, size_t bytes) {
      if (bytes == 0) return ok_status();
      return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, compute_.handle),
                   "opening a lane");
    };
    Status s = copy(lanes.state + open.lane, &state, sizeof state);
    if (s)
      s = copy(lanes.bias + size_t{open.lane} * kMaxLogitBias, bias.data(), bias.size() * sizeof(LogitBias));
    if (s)
      s = copy(lanes.suppressed + size_t{open.lane} * kMaxSuppressed, suppressed.data(),
               suppressed.size() * sizeof(TokenId));
    const uint32_t count = static_cast<uint32_t>(open.context.size());
    if (count > parts_.info.context_length)
      return Error{Code::kInternal, "a lane opened with " + std::to_string(count) +
                                        " ids of context; at most " +
                                        std::to_string(parts_.info.context_length)};
    if (s) s = copy(parts_.context, open.context.data(), count * sizeof(TokenId));
    if (!s) return s;
    return check(cuda::open_lane(
                     {.stream = compute_.handle, .overlap = false, .multiprocessors = parts_.multiprocessors},
                     lanes, open.lane, parts_.info.vocab_size, parts_.context, count, open.prompt_count),
                 "opening a lane");
  }

  static SampledRow sampled(Lane lane, const SampledToken& token) {
    SampledRow row{.lane = lane, .id = token.id, .logprob = token.logprob};
    row.failed = token.failed != 0;
    for (uint32_t i = 0; i < token.num_top; ++i) row.top.push_back({token.top_id[i], token.top_logprob[i]});
    return row;
  }

  // The watcher's life: waits for the oldest step in flight. A step that failed to start has nothing to wait
  // for, and what comes after one that failed is worth nothing. Ends when it is told to and nothing flies, so
  // that a stop in a step that hangs is bounded too.
  void watch() {
    Status status = check(cudaSetDevice(parts_.device), "choosing the device");
    for (;;) {
      Flight flight;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stop_ || !flying_.empty(); });
        if (flying_.empty()) return;
        flight = std::move(flying_.front());
        flying_.pop_front();
      }
      if (status && !flight.error) status = wait_for(sets_[flight.set].done.handle, flight.step);
      if (!status && !flight.error) flight.error = status.error();
      {
        const std::lock_guard lock(mutex_);
        landed_.push_back(std::move(flight));
      }
      bell_.ring();
    }
  }

  // Polls: a step takes a few milliseconds and the time from its end to the ring counts. The worker's loop
  // ends the process when a step hangs (info().step_limit); where it cannot, as it is itself inside the
  // driver or already waits for this thread, it is done here.
  Status wait_for(cudaEvent_t done, uint64_t step) const {
    const Nanos deadline = monotonic_now() + parts_.info.step_limit + kLoopGrace;
    for (;;) {
      const Nanos now = monotonic_now();
      const cudaError_t state = cudaEventQuery(done);
      if (state == cudaSuccess) return ok_status();
      if (state != cudaErrorNotReady) return check(state, "step " + std::to_string(step));
      if (now < deadline) continue;
      log::error("ending: step {} did not end within {} ms (gpu-worker.step_timeout), nor did this process",
                 step, parts_.info.step_limit / kMillisecond);
      _exit(kExitDeviceHung);
    }
  }

  Started parts_;
  shm::Doorbell& bell_;
  Decoder decoder_;
  Stream compute_, copies_;
  std::array<Set, kSets> sets_;
  DecodeGraphs graphs_;
  uint32_t next_set_ = 0;
  std::optional<Error> lost_;  // why nothing is enqueued any more

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Flight> flying_, landed_;  // guarded by mutex_; together at most kMaxInFlight
  bool stop_ = false;                   // guarded by mutex_
  std::thread watcher_;                 // last: it uses everything above
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Device>> make_cuda_device(const GpuWorkerConfig& config, const std::string& model_path,
                                                 shm::Doorbell& bell) {
  Result<cuda::Started> parts = cuda::start(config, model_path);
  if (!parts) return parts.error();
  parts->info.step_limit = config.step_timeout;
  auto device = std::make_unique<cuda::CudaDevice>(std::move(*parts), bell);
  if (Status s = device->prepare(config.stream_priority); !s) return s.error();
  return std::unique_ptr<Device>(std::move(device));
}

Result<Budget> plan_cuda_device(const GpuWorkerConfig& config, const std::string& model_path) {
  return cuda::plan(config, model_path);
}

}  // namespace ringmaster::gpu_worker
