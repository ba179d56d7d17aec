#include "gpu-worker/kernels/cuda/attention.h"
#include "gpu-worker/kernels/cuda/attention_products.cuh"
#include "gpu-worker/kernels/cuda/online_softmax.cuh"
#include "gpu-worker/kernels/cuda/pipeline.cuh"

#include <climits>

namespace ringmaster::gpu_worker::cuda {
namespace {

// In the manner of FlashAttention-3 (Shah et al., 2024): one warp fetches keys and values, teams multiply, a
// warpgroup each. While a team makes weights of its scores, the tensor cores have the products of its values
// and of the other teams' keys.
constexpr int kTeamQueries = 64;
constexpr uint32_t kDimGroup = 256;  // bytes of eight dims of a block's values
// Named barriers: 1 + team for a team alone, 5 + team for the turns.
constexpr uint32_t kOwn = 1, kTurn = 5;
// Heads whose keys and values of 8,192 tokens fit the L2 cache (50 MB) beside what else is in use: 2, 8 and
// 32 take the same time at 8,192 tokens, 2 are 15 % slower at 2,048, where their short parts run dry too
// often.
constexpr uint32_t kHeadsTogether = 8;

// A block of threads weighs the keys of one head for 64 queries a team (a warpgroup). Small heads have the
// registers for three teams, which hide more of each other's softmax where there is work enough.
template <int kHeadDim, int kTeams>
struct Tiling {
  static constexpr int kThreads = (1 + kTeams) * kWarpgroup;
  static constexpr uint32_t kQueries = kTeams * kTeamQueries;
  static_assert(kPrefillTile % kQueries == 0);
  // Of 65,536.
  static constexpr int kFetcherRegisters = kTeams == 2 ? 40 : 32, kTeamRegisters = kTeams == 2 ? 232 : 160;
  // What the registers hold without spilling: scores, weights and sums of values.
  static constexpr int kKeys = kHeadDim > 128 ? 64 : kHeadDim == 96 && kTeams == 3 ? 112 : 128;
  static constexpr int kBlocks = kKeys / kBlockTokens;
  static constexpr int kStages = 2;
  static constexpr int kHalfBytes = kBlockTokens * kHeadDim * static_cast<int>(sizeof(bf16));
  static constexpr int kHalfChunks = kHalfBytes / 16;
  static constexpr uint32_t kRowGroup = kHeadDim / 32 * 512;  // bytes of eight keys, or queries
};

template <int kHeadDim, int kTeams>
struct Shared {
  using T = Tiling<kHeadDim, kTeams>;
  // In the order of keys.
  uint4 queries[kTeams][kTeamQueries * kHeadDim / 8];
  uint4 keys[T::kStages][T::kBlocks * T::kHalfChunks];
  uint4 values[T::kStages][T::kBlocks * T::kHalfChunks];
  Barrier keys_full[T::kStages], keys_free[T::kStages], values_full[T::kStages], values_free[T::kStages];
};

// What a block of threads has to do: queries of a tile, and the keys that any of them sees.
struct Span {
  uint32_t first_token = 0, queries = 0, first_position = 0;
  uint32_t start = 0, end = 0;  // start: a multiple of a block's tokens
};
__device__ __forceinline__ Span span_of(const PrefillTile& tile, uint32_t first, uint32_t most,
                                        uint32_t window) {
  Span s{.first_token = tile.first_token + first,
         .queries = min(tile.tokens - first, most),
         .first_position = tile.first_position + first};
  s.end = s.first_position + s.queries;
  if (window != 0 && s.first_position >= window)
    s.start = (s.first_position - window + 1) / kBlockTokens * kBlockTokens;
  return s;
}

// Other blocks of threads read the same keys: no hint for the cache.
__device__ __forceinline__ void copy_shared(void* to, const void* from, uint32_t bytes, const Barrier& done) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(done.address())
      : "memory");
}

// Of eight neighbouring bf16 the first `count`, zeros for the others.
__device__ __forceinline__ uint4 first_of(const uint4& v, int count) {
  const auto kept = [&](uint32_t pair, int n) {
    return pair & ((n < count ? 0xFFFFu : 0u) | (n + 1 < count ? 0xFFFF0000u : 0u));
  };
  return {kept(v.x, 0), kept(v.y, 2), kept(v.z, 4), kept(v.w, 6)};
}

// The warp that fetches.
template <int kHeadDim, int kTeams>
struct Fetcher {
  using T = Tiling<kHeadDim, kTeams>;
  Shared<kHeadDim, kTeams>& shared;
  const Span& span;
  const KvView& kv;
  const uint32_t* const blocks;
  const uint32_t layer, kv_head;

