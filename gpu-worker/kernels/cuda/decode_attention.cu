#include "gpu-worker/kernels/cuda/attention.h"
#include "gpu-worker/kernels/cuda/online_softmax.cuh"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kTiles = kBlockTokens / 8;  // of scores, a block

template <int kHeadDim>
struct Queries {
  // [dim / 32][low row, high row]: chunks of eight dims.
  uint4 low[kHeadDim / 32], high[kHeadDim / 32];
};

// A lane's share of a block's piece (mma_layout.h): keys of each score tile, and values.
template <int kHeadDim>
struct KeyFragments {
  uint4 v[kTiles][kHeadDim / 32];
};
template <int kHeadDim>
struct ValueFragments {
  uint2 v[kHeadDim / 8];
};
template <int kHeadDim>
__device__ __forceinline__ void load_keys(KeyFragments<kHeadDim>& k, const bf16* piece) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const bf16* const from = piece + key_offset(score_token(tile, lane / 4), lane % 4 * 8, kHeadDim);
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i)
      k.v[tile][i] = *reinterpret_cast<const uint4*>(from + key_offset(0, i * 32, kHeadDim));
  }
}
template <int kHeadDim>
__device__ __forceinline__ void load_values(ValueFragments<kHeadDim>& v, const bf16* piece) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const bf16* const from = piece + value_offset(lane % 4 * 4, lane / 4, kHeadDim);
#pragma unroll
  for (int i = 0; i < kHeadDim / 8; ++i)
    v.v[i] = *reinterpret_cast<const uint2*>(from + i * 8 * kBlockTokens);
}

// Where the compiler may not keep what it has loaded once.
__device__ __forceinline__ uint4 load_again(const bf16* from) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Of the queries against the keys of a block; not scaled yet. A product waits for the one before on the same
// accumulator, so the tiles take turns.
template <int kHeadDim>
__device__ __forceinline__ void score(Accumulator (&s)[kTiles], const Queries<kHeadDim>& q,
                                      const KeyFragments<kHeadDim>& k) {
  s[0] = s[1] = {};
#pragma unroll
  for (int i = 0; i < kHeadDim / 32; ++i) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      mma(s[t], q.low[i].x, q.high[i].x, q.low[i].y, q.high[i].y, k.v[t][i].x, k.v[t][i].y);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      mma(s[t], q.low[i].z, q.high[i].z, q.low[i].w, q.high[i].w, k.v[t][i].z, k.v[t][i].w);
  }
}

// Zeros for keys from `end` on. Their weight is zero, but a former owner of the block may have left NaN
// there.
template <int kHeadDim>
__device__ __forceinline__ void clear_from(ValueFragments<kHeadDim>& v, uint32_t first_key, uint32_t end) {
  const uint32_t key = first_key + threadIdx.x % 4 * 4;
  const auto kept = [&](uint32_t n) { return (n < end ? 0xFFFFu : 0u) | (n + 1 < end ? 0xFFFF0000u : 0u); };
  const uint32_t low = kept(key), high = kept(key + 2);
#pragma unroll
  for (int i = 0; i < kHeadDim / 8; ++i) v.v[i] = {v.v[i].x & low, v.v[i].y & high};
}

// The softmax over the keys so far, and the sum of their values by weight.
template <int kHeadDim>
struct Running {
  RunningSoftmax softmax;
  Accumulator out[kHeadDim / 8];

  __device__ __forceinline__ void add(Accumulator (&s)[kTiles], float to_log2,
                                      const ValueFragments<kHeadDim>& v) {
    float shrink[2];
    softmax.weigh(s, to_log2, shrink);
    shrink_sums(out, shrink);
    const Weights16 w = rounded(s[0], s[1]);
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) mma(out[i], w.a[0], w.a[1], w.a[2], w.a[3], v.v[i].x, v.v[i].y);
  }
};

// One warp's work: a piece of one row's keys for one key-value head.
struct Work {
  DecodePiece piece;
  uint32_t kv_head = 0, position = 0, end = 0, oldest = 0;
};

__device__ __forceinline__ Work work_of(uint32_t number, const AttentionShape& shape, const DecodePlan& plan,
                                        const TokenView& tokens) {
  Work w{.piece = plan.pieces[number / shape.kv_heads], .kv_head = number % shape.kv_heads};
  w.position = tokens.position[w.piece.token];
  w.end = w.piece.first_key + w.piece.keys;
  w.oldest = shape.window != 0 && w.position >= shape.window ? w.position - shape.window + 1 : 0;
  return w;
}

