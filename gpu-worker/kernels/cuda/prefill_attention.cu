#include <type_traits>

#include "gpu-worker/kernels/cuda/attention.h"
#include "gpu-worker/kernels/cuda/online_softmax.cuh"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kStageBlocks = 4;  // 64 keys are fetched together

__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// What fits the registers and the shared memory of two blocks a multiprocessor (one for heads of 256).
template <int kHeadDim>
struct Tiling {
  static constexpr int kQueryTiles = kHeadDim <= 128 ? 2 : 1;  // of 16 queries, a warp
  static constexpr int kBlocks = kHeadDim < 128 ? 2 : 1;       // of 16 keys, weighed together
  static constexpr int kStages = kHeadDim <= 128 ? 3 : 2;
  static constexpr int kQueries = kWarps * kQueryTiles * 16;
  static constexpr int kPieceBytes = 2 * kBlockTokens * kHeadDim * static_cast<int>(sizeof(bf16));
  static constexpr int kSharedBytes = kStages * kStageBlocks * kPieceBytes;
  static_assert(kPrefillTile % kQueries == 0);
};

template <int kHeadDim>
__global__ __launch_bounds__(kThreads) void prefill_kernel(const AttentionShape shape, const KvView kv,
                                                           const uint32_t layer, const PrefillTile* tiles,
                                                           const uint32_t* block_table, const bf16* q,
                                                           bf16* out) {
  using T = Tiling<kHeadDim>;
  extern __shared__ uint4 stages[];
  constexpr int kBlocks = T::kBlocks;
  constexpr int kPieceChunks = T::kPieceBytes / 16;
  constexpr int kStageChunks = kStageBlocks * kPieceChunks;
  constexpr int kParts = static_cast<int>(kPrefillTile) / T::kQueries;
  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  let_successor_start();
  wait_for_predecessor();

  const PrefillTile tile = tiles[blockIdx.x / kParts];
  const uint32_t head = blockIdx.y, kv_head = head / (shape.heads / shape.kv_heads);
  const uint32_t first = blockIdx.x % kParts * T::kQueries;  // of the tile
  if (first >= tile.tokens) return;
  const uint32_t queries_here = min(tile.tokens - first, static_cast<uint32_t>(T::kQueries));
  const uint32_t first_position = tile.first_position + first;
  const uint32_t end = first_position + queries_here;  // keys that anyone here sees
  const uint32_t oldest =
      shape.window != 0 && first_position >= shape.window ? first_position - shape.window + 1 : 0;
  constexpr uint32_t kStageKeys = kStageBlocks * kBlockTokens;
  const uint32_t first_stage = oldest / kStageKeys, last_stage = (end - 1) / kStageKeys;
  const uint32_t* const blocks = block_table + tile.first_block;

  const auto fetch = [&](uint32_t stage) {
    if (stage <= last_stage) {
      uint4* const to = stages + stage % T::kStages * kStageChunks;
#pragma unroll
      for (int b = 0; b < kStageBlocks; ++b) {
        const uint32_t block = stage * kStageBlocks + b;
        if (block * kBlockTokens >= end) break;
        const uint4* const from = reinterpret_cast<const uint4*>(kv.piece(blocks[block], layer, kv_head));
        for (int c = static_cast<int>(threadIdx.x); c < kPieceChunks; c += kThreads)
          copy_async(to + b * kPieceChunks + c, from + c);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int s = 0; s < T::kStages - 1; ++s) fetch(first_stage + s);

  Queries<kHeadDim> queries[T::kQueryTiles];
  Running<kHeadDim> running[T::kQueryTiles];
  const uint32_t warp_first = warp * T::kQueryTiles * 16;
  const float factor = to_log2(shape.scale, shape.soft_cap);
#pragma unroll
  for (int t = 0; t < T::kQueryTiles; ++t)
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) {
      const auto row = [&](uint32_t n) {
        if (n >= queries_here) return uint4{0, 0, 0, 0};
        const bf16* const from = q + (size_t{tile.first_token + first + n} * shape.heads + head) * kHeadDim;
        return reinterpret_cast<const uint4*>(from)[i * 4 + lane % 4];
      };
      queries[t].low[i] = row(warp_first + t * 16 + lane / 4);
      queries[t].high[i] = row(warp_first + t * 16 + lane / 4 + 8);
    }

#pragma unroll 1
  for (uint32_t stage = first_stage; stage <= last_stage; ++stage) {
    wait_for_copies<T::kStages - 2>();
    __syncthreads();
    fetch(stage + T::kStages - 1);
    const uint4* const pieces = stages + stage % T::kStages * kStageChunks;
#pragma unroll 1
    for (int b = 0; b < kStageBlocks; b += kBlocks) {
      const uint32_t key = (stage * kStageBlocks + b) * kBlockTokens;
      const uint32_t warp_position = first_position + warp_first;           // of the warp's first query
      if (key >= end || key >= warp_position + T::kQueryTiles * 16) break;  // this warp has seen all it may
      // Of the blocks taken together, those that were fetched.
      const bool both = kBlocks == 1 || key + kBlockTokens < end;
      Accumulator s[T::kQueryTiles][2 * kBlocks];
      const auto keys_of = [&](int block) {
        KeyFragments<kHeadDim> k;
        load_keys<kHeadDim>(k, pieces + (b + block) * kPieceChunks);
        return k;
      };
      scores<kHeadDim, 0>(s, queries, keys_of(0));
      if constexpr (kBlocks > 1) {
        if (both) scores<kHeadDim, 1>(s, queries, keys_of(1));
      }
      Weights16 weights[T::kQueryTiles][kBlocks];
#pragma unroll
      for (int t = 0; t < T::kQueryTiles; ++t) {
        const uint32_t lowest = warp_position + t * 16, mine = lowest + lane / 4;
        cap_scores(s[t], shape.scale, shape.soft_cap);
        // Mostly every query sees every key. Keys beyond `end` are beyond all queries.
        if (shape.window != 0 || key + kBlocks * kBlockTokens - 1 > lowest)
          mask_scores(s[t], key, [&](int row, uint32_t n) {
            const uint32_t position = mine + row * 8;
            return n <= position && (shape.window == 0 || n + shape.window > position);
          });
        running[t].template weigh<kBlocks>(s[t], factor, weights[t]);
      }
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        if (block > 0 && !both) break;
        const uint32_t first_key = key + block * kBlockTokens;
        ValueFragments<kHeadDim> v;
        load_values<kHeadDim>(v, pieces + (b + block) * kPieceChunks);
        if (first_key + kBlockTokens > end) clear_from<kHeadDim>(v, first_key, end);
#pragma unroll
        for (int t = 0; t < T::kQueryTiles; ++t) running[t].add(weights[t][block], v);
      }
    }
  }

#pragma unroll
  for (int t = 0; t < T::kQueryTiles; ++t) {
    running[t].join_lanes();
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t n = warp_first + t * 16 + lane / 4 + row * 8;
      if (n >= queries_here) continue;
      const float share = running[t].sum[row] > 0 ? 1 / running[t].sum[row] : 0;
      uint32_t* const to = reinterpret_cast<uint32_t*>(
          out + (size_t{tile.first_token + first + n} * shape.heads + head) * kHeadDim);
#pragma unroll
      for (int d = 0; d < kHeadDim / 8; ++d)
        to[d * 4 + lane % 4] =
            pack(running[t].out[d].v[2 * row] * share, running[t].out[d].v[2 * row + 1] * share);
    }
  }
}

