#include "gpu-worker/kernels/cuda/pipeline.cuh"
#include "gpu-worker/kernels/cuda/product_out.cuh"
#include "gpu-worker/kernels/cuda/tensor_map.h"
#include "gpu-worker/kernels/cuda/wgmma.cuh"
#include "gpu-worker/kernels/cuda/wide.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr uint32_t kColumns = 64;  // of a box: 128 bytes of a row
// Two warpgroups take the stages in turn: products of few columns wait for each other more than they compute.
constexpr uint32_t kGroups = 2, kGroupThreads = kWarpgroup, kMathThreads = kGroups * kGroupThreads;
constexpr uint32_t kThreads = kMathThreads + kWarp;
constexpr uint32_t kMathBarrier = 1;  // named
constexpr uint32_t kMostStages = 32;
constexpr uint32_t kSharedBytes = 224 << 10;  // of 227 KB, less what is declared below and the system's
constexpr uint32_t kSwizzleBytes = 1024;      // eight swizzled rows; boxes begin at a multiple
// The matrix cores read 64 rows of x wherever the last box of x begins; what lies there beyond the real rows
// makes sums that nobody takes.
constexpr uint32_t kReadBeyond = kWideRows * kColumns * sizeof(bf16);

// Fewer rows of W a stage, more columns: a stage is worth its barriers.
template <uint32_t kShare>
constexpr uint32_t kBoxes = kShare <= 48 ? 2 : 1;

struct Tiling {
  uint32_t x_bytes = 0;  // of a box of x
  uint32_t stage_bytes = 0, stages = 0, stages_of_row = 0;
};

__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap& map, uint32_t column, uint32_t row,
                                         const Barrier& done, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(done.address()), "l"(policy)
      : "memory");
}

// The copy thread: a stage is its boxes of x, then those of W. W's first stages come before the kernel's
// predecessor has ended.
template <uint32_t kShare>
__device__ void fetch_stages(const CUtensorMap& w_map, const CUtensorMap& x_map, const Tiling& t,
                             uint32_t rows, uint32_t stages, Barrier* full, Barrier* empty) {
  constexpr uint32_t kWBytes = kShare * kColumns * sizeof(bf16);
  const uint64_t once = evict_first_policy(), again = evict_last_policy();
  const auto fetch_w = [&](uint32_t number, uint32_t index) {
    full[index].expect(kBoxes<kShare> * (kWBytes + rows * kColumns * sizeof(bf16)));
    for (uint32_t i = 0; i < kBoxes<kShare>; ++i)
      copy_box(stages + index * t.stage_bytes + kBoxes<kShare> * t.x_bytes + i * kWBytes, w_map,
               (number * kBoxes<kShare> + i) * kColumns, blockIdx.x * kShare, full[index], once);
  };
  const auto fetch_x = [&](uint32_t number, uint32_t index) {
    for (uint32_t i = 0; i < kBoxes<kShare>; ++i)
      copy_box(stages + index * t.stage_bytes + i * t.x_bytes, x_map,
               (number * kBoxes<kShare> + i) * kColumns, 0, full[index], again);
  };
  const uint32_t early = min(t.stages_of_row, t.stages);
  for (uint32_t i = 0; i < early; ++i) fetch_w(i, i);
  wait_for_predecessor();
  for (uint32_t i = 0; i < early; ++i) fetch_x(i, i);
  Place at;
  for (uint32_t number = early; number < t.stages_of_row; ++number) {
    empty[at.index].wait(at.parity);
    fetch_w(number, at.index);
    fetch_x(number, at.index);
    at.advance(t.stages);
  }
}