// What a piece has found, of query head `g` of the group: to `out` when it is all there is, else to the
// scratch.
template <int kHeadDim>
__device__ __forceinline__ void write_piece(const Running<kHeadDim>& running, const Work& w,
                                            const AttentionShape& shape, const DecodeScratch& scratch,
                                            bf16* out) {
  const uint32_t lane = threadIdx.x % kWarp, group = shape.heads / shape.kv_heads;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const uint32_t g = lane / 4 + row * 8;
    if (g >= group) continue;
    const uint32_t head = w.kv_head * group + g;
    if (w.piece.parts == 1) {
      const float factor = running.softmax.sum[row] > 0 ? 1 / running.softmax.sum[row] : 0;
      uint32_t* const to =
          reinterpret_cast<uint32_t*>(out + (size_t{w.piece.token} * shape.heads + head) * kHeadDim) +
          lane % 4;
#pragma unroll
      for (int d = 0; d < kHeadDim / 8; ++d)
        to[d * 4] = pack(running.out[d].v[2 * row] * factor, running.out[d].v[2 * row + 1] * factor);
      continue;
    }
    const size_t at = size_t{w.piece.part} * shape.heads + head;
    float2* const to = reinterpret_cast<float2*>(scratch.sums + at * kHeadDim) + lane % 4;
#pragma unroll
    for (int d = 0; d < kHeadDim / 8; ++d)
      to[d * 4] = {running.out[d].v[2 * row], running.out[d].v[2 * row + 1]};
    if (lane % 4 == 0)
      reinterpret_cast<float2*>(scratch.max_sum)[at] = {running.softmax.max[row], running.softmax.sum[row]};
  }
}

// The last of a token's pieces to get here joins them all, in the order of the keys: the result does not
// depend on who it is.
template <int kHeadDim>
__device__ __forceinline__ void join_if_last(const Work& w, const AttentionShape& shape,
                                             const DecodeScratch& scratch, bf16* out) {
  const uint32_t lane = threadIdx.x % kWarp, group = shape.heads / shape.kv_heads, parts = w.piece.parts;
  __threadfence();
  __syncwarp();
  uint32_t before = 0;
  if (lane == 0) before = atomicAdd(scratch.arrived + size_t{w.piece.token} * shape.kv_heads + w.kv_head, 1);
  if (__shfl_sync(0xFFFFFFFF, before, 0) + 1 != parts) return;
  __threadfence();
  if (lane == 0) scratch.arrived[size_t{w.piece.token} * shape.kv_heads + w.kv_head] = 0;
#pragma unroll 1
  for (uint32_t g = 0; g < group; ++g) {
    const uint32_t head = w.kv_head * group + g;
    const auto at = [&](uint32_t part) { return size_t{w.piece.first_part + part} * shape.heads + head; };
    const float2* const max_sum = reinterpret_cast<const float2*>(scratch.max_sum);
    float largest = kNoScore;
    for (uint32_t part = lane; part < parts; part += kWarp)
      largest = fmaxf(largest, __ldcg(&max_sum[at(part)]).x);
    largest = warp_max(largest);
    const float base = largest == kNoScore ? 0 : largest;
    float sum = 0, value[kHeadDim / kWarp] = {};
#pragma unroll 4
    for (uint32_t part = 0; part < parts; ++part) {
      const float2 of_part = __ldcg(&max_sum[at(part)]);
      const float factor = exp2_fast(of_part.x - base);
      sum += of_part.y * factor;
#pragma unroll
      for (int i = 0; i < kHeadDim / kWarp; ++i)
        value[i] += __ldcg(&scratch.sums[at(part) * kHeadDim + i * kWarp + lane]) * factor;
    }
    const float scale = sum > 0 ? 1 / sum : 0;
#pragma unroll
    for (int i = 0; i < kHeadDim / kWarp; ++i)
      out[(size_t{w.piece.token} * shape.heads + head) * kHeadDim + i * kWarp + lane] =
          __float2bfloat16(value[i] * scale);
  }
}

