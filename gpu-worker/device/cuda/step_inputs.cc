#include "gpu-worker/device/cuda/step_inputs.h"

#include <algorithm>
#include <string>

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kMostParts = 256;  // of a row: 128k keys in pieces of 512

uint32_t ceil_div(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

// The piece length with which the warps are done soonest, by a simple account: they work in rounds, a piece
// costs its blocks and, for what surrounds them (the query, joining parts), as much as three more.
uint32_t keys_of_a_piece(const StepPlan& plan, const StepLimits& limits) {
  constexpr uint32_t kSurroundings = 3;
  uint32_t longest = 0;
  for (const StepRow& row : plan.rows)
    if (row.num_tokens == 1) longest = std::max(longest, row.first_position + 1);
  const uint32_t slots = std::max(1u, limits.decode_warps / limits.kv_heads);
  uint32_t best = kFewestPieceKeys;
  uint64_t least = UINT64_MAX;
  for (uint32_t parts = 1; parts <= kMostParts; parts += parts < 8 ? 1 : parts / 4) {
    const uint32_t keys =
        std::max(kFewestPieceKeys, ceil_div(ceil_div(longest, parts), kBlockTokens) * kBlockTokens);
    uint64_t pieces = 0;
    for (const StepRow& row : plan.rows)
      if (row.num_tokens == 1) pieces += ceil_div(row.first_position + 1, keys);
    const uint64_t cost = (pieces + slots - 1) / slots * (kSurroundings + keys / kBlockTokens);
    if (cost < least && pieces <= StepInputs::max_pieces(limits)) {
      least = cost;
      best = keys;
    }
    if (keys == kFewestPieceKeys) break;
  }
  return best;
}

class Filler {
 public:
  Filler(const StepPlan& plan, const StepLimits& limits, const StepInputs& host)
      : plan_(plan), limits_(limits), host_(host), piece_keys_(keys_of_a_piece(plan, limits)) {}

  Result<StepShape> fill(uint32_t pad_to) {
    if (plan_.ids.size() > limits_.tokens || plan_.rows.size() > limits_.rows ||
        plan_.blocks.size() > limits_.blocks)
      return Error{Code::kInternal, "step " + std::to_string(plan_.step) + " has " +
                                        std::to_string(plan_.ids.size()) + " tokens, " +
                                        std::to_string(plan_.rows.size()) + " rows and " +
                                        std::to_string(plan_.blocks.size()) + " blocks; the device takes " +
                                        std::to_string(limits_.tokens) + ", " + std::to_string(limits_.rows) +
                                        " and " + std::to_string(limits_.blocks)};
    shape_.decode_only = cuda::decode_only(plan_);
    shape_.blocks = static_cast<uint32_t>(plan_.blocks.size());
    std::copy(plan_.blocks.begin(), plan_.blocks.end(), host_.block_table);
    for (const StepRow& row : plan_.rows) add_row(row);
    // Longest first, so that nobody starts on a long tile when the others have ended.
    std::sort(host_.tiles, host_.tiles + shape_.tiles, [](const PrefillTile& a, const PrefillTile& b) {
      return a.first_position + a.tokens > b.first_position + b.tokens;
    });
    *host_.piece_count = shape_.pieces;
    shape_.real_samples = shape_.samples;
    if (shape_.decode_only)
      while (shape_.tokens < pad_to) add_padding();
    return shape_;
  }

 private:
  void add_row(const StepRow& row) {
    const uint32_t first = shape_.tokens;
    for (uint32_t i = 0; i < row.num_tokens; ++i) {
      const uint32_t position = row.first_position + i;
      const uint32_t block = plan_.blocks[row.first_block + position / kBlockTokens];
      add_token(plan_.ids[row.first_id + i], row.lane, position,
                block * kBlockTokens + position % kBlockTokens);
    }
    add_groups(row, first);
    if (row.num_tokens == 1) {
      add_pieces(row, first);
    } else {
      for (uint32_t i = 0; i < row.num_tokens; i += kPrefillTile)
        host_.tiles[shape_.tiles++] = {first + i, std::min(kPrefillTile, row.num_tokens - i),
                                       row.first_position + i, row.first_block};
    }
    if (row.samples) add_sample(shape_.tokens - 1, {row.lane, row.token_number});
  }

  void add_groups(const StepRow& row, uint32_t first_token) {
    if (shape_.decode_only) return;
    for (uint32_t i = 0; i < row.num_tokens;) {
      const uint32_t slot = host_.kv_slot[first_token + i];
      const uint32_t tokens = std::min(row.num_tokens - i, kBlockTokens - slot % kBlockTokens);
      host_.groups[shape_.groups++] = {first_token + i, tokens, slot};
      i += tokens;
    }
  }

  void add_pieces(const StepRow& row, uint32_t token) {
    const uint32_t keys = row.first_position + 1, parts = ceil_div(keys, piece_keys_);
    const uint32_t first_part = parts_;
    if (parts > 1) parts_ += parts;
    for (uint32_t i = 0; i < parts; ++i)
      host_.pieces[shape_.pieces++] = {.token = token,
                                       .first_block = row.first_block,
                                       .first_key = i * piece_keys_,
                                       .keys = std::min(piece_keys_, keys - i * piece_keys_),
                                       .part = parts > 1 ? first_part + i : 0,
                                       .first_part = first_part,
                                       .parts = parts};
  }

  void add_padding() {
    add_token(0, limits_.scratch_lane, 0, limits_.scratch_block * kBlockTokens);
    add_sample(shape_.tokens - 1, {limits_.scratch_lane, 0});
  }

  void add_token(uint32_t id, uint32_t lane, uint32_t position, uint32_t slot) {
    const uint32_t t = shape_.tokens++;
    host_.ids[t] = id;
    host_.lane[t] = lane;
    host_.position[t] = position;
    host_.kv_slot[t] = slot;
  }

  void add_sample(uint32_t token, SampleRow row) {
    host_.sample_token[shape_.samples] = token;
    host_.samples[shape_.samples++] = row;
  }

  const StepPlan& plan_;
  const StepLimits& limits_;
  const StepInputs& host_;
  const uint32_t piece_keys_;
  StepShape shape_;
  uint32_t parts_ = 0;
};

}  // namespace