  __device__ __forceinline__ const uint4* piece(uint32_t key) const {
    return reinterpret_cast<const uint4*>(kv.piece(blocks[key / kBlockTokens], layer, kv_head));
  }
  // Keys beyond the end are masked, whatever they are.
  __device__ __forceinline__ void keys(uint32_t tile) const {
    const uint32_t lane = threadIdx.x % kWarp, stage = tile % T::kStages;
    const uint32_t first = span.start + tile * T::kKeys, key = first + lane * kBlockTokens;
    if (tile >= T::kStages) shared.keys_free[stage].wait((tile / T::kStages - 1) % 2);
    const uint32_t there =
        min(static_cast<uint32_t>(T::kBlocks), (span.end - first + kBlockTokens - 1) / kBlockTokens);
    if (lane == 0) shared.keys_full[stage].expect(there * T::kHalfBytes);
    __syncwarp();
    if (lane < there)
      copy_shared(shared.keys[stage] + lane * T::kHalfChunks, piece(key), T::kHalfBytes,
                  shared.keys_full[stage]);
    __syncwarp();
  }
  // The weight of keys beyond the end is zero, but a former owner of the block or of the shared memory may
  // have left NaN there.
  __device__ __forceinline__ void values(uint32_t tile) const {
    const uint32_t lane = threadIdx.x % kWarp, stage = tile % T::kStages;
    const uint32_t first = span.start + tile * T::kKeys, key = first + lane * kBlockTokens;
    if (tile >= T::kStages) shared.values_free[stage].wait((tile / T::kStages - 1) % 2);
    const uint32_t whole = min(static_cast<uint32_t>(T::kBlocks), (span.end - first) / kBlockTokens);
    if (whole < T::kBlocks) {
#pragma unroll 1
      for (uint32_t b = whole; b < T::kBlocks; ++b) {
        const uint32_t block_key = first + b * kBlockTokens;
        const int here = block_key < span.end ? static_cast<int>(span.end - block_key) : 0;
#pragma unroll 1
        for (uint32_t c = lane; c < T::kHalfChunks; c += kWarp) {
          const int half = static_cast<int>(c % 2 ^ c / 8 % 2);  // c / 2: the dim
          const uint4 v = here > 0 ? piece(block_key)[T::kHalfChunks + c] : uint4{0, 0, 0, 0};
          shared.values[stage][b * T::kHalfChunks + c] = first_of(v, here - half * 8);
        }
      }
      publish_shared();
      __syncwarp();
    }
    if (lane == 0) shared.values_full[stage].expect(whole * T::kHalfBytes);
    __syncwarp();
    if (lane < whole)
      copy_shared(shared.values[stage] + lane * T::kHalfChunks, piece(key) + T::kHalfChunks, T::kHalfBytes,
                  shared.values_full[stage]);
    __syncwarp();
  }
};

template <int kHeadDim>
__device__ __forceinline__ void multiply_values(Accumulator (&out)[kHeadDim / 8], const Weights16& weights,
                                                uint64_t values) {
  if constexpr (kHeadDim <= 128) {
    multiply(out, weights, values);
  } else {
    auto& halves = reinterpret_cast<Accumulator(&)[2][kHeadDim / 16]>(out);
    multiply(halves[0], weights, values);
    multiply(halves[1], weights, advanced(values, kHeadDim / 16 * kDimGroup));
  }
}

