#include "gpu-worker/device/common/budget.h"

#include <algorithm>

namespace ringmaster::gpu_worker {

uint64_t Budget::sequences_that_fit() const {
  const uint64_t rest = weights + step_buffers + reserve;
  const uint64_t a_sequence = blocks_of_a_sequence() * block_bytes;
  return a_sequence == 0 || rest >= free ? 0 : (free - rest) / a_sequence;
}

Status check_fits(const Budget& b) {
  if (b.needed() <= b.free) return ok_status();
  return Error{Code::kResourceExhausted,
               "the " + b.device + " device needs " + mebibytes(b.needed()) + " (weights " +
                   mebibytes(b.weights) + ", kv_memory " + mebibytes(b.kv) + ", step buffers " +
                   mebibytes(b.step_buffers) + ", reserve " + mebibytes(b.reserve) +
                   "); free: " + mebibytes(b.free) + (b.total == 0 ? "" : " of " + mebibytes(b.total)) +
                   ". Lower gpu-worker.kv_memory or max_running, choose a smaller model, or end the process "
                   "that holds the rest"};
}

uint64_t kv_memory_of_all(const GpuWorkerConfig& config, uint64_t block_bytes, uint32_t longest) {
  const uint64_t tokens = config.context_length != 0 ? config.context_length : longest;
  return (tokens + config.block_tokens - 1) / config.block_tokens * config.max_running * block_bytes;
}

std::string mebibytes(uint64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

}  // namespace ringmaster::gpu_worker
