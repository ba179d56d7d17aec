#include "gpu-worker/device/common/kv_size.h"

#include <algorithm>
#include <string>

namespace ringmaster::gpu_worker {

Status size_kv(const GpuWorkerConfig& config, uint64_t block_bytes, uint32_t longest, DeviceInfo& info) {
  if (config.context_length > longest)
    return Error{Code::kInvalidArgument,
                 "gpu-worker.context_length is " + std::to_string(config.context_length) +
                     "; allowed with this model: at most " + std::to_string(longest) + ", or 0 for that"};
  info.block_tokens = config.block_tokens;
  info.num_blocks = static_cast<uint32_t>(std::min<uint64_t>(config.kv_memory / block_bytes, UINT32_MAX - 1));
  if (info.num_blocks == 0)
    return Error{Code::kResourceExhausted, "gpu-worker.kv_memory is " + std::to_string(config.kv_memory) +
                                               " bytes; one block of " + std::to_string(config.block_tokens) +
                                               " tokens takes " + std::to_string(block_bytes)};
  info.kv_bytes = info.num_blocks * block_bytes;
  const uint32_t asked = config.context_length != 0 ? config.context_length : longest;
  info.context_length =
      static_cast<uint32_t>(std::min<uint64_t>(asked, uint64_t{info.num_blocks} * info.block_tokens));
  return ok_status();
}

}  // namespace ringmaster::gpu_worker