// A warpgroup that multiplies.
template <int kHeadDim, int kTeams>
__device__ __forceinline__ void attend(Shared<kHeadDim, kTeams>& shared, const Span& span, uint32_t tiles,
                                       uint32_t team, const AttentionShape& shape, uint32_t head,
                                       const bf16* q, bf16* out_to) {
  using T = Tiling<kHeadDim, kTeams>;
  const uint32_t thread = threadIdx.x % kWarpgroup, lane = thread % kWarp;
  // Of this team, of the span's queries.
  const uint32_t first = team * kTeamQueries, row = thread / kWarp * 16 + lane / 4;
  for (uint32_t i = thread; i < kTeamQueries * kHeadDim / 8; i += kWarpgroup) {
    const uint32_t n = i / (kHeadDim / 8), c = i % (kHeadDim / 8);
    const bf16* const from = q + (size_t{span.first_token + first + n} * shape.heads + head) * kHeadDim;
    const uint4 v = first + n < span.queries ? reinterpret_cast<const uint4*>(from)[c] : uint4{0, 0, 0, 0};
    shared.queries[team][key_offset(static_cast<int>(n), static_cast<int>(c) * 8, kHeadDim) / 8] = v;
  }
  publish_shared();
  sync_named(kOwn + team, kWarpgroup);

  const uint64_t queries = operand(shared_address(shared.queries[team]), RowBytes::k64, T::kRowGroup);
  const uint64_t keys = operand(shared_address(shared.keys), RowBytes::k64, T::kRowGroup);
  const uint64_t values = operand(shared_address(shared.values), RowBytes::k32, kDimGroup);
  constexpr uint32_t kStageBytes = T::kBlocks * T::kHalfBytes;
  const float factor = to_log2(shape.scale, shape.soft_cap);
  const uint32_t lowest = span.first_position + first, highest = lowest + kTeamQueries - 1;

  Accumulator s[T::kKeys / 8], out[kHeadDim / 8];
  Weights16 weights[T::kBlocks];
  RunningSoftmax softmax;
  float shrink[2];

  const auto wait_for_keys = [&](uint32_t tile) {
    shared.keys_full[tile % T::kStages].wait(tile / T::kStages % 2);
  };
  const auto score = [&](uint32_t tile) {
    const uint32_t stage = tile % T::kStages;
    begin_products();
    const uint64_t of_stage = advanced(keys, stage * kStageBytes);
#pragma unroll
    for (uint32_t i = 0; i < kHeadDim / 16; ++i) {
      const uint32_t at = i / 2 * 512 + i % 2 * 32;
      multiply(s, advanced(queries, at), advanced(of_stage, at), i != 0);
    }
    end_products();
  };
  const auto add_values = [&](uint32_t tile) {
    const uint32_t stage = tile % T::kStages;
    shared.values_full[stage].wait(tile / T::kStages % 2);
    begin_products();
    const uint64_t of_stage = advanced(values, stage * kStageBytes);
#pragma unroll
    for (int b = 0; b < T::kBlocks; ++b)
      multiply_values<kHeadDim>(out, weights[b], advanced(of_stage, b * T::kHalfBytes));
    end_products();
  };
  const auto weigh = [&](uint32_t tile) {
    cap_scores(s, shape.scale, shape.soft_cap);
    const uint32_t key = span.start + tile * T::kKeys;
    const bool oldest_unseen = shape.window != 0 && key + shape.window <= highest;
    if (key + T::kKeys - 1 > lowest || oldest_unseen) {
      // Of a lane's columns: how far a row sees, and from where.
      const int newest = static_cast<int>(lowest + row - key) - static_cast<int>(lane % 4 * 2);
      const int oldest = shape.window != 0 ? newest - static_cast<int>(shape.window) : INT_MIN / 2;
      mask_scores(s, [&](int n, int i) {
        const int column = n * 8 + i % 2 - i / 2 * 8;  // the second row is eight further
        return column <= newest && column > oldest;
      });
    }
    softmax.weigh(s, factor, shrink);
  };
  const auto round_weights = [&] {
#pragma unroll
    for (int b = 0; b < T::kBlocks; ++b) weights[b] = rounded(s[2 * b], s[2 * b + 1]);
  };

  if (team == kTeams - 1 && tiles > 1) arrive_named(kTurn, 2 * kWarpgroup);
  wait_for_keys(0);
  score(0);
  wait_for_products<0>();
  shared.keys_free[0].arrive();
  weigh(0);
  round_weights();
  if (tiles > 1) wait_for_keys(1);
#pragma unroll 1
  for (uint32_t tile = 1; tile < tiles; ++tile) {
    sync_named(kTurn + team, 2 * kWarpgroup);
    score(tile);
    add_values(tile - 1);
    if (team + 1 < kTeams || tile + 1 < tiles) arrive_named(kTurn + (team + 1) % kTeams, 2 * kWarpgroup);
    wait_for_products<1>();
    shared.keys_free[tile % T::kStages].arrive();
    weigh(tile);
    // Without the two lines ptxas has the products of the values wait()ed for before the weights are made: it
    // moves the wait up to the start of its basic block, and this loop ends one.
    settle(s);
    wait_for_keys(min(tile + 1, tiles - 1));
    wait_for_products<0>();
    shared.values_free[(tile - 1) % T::kStages].arrive();
    shrink_sums(out, shrink);
    round_weights();
  }
  add_values(tiles - 1);
  softmax.join_lanes();
  wait_for_products<0>();

#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t n = first + row + half * 8;
    if (n >= span.queries) continue;
    const float share = softmax.sum[half] > 0 ? 1 / softmax.sum[half] : 0;
    uint32_t* const to =
        reinterpret_cast<uint32_t*>(out_to + (size_t{span.first_token + n} * shape.heads + head) * kHeadDim);
#pragma unroll
    for (int d = 0; d < kHeadDim / 8; ++d)
      to[d * 4 + lane % 4] = pack(out[d].v[2 * half] * share, out[d].v[2 * half + 1] * share);
  }
}