// Adds up the groups' sums and turns them around in shared memory, so that neighbouring threads have
// neighbouring columns of y.
template <uint32_t kShare, typename Out>
__device__ void finish(const float (&sums)[kShare / 2], float* turned, uint32_t rows, const Out& out) {
  constexpr uint32_t kStride = kShare + 2;
  const uint32_t warp = threadIdx.x % kGroupThreads / kWarp, lane = threadIdx.x % kWarp;
  for (uint32_t group = 0; group < kGroups; ++group) {
    if (threadIdx.x / kGroupThreads == group) {
#pragma unroll
      for (uint32_t j = 0; j < kShare / 8; ++j)
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) {
          float2& to = *reinterpret_cast<float2*>(turned + (16 * warp + lane / 4 + 8 * h) * kStride + 8 * j +
                                                  2 * (lane % 4));
          const float2 mine = {sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]};
          to = group == 0 ? mine : float2{to.x + mine.x, to.y + mine.y};
        }
    }
    sync_named(kMathBarrier, kMathThreads);
  }
  constexpr uint32_t kAtOnce = 4;
#pragma unroll 1
  for (uint32_t first = threadIdx.x; first < rows * kShare + threadIdx.x % kWarp;
       first += kMathThreads * kAtOnce) {
    typename Out::Ready ready[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t row = (first + i * kMathThreads) / kShare,
                     in_share = (first + i * kMathThreads) % kShare;
      if (row < rows) ready[i] = out.before(out.of_row(row), row, blockIdx.x * kShare + in_share);
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t row = (first + i * kMathThreads) / kShare,
                     in_share = (first + i * kMathThreads) % kShare;
      out.after(ready[i], row, blockIdx.x * kShare + in_share,
                row < rows ? turned[row * kStride + in_share] : 0, row < rows);
    }
  }
}