// Warps work for themselves: many small works in flight at once hide what each of them waits for.
template <int kHeadDim>
__global__ __launch_bounds__(kThreads) void decode_kernel(const AttentionShape shape, const KvView kv,
                                                          const uint32_t layer, const DecodePlan plan,
                                                          const TokenView tokens, const bf16* q,
                                                          const DecodeScratch scratch, bf16* out) {
  // Large heads have no registers for a block ahead, nor for the queries; there the other warps are what
  // hides the latency.
  constexpr bool kAhead = kHeadDim <= 128;
  const uint32_t lane = threadIdx.x % kWarp, group = shape.heads / shape.kv_heads;
  const uint32_t works = *plan.count * shape.kv_heads, stride = gridDim.x * kWarps;
  uint32_t number = blockIdx.x * kWarps + threadIdx.x / kWarp;
  let_successor_start();

  KeyFragments<kHeadDim> k;
  ValueFragments<kHeadDim> v;
  const auto load = [&](const Work& w, uint32_t key, bool keys, bool values) {
    const bf16* const piece =
        kv.piece(plan.block_table[w.piece.first_block + key / kBlockTokens], layer, w.kv_head);
    if (keys) load_keys<kHeadDim>(k, piece);
    if (values) load_values<kHeadDim>(v, piece);
  };
  const float factor = to_log2(shape.scale, shape.soft_cap);
  Work w;
  if (number < works) w = work_of(number, shape, plan, tokens);
  wait_for_predecessor();
  // Not before, though most blocks are old: another row of this step may have written one of them just now.
  if (kAhead && number < works) load(w, w.piece.first_key, true, true);

#pragma unroll 1
  while (number < works) {
    Queries<kHeadDim> queries;
    const bf16* const mine = q + (size_t{w.piece.token} * shape.heads + w.kv_head * group) * kHeadDim;
    const auto load_queries = [&] {
#pragma unroll
      for (int i = 0; i < kHeadDim / 32; ++i) {
        const auto chunk = [&](uint32_t g) {
          return g < group ? load_again(mine + g * kHeadDim + (i * 4 + lane % 4) * 8) : uint4{0, 0, 0, 0};
        };
        queries.low[i] = chunk(lane / 4);
        queries.high[i] = chunk(lane / 4 + 8);
      }
    };
    if constexpr (kAhead) load_queries();
    Running<kHeadDim> running;
#pragma unroll 1
    for (uint32_t key = w.piece.first_key; key < w.end; key += kBlockTokens) {
      const bool more = key + kBlockTokens < w.end;
      Accumulator s[kTiles];
      if constexpr (!kAhead) load(w, key, true, false);
      if constexpr (!kAhead) load_queries();
      score(s, queries, k);
      if constexpr (!kAhead) load(w, key, false, true);
      if (kAhead && more) load(w, key + kBlockTokens, true, false);
      cap_scores(s, shape.scale, shape.soft_cap);
      if (key + kBlockTokens > w.end || w.oldest > key)
        mask_scores(s, [&](int tile, int i) {
          const uint32_t n = key + score_token(tile, static_cast<int>(lane % 4) * 2 + i % 2);
          return n >= w.oldest && n < w.end;
        });
      if (key + kBlockTokens > w.end) clear_from<kHeadDim>(v, key, w.end);
      running.add(s, factor, v);
      if (kAhead && more) load(w, key + kBlockTokens, false, true);
    }
    running.softmax.join_lanes();
    const Work done = w;
    number += stride;
    if (number < works) {
      w = work_of(number, shape, plan, tokens);
      if (kAhead) load(w, w.piece.first_key, true, true);
    }
    write_piece<kHeadDim>(running, done, shape, scratch, out);
    if (done.piece.parts > 1) join_if_last<kHeadDim>(done, shape, scratch, out);
  }
}

template <int kHeadDim>
cudaError_t launch_decode(const Launch& how, const AttentionShape& shape, const KvView& kv, uint32_t layer,
                          const DecodePlan& plan, const TokenView& tokens, const bf16* q,
                          const DecodeScratch& scratch, bf16* out) {
  return launch(how, decode_kernel<kHeadDim>,
                dim3(static_cast<uint32_t>(how.multiprocessors) * decode_warps(kHeadDim) / kWarps),
                dim3(kThreads), 0, shape, kv, layer, plan, tokens, q, scratch, out);
}

}  // namespace

// As registers allow.
uint32_t decode_warps(uint32_t head_dim) {
  return kWarps * (head_dim <= 64 ? 4 : head_dim <= 96 ? 3 : 2);
}

cudaError_t decode_attention(const Launch& how, const AttentionShape& shape, const KvView& kv, uint32_t layer,
                             const DecodePlan& plan, const TokenView& tokens, const bf16* q,
                             const DecodeScratch& scratch, bf16* out) {
  const uint32_t group = shape.kv_heads == 0 ? 0 : shape.heads / shape.kv_heads;
  if (group == 0 || group > 16 || shape.heads % shape.kv_heads != 0) return cudaErrorInvalidValue;
  switch (shape.head_dim) {
    case 64:
      return launch_decode<64>(how, shape, kv, layer, plan, tokens, q, scratch, out);
    case 96:
      return launch_decode<96>(how, shape, kv, layer, plan, tokens, q, scratch, out);
    case 128:
      return launch_decode<128>(how, shape, kv, layer, plan, tokens, q, scratch, out);
    case 256:
      return launch_decode<256>(how, shape, kv, layer, plan, tokens, q, scratch, out);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ringmaster::gpu_worker::cuda