template <int kHeadDim, int kTeams>
__global__ __launch_bounds__(Tiling<kHeadDim, kTeams>::kThreads,
                             1) void prefill_kernel(const AttentionShape shape, const KvView kv,
                                                    const uint32_t layer, const PrefillTile* tiles,
                                                    const uint32_t count, const uint32_t together,
                                                    const uint32_t* block_table, const bf16* q, bf16* out) {
  using T = Tiling<kHeadDim, kTeams>;
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<kHeadDim, kTeams>& shared = *reinterpret_cast<Shared<kHeadDim, kTeams>*>(memory);
  // `together` heads take turns part by part: their keys fit the L2 cache, and long parts come first.
  constexpr uint32_t kParts = kPrefillTile / T::kQueries;
  const uint32_t parts = count * kParts;
  const uint32_t set = blockIdx.x / (parts * together), in_set = blockIdx.x % (parts * together);
  const uint32_t heads = min(together, shape.heads - set * together);
  const uint32_t head = set * together + in_set % heads, part = in_set / heads;
  const PrefillTile tile = tiles[part / kParts];
  const uint32_t first = (kParts - 1 - part % kParts) * T::kQueries;
  if (first >= tile.tokens) return;
  if (threadIdx.x == 0) {
    for (int s = 0; s < T::kStages; ++s) {
      shared.keys_full[s].init(1);
      shared.values_full[s].init(1);
      shared.keys_free[s].init(kTeams * kWarpgroup);
      shared.values_free[s].init(kTeams * kWarpgroup);
    }
    Barrier::publish();
  }
  __syncthreads();
  let_successor_start();
  wait_for_predecessor();

  const Span span = span_of(tile, first, T::kQueries, shape.window);
  const uint32_t key_tiles = (span.end - span.start + T::kKeys - 1) / T::kKeys;
  if (threadIdx.x < kWarpgroup) {
    give_registers<T::kFetcherRegisters>();
    if (threadIdx.x >= kWarp) return;
    const Fetcher<kHeadDim, kTeams> fetcher{
        shared, span, kv, block_table + tile.first_block, layer, head / (shape.heads / shape.kv_heads)};
    fetcher.keys(0);
#pragma unroll 1
    for (uint32_t i = 1; i < key_tiles; ++i) {
      fetcher.keys(i);
      fetcher.values(i - 1);
    }
    fetcher.values(key_tiles - 1);
  } else {
    take_registers<T::kTeamRegisters>();
    attend<kHeadDim, kTeams>(shared, span, key_tiles, threadIdx.x / kWarpgroup - 1, shape, head, q, out);
  }
}

template <int kHeadDim, int kTeams>
cudaError_t launch_prefill(const Launch& how, const AttentionShape& shape, const KvView& kv, uint32_t layer,
                           const PrefillTile* tiles, uint32_t count, const uint32_t* block_table,
                           const bf16* q, bf16* out) {
  using T = Tiling<kHeadDim, kTeams>;
  const auto kernel = prefill_kernel<kHeadDim, kTeams>;
  constexpr size_t kBytes = sizeof(Shared<kHeadDim, kTeams>);
  const uint32_t together = min(shape.heads, kHeadsTogether);
  return launch(how, kernel, dim3(count * (kPrefillTile / T::kQueries) * shape.heads), dim3(T::kThreads),
                kBytes, shape, kv, layer, tiles, count, together, block_table, q, out);
}

// Three teams take 7 % less time than two at 8,192 tokens (heads of 96) and 10 % more at 2,048, where the
// last turn of larger parts leaves many multiprocessors without work.
constexpr uint32_t kTurnsForThree = 6;

}  // namespace

cudaError_t prefill_attention(const Launch& how, const AttentionShape& shape, const KvView& kv,
                              uint32_t layer, const PrefillTile* tiles, uint32_t count,
                              const uint32_t* block_table, const bf16* q, bf16* out) {
  if (shape.kv_heads == 0 || shape.heads % shape.kv_heads != 0 || count == 0) return cudaErrorInvalidValue;
  const auto run = [&](const auto& launch_it) {
    return launch_it(how, shape, kv, layer, tiles, count, block_table, q, out);
  };
  const uint32_t parts_of_three = count * (kPrefillTile / (3 * kTeamQueries)) * shape.heads;
  const bool three = parts_of_three >= kTurnsForThree * static_cast<uint32_t>(how.multiprocessors);
  switch (shape.head_dim) {
    case 64:
      return three ? run(launch_prefill<64, 3>) : run(launch_prefill<64, 2>);
    case 96:
      return three ? run(launch_prefill<96, 3>) : run(launch_prefill<96, 2>);
    case 128:
      return run(launch_prefill<128, 2>);
    case 256:
      return run(launch_prefill<256, 2>);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ringmaster::gpu_worker::cuda