// kShare: rows of W of a block.
template <uint32_t kShare, typename Out>
__global__ __launch_bounds__(kThreads) void wide_kernel(const __grid_constant__ CUtensorMap w_map,
                                                        const __grid_constant__ CUtensorMap x_map,
                                                        const Tiling t, const uint32_t rows, const Out out) {
  extern __shared__ unsigned char shared[];
  __shared__ Barrier full[kMostStages], empty[kMostStages];
  const uint32_t unaligned = shared_address(shared),
                 stages = (unaligned + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
  if (threadIdx.x == 0) init_stages(full, empty, t.stages, kGroupThreads / kWarp);
  __syncthreads();
  let_successor_start();

  if (threadIdx.x >= kMathThreads) {
    if (threadIdx.x == kMathThreads) fetch_stages<kShare>(w_map, x_map, t, rows, stages, full, empty);
    return;
  }
  constexpr uint32_t kWBytes = kShare * kColumns * sizeof(bf16);
  const uint32_t group = threadIdx.x / kGroupThreads, stages_of_group = t.stages / kGroups;
  float sums[kShare / 2];
  Place at, before;  // among the stages of this group, which are every kGroups-th
  const auto stage_of = [&](const Place& place) { return place.index * kGroups + group; };
  for (uint32_t number = group; number < t.stages_of_row; number += kGroups) {
    full[stage_of(at)].wait(at.parity);
    const uint32_t x = stages + stage_of(at) * t.stage_bytes, w = x + kBoxes<kShare> * t.x_bytes;
    begin_products();
#pragma unroll
    for (uint32_t i = 0; i < kBoxes<kShare>; ++i)
#pragma unroll
      for (uint32_t k = 0; k < kColumns / 16; ++k)
        wgmma<kShare>(sums, advanced(operand(x + i * t.x_bytes, RowBytes::k128, kSwizzleBytes), 32 * k),
                      advanced(operand(w + i * kWBytes, RowBytes::k128, kSwizzleBytes), 32 * k),
                      number > group || i > 0 || k > 0);
    end_products();
    wait_for_products<1>();  // the products of the stage before have ended when only these are on their way
    if (number > group) {
      if (threadIdx.x % kWarp == 0) empty[stage_of(before)].arrive();
      before.advance(stages_of_group);
    }
    at.advance(stages_of_group);
  }
  wait_for_products<0>();
  wait_for_predecessor();  // it has ended long ago; now what it wrote may be read and written here too
  sync_named(kMathBarrier, kMathThreads);
  // All stages have been used, so their place is free.
  finish<kShare>(sums, reinterpret_cast<float*>(shared + (stages - unaligned)), rows, out);
}

template <uint32_t kShare>
Tiling tile(const Product& p) {
  Tiling t;
  t.x_bytes = (p.rows + 7) / 8 * kSwizzleBytes;
  t.stage_bytes = kBoxes<kShare> * (t.x_bytes + kShare * kColumns * static_cast<uint32_t>(sizeof(bf16)));
  t.stages = (kSharedBytes - kSwizzleBytes - kReadBeyond) / t.stage_bytes;
  t.stages = (t.stages < kMostStages ? t.stages : kMostStages) / kGroups * kGroups;
  t.stages_of_row = p.k / (kBoxes<kShare> * kColumns);
  static_assert(kWideRows * (kShare + 2) * sizeof(float) <= kSharedBytes - kSwizzleBytes);
  return t;
}

template <uint32_t kShare, typename Out>
cudaError_t launch_share(const Launch& how, const Product& p, const Out& out) {
  const auto kernel = wide_kernel<kShare, Out>;
  CUtensorMap w_map, x_map;
  cudaError_t e = describe_rows(p.weights, p.n, p.k, kShare, w_map);
  if (e == cudaSuccess) e = describe_rows(p.x, p.rows, p.k, p.rows, x_map);
  if (e != cudaSuccess) return e;
  return launch(how, kernel, dim3(p.n / kShare), dim3(kThreads), kSharedBytes, w_map, x_map, tile<kShare>(p),
                p.rows, out);
}

// The share that gives nearly all multiprocessors one; 0: none does.
uint32_t share_of(const Product& p, int multiprocessors) {
  const uint32_t places = static_cast<uint32_t>(multiprocessors);
  for (const uint32_t share : {24u, 32u, 48u, 72u, 128u, 224u})
    if (p.n % share == 0 && p.n / share <= places && p.n / share >= places - places / 10) return share;
  return 0;
}

template <typename Out>
cudaError_t launch_product(const Launch& how, const Product& p, const Out& out) {
  if (!wide_fits(p, how.multiprocessors)) return cudaErrorInvalidValue;
  switch (share_of(p, how.multiprocessors)) {
    case 24:
      return launch_share<24>(how, p, out);
    case 32:
      return launch_share<32>(how, p, out);
    case 48:
      return launch_share<48>(how, p, out);
    case 72:
      return launch_share<72>(how, p, out);
    case 128:
      return launch_share<128>(how, p, out);
    default:
      return launch_share<224>(how, p, out);
  }
}

}  // namespace

bool wide_fits(const Product& p, int multiprocessors) {
  return p.rows > 0 && p.rows <= kWideRows && p.k > 0 && p.k % (kGroups * 2 * kColumns) == 0 &&
         p.row_stride == 0 && share_of(p, multiprocessors) != 0;
}

cudaError_t wide_project_qkv(const Launch& how, const Product& p, const bf16* bias, const TokenView& tokens,
                             const RopeView& rope, const KvView& kv, uint32_t layer, uint32_t heads,
                             bf16* q) {
  return launch_product(
      how, p, QkvOut{tokens, rope, kv, bias, q, layer, heads * kv.head_dim, kv.kv_heads * kv.head_dim});
}

cudaError_t wide_add_product(const Launch& how, const Product& p, bf16* residual) {
  return launch_product(how, p, ResidualOut{residual, p.n});
}

cudaError_t wide_gated_product(const Launch& how, const Product& p, Gate gate, bf16* y) {
  if (gate == Gate::kSilu) return launch_product(how, p, GatedOut<Gate::kSilu>{y, p.n});
  return launch_product(how, p, GatedOut<Gate::kGeluTanh>{y, p.n});
}

}  // namespace ringmaster::gpu_worker::cuda
