#include "gpu-worker/kernels/cuda/rows.h"

#include "gpu-worker/kernels/cuda/mma.cuh"
#include "gpu-worker/schedule/step_plan.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void embed_kernel(const bf16* table, const uint32_t hidden, const float scale, const uint32_t* ids,
                             const uint32_t* lane, const uint32_t* last_id, bf16* x) {
  let_successor_start();
  wait_for_predecessor();
  const uint32_t token = blockIdx.x;
  uint32_t id = ids[token];
  if (id == kFromLane) id = last_id[lane[token]];
  const uint4* const from = reinterpret_cast<const uint4*>(table + size_t{id} * hidden);
  uint4* const to = reinterpret_cast<uint4*>(x + size_t{token} * hidden);
  for (uint32_t c = threadIdx.x; c < hidden / 8; c += kThreads) {
    uint4 v = from[c];
    if (scale != 1) {
      uint32_t* const pairs = &v.x;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 f = unpack(pairs[i]);
        pairs[i] = pack(f.x * scale, f.y * scale);
      }
    }
    to[c] = v;
  }
}

__global__ void rms_norm_kernel(const bf16* x, const uint32_t* row, const uint32_t hidden, const Norm norm,
                                bf16* y) {
  __shared__ float partial[kThreads / kWarp];
  let_successor_start();
  wait_for_predecessor();
  const uint32_t from_row = row != nullptr ? row[blockIdx.x] : blockIdx.x;
  const uint4* const from = reinterpret_cast<const uint4*>(x + size_t{from_row} * hidden);
  float squares = 0;
  for (uint32_t c = threadIdx.x; c < hidden / 8; c += kThreads) {
    const uint4 v = from[c];
    const uint32_t* const pairs = &v.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 f = unpack(pairs[i]);
      squares += f.x * f.x + f.y * f.y;
    }
  }
  squares = warp_sum(squares);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = squares;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) sum += partial[w];
  const float factor = rsqrtf(sum / static_cast<float>(hidden) + norm.epsilon);
  uint4* const to = reinterpret_cast<uint4*>(y + size_t{blockIdx.x} * hidden);
  for (uint32_t c = threadIdx.x; c < hidden / 8; c += kThreads) {
    uint4 v = from[c];
    const uint4 weight = reinterpret_cast<const uint4*>(norm.weight)[c];
    uint32_t* const pairs = &v.x;
    const uint32_t* const weights = &weight.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 f = unpack(pairs[i]), w = unpack(weights[i]);
      pairs[i] = pack(f.x * factor * w.x, f.y * factor * w.y);
    }
    to[c] = v;
  }
}

__device__ __forceinline__ uint4 plus(const uint4& a, const uint4& b) {
  uint4 sum;
  const uint32_t *x = &a.x, *y = &b.x;
  uint32_t* const to = &sum.x;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f = unpack(x[i]), g = unpack(y[i]);
    to[i] = pack(f.x + g.x, f.y + g.y);
  }
  return sum;
}

// One block a token; a thread takes eight neighbouring dims.
__global__ void split_qkv_kernel(const bf16* qkv, const bf16* bias, const TokenView tokens,
                                 const RopeView rope, const KvView kv, const uint32_t layer,
                                 const uint32_t heads, const bool values, bf16* q) {
  let_successor_start();
  wait_for_predecessor();
  const uint32_t token = blockIdx.x, q_width = heads * kv.head_dim, kv_width = kv.kv_heads * kv.head_dim;
  const uint4* const from = reinterpret_cast<const uint4*>(qkv + size_t{token} * (q_width + 2 * kv_width));
  const float position = static_cast<float>(tokens.position[token]);
  const uint32_t slot = tokens.kv_slot[token];
  const int place = static_cast<int>(slot % kBlockTokens), size = static_cast<int>(kv.head_dim);
  for (uint32_t chunk = threadIdx.x; chunk < (q_width + (values ? 2 : 1) * kv_width) / 8; chunk += kThreads) {
    const uint32_t column = chunk * 8, d = column % kv.head_dim;
    uint4 v = from[chunk];
    if (bias != nullptr) v = plus(v, reinterpret_cast<const uint4*>(bias)[chunk]);
    uint32_t* const pairs = &v.x;
    if (column >= q_width + kv_width) {
      const uint32_t in_kv = column - q_width - kv_width;
      bf16* const piece = kv.piece(slot / kBlockTokens, layer, in_kv / kv.head_dim);
      const bf16* const each = reinterpret_cast<const bf16*>(&v);
      for (int i = 0; i < 8; ++i) piece[value_offset(place, static_cast<int>(d) + i, size)] = each[i];
      continue;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (d + 2 * i >= rope.dims) break;
      float sine, cosine;
      sincosf(position * rope.inverse_frequency[d / 2 + i], &sine, &cosine);
      const float2 f = unpack(pairs[i]);
      pairs[i] = pack(f.x * cosine - f.y * sine, f.y * cosine + f.x * sine);
    }
    if (column < q_width) {
      reinterpret_cast<uint4*>(q + size_t{token} * q_width)[chunk] = v;
    } else {
      const uint32_t in_kv = column - q_width;
      bf16* const piece = kv.piece(slot / kBlockTokens, layer, in_kv / kv.head_dim);
      *reinterpret_cast<uint4*>(piece + key_offset(place, static_cast<int>(d), size)) = v;
    }
  }
}

