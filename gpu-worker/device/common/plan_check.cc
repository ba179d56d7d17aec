#include "gpu-worker/device/common/plan_check.h"

#include <string>

namespace ringmaster::gpu_worker {

std::optional<Error> impossible(const StepPlan& plan, const DeviceInfo& info) {
  const auto error = [&](const std::string& what) {
    return Error{Code::kInternal, "step " + std::to_string(plan.step) + ": " + what};
  };
  for (const LaneOpen& open : plan.opens)
    if (open.lane >= info.num_lanes) return error("opens lane " + std::to_string(open.lane));
  for (const TokenId id : plan.ids)
    if (id >= info.vocab_size && id != kFromLane) return error("has the id " + std::to_string(id));
  for (const BlockId block : plan.blocks)
    if (block >= info.num_blocks) return error("has the block " + std::to_string(block));
  for (const StepRow& row : plan.rows) {
    const uint64_t end = uint64_t{row.first_position} + row.num_tokens;
    if (row.lane >= info.num_lanes || row.num_tokens == 0 ||
        uint64_t{row.first_id} + row.num_tokens > plan.ids.size() ||
        uint64_t{row.first_block} + row.num_blocks > plan.blocks.size() ||
        end > uint64_t{row.num_blocks} * info.block_tokens)
      return error("the row of lane " + std::to_string(row.lane) + " does not fit its ids, blocks or lanes");
  }
  return std::nullopt;
}

}  // namespace ringmaster::gpu_worker