template <int kHeadDim>
cudaError_t launch_prefill(const Launch& how, const AttentionShape& shape, const KvView& kv, uint32_t layer,
                           const PrefillTile* tiles, uint32_t count, const uint32_t* block_table,
                           const bf16* q, bf16* out) {
  using T = Tiling<kHeadDim>;
  const auto kernel = prefill_kernel<kHeadDim>;
  if (cudaError_t e =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes);
      e != cudaSuccess)
    return e;
  return launch(how, kernel, dim3(count * (kPrefillTile / T::kQueries), shape.heads), dim3(kThreads),
                size_t{T::kSharedBytes}, shape, kv, layer, tiles, block_table, q, out);
}

}  // namespace

cudaError_t prefill_attention(const Launch& how, const AttentionShape& shape, const KvView& kv,
                              uint32_t layer, const PrefillTile* tiles, uint32_t count,
                              const uint32_t* block_table, const bf16* q, bf16* out) {
  if (shape.kv_heads == 0 || shape.heads % shape.kv_heads != 0 || count == 0) return cudaErrorInvalidValue;
  switch (shape.head_dim) {
    case 64:
      return launch_prefill<64>(how, shape, kv, layer, tiles, count, block_table, q, out);
    case 96:
      return launch_prefill<96>(how, shape, kv, layer, tiles, count, block_table, q, out);
    case 128:
      return launch_prefill<128>(how, shape, kv, layer, tiles, count, block_table, q, out);
    case 256:
      return launch_prefill<256>(how, shape, kv, layer, tiles, count, block_table, q, out);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ringmaster::gpu_worker::cuda