constexpr int kValueThreads = 64;
constexpr int kMostHeadDim = 256;

// One block of threads a group and key-value head: the values go through shared memory and leave 16 bytes at
// a time where a whole chunk is there.
__global__ void store_values_kernel(const bf16* qkv, const bf16* bias, const BlockTokens* groups,
                                    const KvView kv, const uint32_t layer, const uint32_t heads) {
  __shared__ bf16 tile[kBlockTokens][kMostHeadDim + 8];  // by place in the block; rows in different banks
  let_successor_start();
  wait_for_predecessor();
  const BlockTokens group = groups[blockIdx.x];
  const uint32_t kv_head = blockIdx.y, size = kv.head_dim, chunks = size / 8;
  const uint32_t width = (heads + 2 * kv.kv_heads) * size, column = (heads + kv.kv_heads + kv_head) * size;
  const uint32_t first = group.first_slot % kBlockTokens, end = first + group.tokens;
  for (uint32_t i = threadIdx.x; i < group.tokens * chunks; i += kValueThreads) {
    const uint32_t t = i / chunks, c = i % chunks;
    uint4 v = reinterpret_cast<const uint4*>(qkv + size_t{group.first_token + t} * width + column)[c];
    if (bias != nullptr) v = plus(v, reinterpret_cast<const uint4*>(bias + column)[c]);
    *reinterpret_cast<uint4*>(&tile[first + t][c * 8]) = v;
  }
  __syncthreads();
  bf16* const piece = kv.piece(group.first_slot / kBlockTokens, layer, kv_head);
  // Chunk n: eight tokens from p on, of dim d.
  for (uint32_t n = threadIdx.x; n < size * 2; n += kValueThreads) {
    const uint32_t d = n / 2, p = (n % 2 ^ d % 8 / 4) * 8;
    bf16 v[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) v[i] = tile[p + i][d];
    bf16* const to = piece + value_offset(static_cast<int>(p), static_cast<int>(d), static_cast<int>(size));
    if (first <= p && p + 8 <= end) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(v);
      continue;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i)
      if (p + i >= first && p + i < end) to[i] = v[i];
  }
}

__device__ float activate(Gate kind, float v) {
  return kind == Gate::kSilu ? silu(v) : gelu_tanh(v);
}

__global__ void gate_kernel(const bf16* x, const uint32_t width, const Gate kind, bf16* y) {
  let_successor_start();
  wait_for_predecessor();
  const uint4* const from = reinterpret_cast<const uint4*>(x + size_t{blockIdx.y} * 2 * width);
  uint2* const to = reinterpret_cast<uint2*>(y + size_t{blockIdx.y} * width);
  const uint32_t c = blockIdx.x * kThreads + threadIdx.x;
  if (c >= width / 4) return;
  const uint4 v = from[c];
  const float2 a = unpack(v.x), b = unpack(v.y), e = unpack(v.z), f = unpack(v.w);
  to[c] = {pack(activate(kind, a.x) * a.y, activate(kind, b.x) * b.y),
           pack(activate(kind, e.x) * e.y, activate(kind, f.x) * f.y)};
}

}  // namespace

cudaError_t embed(const Launch& how, const bf16* table, uint32_t hidden, float scale, const uint32_t* ids,
                  const uint32_t* lane, const uint32_t* last_id, uint32_t tokens, bf16* x) {
  return launch(how, embed_kernel, dim3(tokens), dim3(kThreads), 0, table, hidden, scale, ids, lane, last_id,
                x);
}

cudaError_t rms_norm(const Launch& how, const bf16* x, const uint32_t* row, uint32_t count, uint32_t hidden,
                     const Norm& norm, bf16* y) {
  return launch(how, rms_norm_kernel, dim3(count), dim3(kThreads), 0, x, row, hidden, norm, y);
}

cudaError_t split_qkv(const Launch& how, const bf16* qkv, uint32_t tokens, const bf16* bias,
                      const TokenView& where, const RopeView& rope, const KvView& kv, uint32_t layer,
                      uint32_t heads, bool values, bf16* q) {
  return launch(how, split_qkv_kernel, dim3(tokens), dim3(kThreads), 0, qkv, bias, where, rope, kv, layer,
                heads, values, q);
}

cudaError_t store_values(const Launch& how, const bf16* qkv, const bf16* bias, const BlockTokens* groups,
                         uint32_t count, const KvView& kv, uint32_t layer, uint32_t heads) {
  if (kv.head_dim > kMostHeadDim) return cudaErrorInvalidValue;
  return launch(how, store_values_kernel, dim3(count, kv.kv_heads), dim3(kValueThreads), 0, qkv, bias, groups,
                kv, layer, heads);
}

cudaError_t gate(const Launch& how, const bf16* x, uint32_t tokens, uint32_t width, Gate kind, bf16* y) {
  return launch(how, gate_kernel, dim3((width / 4 + kThreads - 1) / kThreads, tokens), dim3(kThreads), 0, x,
                width, kind, y);
}

}  // namespace ringmaster::gpu_worker::cuda
