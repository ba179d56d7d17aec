#include "gpu-worker/kernels/cuda/attention.h"
#include "gpu-worker/kernels/cuda/online_softmax.cuh"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

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
      const float factor = running.sum[row] > 0 ? 1 / running.sum[row] : 0;
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
    if (lane % 4 == 0) reinterpret_cast<float2*>(scratch.max_sum)[at] = {running.max[row], running.sum[row]};
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
  // Large heads have no registers for a block ahead; there the other warps are what hides the latency.
  constexpr bool kAhead = kHeadDim <= 128;
  const uint32_t lane = threadIdx.x % kWarp, group = shape.heads / shape.kv_heads;
  const uint32_t works = *plan.count * shape.kv_heads, stride = gridDim.x * kWarps;
  uint32_t number = blockIdx.x * kWarps + threadIdx.x / kWarp;
  let_successor_start();

  KeyFragments<kHeadDim> k;
  ValueFragments<kHeadDim> v;
  const auto load = [&](const Work& w, uint32_t key, bool keys, bool values) {
    const uint4* const piece = reinterpret_cast<const uint4*>(
        kv.piece(plan.block_table[w.piece.first_block + key / kBlockTokens], layer, w.kv_head));
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
    Queries<kHeadDim> queries[1];
    const bf16* const mine = q + (size_t{w.piece.token} * shape.heads + w.kv_head * group) * kHeadDim;
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) {
      const uint32_t g = lane / 4;
      queries[0].low[i] = g < group ? reinterpret_cast<const uint4*>(mine + g * kHeadDim)[i * 4 + lane % 4]
                                    : uint4{0, 0, 0, 0};
      queries[0].high[i] = g + 8 < group
                               ? reinterpret_cast<const uint4*>(mine + (g + 8) * kHeadDim)[i * 4 + lane % 4]
                               : uint4{0, 0, 0, 0};
    }
    const auto seen = [&](int, uint32_t n) { return n >= w.oldest && n < w.end; };
    Running<kHeadDim> running;
#pragma unroll 1
    for (uint32_t key = w.piece.first_key; key < w.end; key += kBlockTokens) {
      const bool more = key + kBlockTokens < w.end;
      Accumulator s[1][2];
      if constexpr (!kAhead) load(w, key, true, false);
      scores<kHeadDim, 0>(s, queries, k);
      if constexpr (!kAhead) load(w, key, false, true);
      if (kAhead && more) load(w, key + kBlockTokens, true, false);
      cap_scores(s[0], shape.scale, shape.soft_cap);
      if (key + kBlockTokens > w.end || w.oldest > key) mask_scores(s[0], key, seen);
      if (key + kBlockTokens > w.end) clear_from<kHeadDim>(v, key, w.end);
      Weights16 weights[1];
      running.template weigh<1>(s[0], factor, weights);
      running.add(weights[0], v);
      if (kAhead && more) load(w, key + kBlockTokens, false, true);
    }
    running.join_lanes();
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
