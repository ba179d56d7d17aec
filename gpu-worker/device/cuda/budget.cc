#include "gpu-worker/device/cuda/budget.h"

#include <algorithm>

#include "gpu-worker/device/common/kv_size.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr uint32_t kBlockTokens = 16;
// Left on the device: CUDA's own context and graphs (some 600 MB with all kernels loaded), and what the
// driver rounds up.
constexpr uint64_t kReserve = 1ull << 30;

Status check_config(const GpuWorkerConfig& config) {
  if (config.block_tokens != kBlockTokens)
    return Error{Code::kInvalidArgument, "gpu-worker.block_tokens is " + std::to_string(config.block_tokens) +
                                             "; the cuda device has blocks of " +
                                             std::to_string(kBlockTokens)};
  if (config.max_running == 0)
    return Error{Code::kInvalidArgument, "gpu-worker.max_running is 0; allowed: at least 1"};
  return ok_status();
}

uint64_t aligned(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

StepPlaces StepPlaces::place(const ModelDescription& d, const DeviceInfo& info, const StepLimits& limits,
                             Layout& layout) {
  StepPlaces p;
  const size_t lanes = info.num_lanes + 1;  // and the scratch lane
  p.buffers = StepBuffers::place(d, limits, layout);
  p.lanes.state = layout.take<LaneState>(lanes);
  p.lanes.bias = layout.take<LogitBias>(lanes * kMaxLogitBias);
  p.lanes.suppressed = layout.take<uint32_t>(lanes * kMaxSuppressed);
  p.lanes.seen = layout.take<uint16_t>(lanes * d.vocab_size);
  p.lanes.last_id = layout.take<uint32_t>(lanes);
  p.context = layout.take<uint32_t>(info.context_length);
  for (std::byte*& inputs : p.inputs)
    inputs = layout.take<std::byte>(StepInputs::place(limits, nullptr).bytes);
  return p;
}

Result<Sizes> size_device(const GpuWorkerConfig& config, const ModelDescription& d, uint64_t weight_bytes,
                          int multiprocessors, DeviceInfo& info) {
  if (Status status = check_config(config); !status) return status.error();
  Sizes s;
  s.kv = {.layers = d.layers, .kv_heads = d.kv_heads, .head_dim = d.head_dim};
  const uint64_t block_bytes = s.kv.block_values() * sizeof(bf16);
  info.num_lanes = config.max_running;
  if (Status status = size_kv(config, block_bytes, d.context_length, info); !status) return status.error();
  const uint64_t table =
      uint64_t{config.max_running} * ((info.context_length + kBlockTokens - 1) / kBlockTokens);
  s.limits = {.tokens = std::max(config.step_tokens, config.max_running),
              .rows = config.max_running,
              .blocks = static_cast<uint32_t>(std::min<uint64_t>(table, UINT32_MAX)),
              .scratch_block = info.num_blocks,
              .scratch_lane = config.max_running,
              .kv_heads = d.kv_heads,
              .decode_warps = static_cast<uint32_t>(multiprocessors) * decode_warps(d.head_dim)};
  Layout count;
  StepPlaces::place(d, info, s.limits, count);
  info.kv_bytes += block_bytes;  // the scratch block
  info.weights_bytes = weight_bytes;
  s.input_bytes = aligned(StepInputs::place(s.limits, nullptr).bytes);
  s.result_bytes = aligned(s.limits.rows * sizeof(SampledToken));
  s.budget = {.device = "cuda",
              .model = d.name,
              .weights = weight_bytes,
              .step_buffers = count.bytes(),
              .kv = info.kv_bytes,
              .reserve = kReserve,
              .pinned = DecodeGraphs::kSets * (s.input_bytes + s.result_bytes),
              .block_bytes = block_bytes,
              .block_tokens = info.block_tokens,
              .context_length = info.context_length,
              .lanes = info.num_lanes};
  return s;
}

}  // namespace ringmaster::gpu_worker::cuda
