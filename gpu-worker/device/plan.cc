#include "gpu-worker/device/plan.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "gpu-worker/device/cpu/cpu_device.h"
#include "gpu-worker/device/cuda/cuda_device.h"
#include "shm/slot.h"

namespace ringmaster::gpu_worker {
namespace {

// Of all slots, when each has a tokenizer-worker; taken as they come.
uint64_t ring_bytes(const GpuWorkerConfig& config) {
  const shm::SlotSizes sizes;
  return config.slots * (sizes.command_bytes + sizes.prompt_bytes + sizes.token_bytes);
}

bool fits(const Budget& b) {
  return b.needed() <= b.free;
}

template <typename T>
bool number(std::string_view text, T& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc() && end == text.data() + text.size();
}

int complain(const Error& error) {
  std::fprintf(stderr, "ringmaster: %s\n", error.message.c_str());
  return error.code == Code::kInvalidArgument || error.code == Code::kMalformed ? 2 : 1;
}

}  // namespace

Result<Budget> plan_device(const GpuWorkerConfig& config, const std::string& model_path) {
  if (config.device == "cpu") return plan_cpu_device(config, model_path);
  if (config.device == "cuda") return plan_cuda_device(config, model_path);
  return Error{Code::kInvalidArgument, "a plan is for a device of cpu or cuda, not '" + config.device + "'"};
}

std::string as_text(const Budget& b, const GpuWorkerConfig& config) {
  std::string out = fmt::format("{} on {}: {} sequences of {} tokens\n\n",
                                b.model.empty() ? "model" : b.model, b.device, b.lanes, b.context_length);
  const auto line = [&](std::string_view what, uint64_t bytes, const std::string& more = "") {
    out += fmt::format("{:<18}{:>12}{}\n", what, mebibytes(bytes), more.empty() ? "" : "  " + more);
  };
  line("weights", b.weights);
  line("step buffers", b.step_buffers, "activations, inputs of steps, sampling");
  line("keys and values", b.kv,
       fmt::format("{} bytes a token, {} blocks of {} tokens", b.block_bytes / b.block_tokens,
                   b.kv / b.block_bytes, b.block_tokens));
  line("reserve", b.reserve, b.device == "cuda" ? "CUDA's context, graphs" : "the rest of the process");
  line("needed", b.needed());
  line("memory", b.free, fits(b) ? "" : "does not fit");
  out += fmt::format("{:<18}{:>12}  of {} tokens, all blocks at once\n", "sequences that fit",
                     b.sequences_that_fit(), b.context_length);
  out += '\n';
  line("host: rings", ring_bytes(config), fmt::format("{} slots", config.slots));
  line("host: pinned", b.pinned);
  return out;
}

std::string as_json(const Budget& b, const GpuWorkerConfig& config) {
  return nlohmann::ordered_json{{"device", b.device},
                                {"model", b.model},
                                {"context_length", b.context_length},
                                {"batch", b.lanes},
                                {"weights_bytes", b.weights},
                                {"step_buffers_bytes", b.step_buffers},
                                {"kv_bytes", b.kv},
                                {"kv_bytes_per_token", b.block_bytes / b.block_tokens},
                                {"block_tokens", b.block_tokens},
                                {"blocks", b.kv / b.block_bytes},
                                {"reserve_bytes", b.reserve},
                                {"needed_bytes", b.needed()},
                                {"memory_bytes", b.free},
                                {"fits", fits(b)},
                                {"sequences_that_fit", b.sequences_that_fit()},
                                {"host_rings_bytes", ring_bytes(config)},
                                {"host_pinned_bytes", b.pinned}}
             .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

int run_plan(int argc, const char* const* argv) {
  GpuWorkerConfig config;
  uint64_t memory = 0;
  const std::string_view form = argc == 8 ? argv[7] : "";
  if ((form != "text" && form != "json") || !number(argv[4], config.context_length) ||
      !number(argv[5], config.max_running) || !number(argv[6], memory))
    return complain({Code::kInvalidArgument, "usage: plan DEVICE MODEL CONTEXT BATCH MEMORY text|json"});
  config.device = argv[2];
  const std::string model = argv[3];
  if (model.ends_with(".json")) config.weights = "random";
  Result<Budget> budget = plan_device(config, model);
  if (!budget) return complain(budget.error());
  if (memory != 0) budget->free = memory;
  const std::string out = form == "json" ? as_json(*budget, config) : as_text(*budget, config);
  if (std::fwrite(out.data(), 1, out.size(), stdout) != out.size() || std::fflush(stdout) != 0)
    return complain({Code::kUnavailable, "the plan cannot be written"});
  return fits(*budget) ? 0 : kExitDoesNotFit;
}

}  // namespace ringmaster::gpu_worker
