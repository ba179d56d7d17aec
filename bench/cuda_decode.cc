// Speed of the cuda device in process, driven as the worker drives it (two steps in flight): load, steady
// decode by batch size, prefill. Steady decode as in the literature: batch * 224 / (time of 256 tokens - time
// of 32 tokens), prompts of 128 ids.
//
//   bench_cuda_decode [--model FILE] [--batch N...] [--prompt N...]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "base/config.h"
#include "bench/device_driver.h"
#include "gpu-worker/device/cuda/cuda_device.h"

namespace ringmaster::gpu_worker {
namespace {

struct Options {
  std::string model;
  std::vector<uint32_t> batches = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  std::vector<uint32_t> prompts = {512, 2048, 8192};
  uint64_t kv_gigabytes = 48;
  bool prefill_only = false;
};

constexpr uint32_t kPrompt = 128, kShort = 32, kLong = 256;

class Bench {
 public:
  Bench(const GpuWorkerConfig& config, const std::string& model)
      : device_([&](shm::Doorbell& bell) { return make_cuda_device(config, model, bell); }) {}

  const DeviceInfo& info() const { return device_->info(); }

  void add_row(StepPlan& plan, Lane lane, uint32_t capacity, uint32_t first, uint32_t count,
               bool decode) const {
    const uint32_t blocks = (capacity + info().block_tokens - 1) / info().block_tokens;
    plan.rows.push_back({.lane = lane,
                         .first_id = static_cast<uint32_t>(plan.ids.size()),
                         .num_tokens = count,
                         .first_position = first,
                         .first_block = static_cast<uint32_t>(plan.blocks.size()),
                         .num_blocks = (first + count + info().block_tokens - 1) / info().block_tokens,
                         .samples = true,
                         .token_number = first});
    for (uint32_t i = 0; i < count; ++i)
      plan.ids.push_back(decode ? kFromLane : ((first + i) * 7919 + lane * 31 + 13) % info().vocab_size);
    for (uint32_t b = 0; b < plan.rows.back().num_blocks; ++b) plan.blocks.push_back(lane * blocks + b);
  }

  void step(StepPlan plan) {
    device_->submit(std::move(plan));
    device_.wait(kSpin);
  }

  // Prompts of all lanes, then `tokens` steps; the seconds of the steps alone.
  double decode(uint32_t batch, uint32_t tokens) {
    const uint32_t capacity = kPrompt + kLong + 16;
    for (Lane lane = 0; lane < batch; ++lane) {
      StepPlan plan;
      plan.opens.push_back({.lane = lane});
      add_row(plan, lane, capacity, 0, kPrompt, false);
      step(std::move(plan));
    }
    const Nanos start = monotonic_now();
    for (uint32_t t = 0; t < tokens; ++t) {
      StepPlan plan;
      for (Lane lane = 0; lane < batch; ++lane) add_row(plan, lane, capacity, kPrompt + t, 1, true);
      device_->submit(std::move(plan));
      if (t > 0) device_.wait(kSpin);
    }
    device_.wait(kSpin);
    return static_cast<double>(monotonic_now() - start) / kSecond;
  }

  double prefill(uint32_t tokens) {
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      StepPlan plan;
      plan.opens.push_back({.lane = 0});
      add_row(plan, 0, tokens, 0, tokens, false);
      const Nanos start = monotonic_now();
      step(std::move(plan));
      times.push_back(static_cast<double>(monotonic_now() - start) / kSecond);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  // Waking up is not what is measured.
  static constexpr Nanos kSpin = 100 * kMicrosecond;
  BenchDevice device_;
};

int run(const Options& options) {
  GpuWorkerConfig config;
  config.device = "cuda";
  if (options.model.ends_with(".json")) config.weights = "random";
  config.kv_memory = options.kv_gigabytes << 30;
  config.max_running = *std::max_element(options.batches.begin(), options.batches.end());
  config.step_tokens = std::max(
      1u, options.prompts.empty() ? 0 : *std::max_element(options.prompts.begin(), options.prompts.end()));
  const Nanos start = monotonic_now();
  Bench bench(config, options.model);
  std::printf("cuda_decode.start %.3f s\n", static_cast<double>(monotonic_now() - start) / kSecond);
  for (const uint32_t batch : options.batches) {
    if (options.prefill_only) break;
    bench.decode(batch, 8);
    std::vector<double> rates;
    for (int i = 0; i < 3; ++i) {
      const double few = bench.decode(batch, kShort), many = bench.decode(batch, kLong);
      rates.push_back(batch * (kLong - kShort) / (many - few));
    }
    std::sort(rates.begin(), rates.end());
    std::printf("cuda_decode.batch%u %.1f tok/s (%.3f ms a step)\n", batch, rates[1], batch / rates[1] * 1e3);
    std::fflush(stdout);
  }
  for (const uint32_t prompt : options.prompts)
    std::printf("cuda_decode.prefill%u %.2f ms\n", prompt, bench.prefill(prompt) * 1e3);
  return 0;
}

}  // namespace
}  // namespace ringmaster::gpu_worker

int main(int argc, char** argv) {
  ringmaster::gpu_worker::Options options;
  CLI::App app("Speed of the cuda device: lines `name value unit`");
  app.add_option("--model", options.model, "path of a .gguf, or of a shape (.json) for random weights")
      ->required();
  app.add_option("--batch", options.batches, "batch sizes to decode with")->check(CLI::Range(1, 1024));
  app.add_option("--prompt", options.prompts, "prompt lengths to prefill")->check(CLI::Range(1, 131072));
  app.add_flag("--prefill-only", options.prefill_only, "no decode");
  app.add_option("--kv-gigabytes", options.kv_gigabytes, "memory of keys and values")
      ->check(CLI::Range(1, 120));
  CLI11_PARSE(app, argc, argv);
  return ringmaster::gpu_worker::run(options);
}
