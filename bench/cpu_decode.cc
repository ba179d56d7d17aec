// Tokens per second of the cpu device alone, in process: decode of 1 to 16 streams, and prefill of one
// prompt.
//
//   bench_cpu_decode [--model FILE] [--threads N] [--streams N...] [--tokens N] [--prompt N]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "base/config.h"
#include "bench/device_driver.h"
#include "gpu-worker/device/cpu/cpu_device.h"

namespace ringmaster::gpu_worker {
namespace {

struct Options {
  std::string model;
  uint32_t threads = 0;
  std::vector<uint32_t> streams = {1, 2, 4, 8, 16};
  uint32_t tokens = 128;
  uint32_t prompt = 512;
};

// A row of `count` ids from `first_position` of stream `lane`; each stream has its own stretch of blocks.
void add_row(StepPlan& plan, const DeviceInfo& info, Lane lane, uint32_t capacity, uint32_t first_position,
             const std::vector<TokenId>& ids, bool samples) {
  const uint32_t blocks = (capacity + info.block_tokens - 1) / info.block_tokens;
  plan.rows.push_back({.lane = lane,
                       .first_id = static_cast<uint32_t>(plan.ids.size()),
                       .num_tokens = static_cast<uint32_t>(ids.size()),
                       .first_position = first_position,
                       .first_block = static_cast<uint32_t>(plan.blocks.size()),
                       .num_blocks = blocks,
                       .samples = samples});
  plan.ids.insert(plan.ids.end(), ids.begin(), ids.end());
  for (uint32_t b = 0; b < blocks; ++b) plan.blocks.push_back(lane * blocks + b);
}

std::vector<TokenId> prompt_ids(const DeviceInfo& info, uint32_t count) {
  std::vector<TokenId> ids;
  for (uint32_t i = 0; i < count; ++i) ids.push_back((i * 7919 + 13) % info.vocab_size);
  return ids;
}

double seconds_since(Nanos start) {
  return static_cast<double>(monotonic_now() - start) / kSecond;
}

double decode(BenchDevice& device, uint32_t streams, uint32_t tokens) {
  const DeviceInfo& info = device->info();
  const uint32_t capacity = tokens + 16;
  StepPlan first;
  for (Lane lane = 0; lane < streams; ++lane) {
    first.opens.push_back({.lane = lane});
    add_row(first, info, lane, capacity, 0, prompt_ids(info, 8), true);
  }
  device.step(std::move(first));
  const auto submit = [&](uint32_t token) {
    StepPlan plan;
    for (Lane lane = 0; lane < streams; ++lane)
      add_row(plan, info, lane, capacity, 8 + token, {kFromLane}, true);
    device->submit(std::move(plan));
  };
  const Nanos start = monotonic_now();
  submit(0);
  for (uint32_t token = 1; token < tokens; ++token) {
    submit(token);
    device.wait();
  }
  device.wait();
  return streams * tokens / seconds_since(start);
}

double prefill(BenchDevice& device, uint32_t tokens) {
  const DeviceInfo& info = device->info();
  StepPlan plan;
  plan.opens.push_back({.lane = 0});
  add_row(plan, info, 0, tokens, 0, prompt_ids(info, tokens), true);
  const Nanos start = monotonic_now();
  device.step(std::move(plan));
  return tokens / seconds_since(start);
}

int run(const Options& options) {
  GpuWorkerConfig config;
  config.threads = options.threads;
  const Nanos start = monotonic_now();
  BenchDevice device([&](shm::Doorbell& bell) { return make_cpu_device(config, options.model, bell); });
  std::printf("cpu_decode.load %.1f ms\n", seconds_since(start) * 1e3);
  std::fprintf(stderr, "kernels: %s\n", device->info().variant.c_str());
  decode(device, 1, 8);  // first touches
  for (const uint32_t streams : options.streams) {
    std::printf("cpu_decode.decode%u %.1f tok/s\n", streams, decode(device, streams, options.tokens));
    std::fflush(stdout);
  }
  if (options.prompt > 0)
    std::printf("cpu_decode.prefill%u %.1f tok/s\n", options.prompt, prefill(device, options.prompt));
  return 0;
}

}  // namespace
}  // namespace ringmaster::gpu_worker

int main(int argc, char** argv) {
  ringmaster::gpu_worker::Options options;
  CLI::App app("Speed of the cpu device: lines `name value unit`");
  app.add_option("--model", options.model, "path of a .gguf; default: smollm2 of the model cache");
  app.add_option("--threads", options.threads, "compute threads; 0: all that the process may use");
  app.add_option("--streams", options.streams, "numbers of streams to decode");
  app.add_option("--tokens", options.tokens, "tokens a stream")->check(CLI::Range(1, 4096));
  app.add_option("--prompt", options.prompt, "tokens of the prefill; 0: none")->check(CLI::Range(0, 8192));
  CLI11_PARSE(app, argc, argv);
  using ringmaster::gpu_worker::BenchDevice;
  if (options.model.empty()) options.model = BenchDevice::take(ringmaster::resolve_model("smollm2"));
  return ringmaster::gpu_worker::run(options);
}