// One for each row, and a few rounds of what runs at once.
uint32_t StepInputs::max_pieces(const StepLimits& limits) {
  constexpr uint32_t kRounds = 4;
  return limits.rows + kRounds * limits.decode_warps / limits.kv_heads + 1;
}

// Every row may end in a tile that is not full.
uint32_t StepInputs::max_tiles(const StepLimits& limits) {
  return limits.tokens / kPrefillTile + limits.rows + 1;
}

// A row begins and ends in the middle of a block.
uint32_t StepInputs::max_groups(const StepLimits& limits) {
  return limits.tokens / kBlockTokens + 2 * limits.rows + 1;
}

StepInputs StepInputs::place(const StepLimits& limits, std::byte* base) {
  Layout layout(base);
  StepInputs in;
  in.piece_count = layout.take<uint32_t>(1);
  in.ids = layout.take<uint32_t>(limits.tokens);
  in.lane = layout.take<uint32_t>(limits.tokens);
  in.position = layout.take<uint32_t>(limits.tokens);
  in.kv_slot = layout.take<uint32_t>(limits.tokens);
  in.sample_token = layout.take<uint32_t>(limits.rows);
  in.samples = layout.take<SampleRow>(limits.rows);
  in.pieces = layout.take<DecodePiece>(max_pieces(limits));
  in.tiles = layout.take<PrefillTile>(max_tiles(limits));
  in.groups = layout.take<BlockTokens>(max_groups(limits));
  layout.take<uint32_t>(0);
  in.table_offset = layout.bytes();
  in.block_table = layout.take<uint32_t>(limits.blocks);
  in.bytes = layout.bytes();
  return in;
}

bool decode_only(const StepPlan& plan) {
  return std::all_of(plan.rows.begin(), plan.rows.end(),
                     [](const StepRow& row) { return row.num_tokens == 1 && row.samples; });
}

Result<StepShape> fill_inputs(const StepPlan& plan, const StepLimits& limits, uint32_t pad_to,
                              const StepInputs& host) {
  return Filler(plan, limits, host).fill(pad_to);
}

}  // namespace ringmaster::gpu_worker::cuda
