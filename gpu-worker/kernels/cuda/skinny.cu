#include "gpu-worker/kernels/cuda/mma.cuh"
#include "gpu-worker/kernels/cuda/pipeline.cuh"
#include "gpu-worker/kernels/cuda/product_out.cuh"
#include "gpu-worker/kernels/cuda/skinny.h"
#include "gpu-worker/kernels/cuda/strips.cuh"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr uint32_t kColumns = 32;  // columns of one 16-byte read of a warp
// Roles. Eight warps multiply; one thread keeps the copy engine busy; two warps add up what the eight have
// found and do what follows, so that neither copies nor products ever wait for that.
constexpr uint32_t kMathWarps = 8, kCopyWarp = kMathWarps, kFirstOutWarp = kMathWarps + 1;
constexpr uint32_t kThreads = (kMathWarps + 1 + kOutWarps) * kWarp;
// Some 130 KB: four microseconds of a multiprocessor's share of the memory's bandwidth. More than half of the
// shared memory on purpose: the next kernel's block starts to fill its stages when this one's leaves. Beside
// the bulk of this one's reads it would have them full, and the memory nothing to do, by the time it waits
// for results (measured: 78 against 71 us a layer of Phi-3-mini).
constexpr uint32_t kMostStages = 8;
constexpr uint32_t kFewestStages = 3;
constexpr uint32_t kSharedBytes = 217 << 10;  // of 227 KB, less what is declared below and the system's
constexpr uint32_t kMostStageColumns = 1024;
// Rows of a stage are 64 bytes apart beyond their length: the eight rows that a warp reads at once then lie
// in different banks.
constexpr uint32_t kPadding = 32;  // values
// Beyond so many launches cuBLASLt is quicker.
constexpr uint32_t kMostParts = 4;
// Of a normed row, at least 1024 columns each: more columns than fit shared memory.
constexpr uint32_t kMostRuns = 112;

// What a launch is made of, worked out on the host.
struct Tiling {
  uint32_t stage_columns = 0;  // divides k
  uint32_t stages_of_strip = 0;
  uint32_t stages = 0;
  uint32_t shared_bytes = 0;
};

// x in shared memory, [k / 32][row][32]; with a norm x * weight, and the rows' factors in `factor`. All warps
// take part; a warp has several chunks of a row on their way at once.
template <uint32_t kRows, bool kNorm>
__device__ void stage_rows(const Product& p, const Norm& norm, uint4* staged, float* factor, float* scratch) {
  constexpr uint32_t kAllWarps = kThreads / kWarp, kAtOnce = kRows == 8 ? 4 : 8;
  const uint32_t chunks = p.k / 8, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const uint32_t runs =
      (chunks + kWarp * kAtOnce - 1) / (kWarp * kAtOnce);  // a run: what a warp takes at once of a row
#pragma unroll 1
  for (uint32_t i = warp; i < p.rows * runs; i += kAllWarps) {
    const uint32_t row = i / runs, first = i % runs * kWarp * kAtOnce + lane;
    const uint4* const from = reinterpret_cast<const uint4*>(p.x + size_t{row} * p.stride());
    const uint4* const weights = reinterpret_cast<const uint4*>(norm.weight);
    uint4 v[kAtOnce], w[kAtOnce];
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t c = first + n * kWarp;
      v[n] = c < chunks ? from[c] : uint4{0, 0, 0, 0};
      if constexpr (kNorm) w[n] = c < chunks ? weights[c] : uint4{0, 0, 0, 0};
    }
    float squares = 0;
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t c = first + n * kWarp;
      if constexpr (kNorm) {
        uint32_t* const values = &v[n].x;
        const uint32_t* const factors = &w[n].x;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 a = unpack(values[j]), b = unpack(factors[j]);
          squares += a.x * a.x + a.y * a.y;
          values[j] = pack(a.x * b.x, a.y * b.y);
        }
      }
      if (c < chunks) staged[(c / 4 * p.rows + row) * 4 + c % 4] = v[n];
    }
    if constexpr (kNorm) {
      squares = warp_sum(squares);
      if (lane == 0) scratch[row * kMostRuns + i % runs] = squares;
    }
  }
  __syncthreads();
  if constexpr (kNorm) {
    if (threadIdx.x < p.rows) {
      float sum = 0;
      for (uint32_t r = 0; r < runs; ++r) sum += scratch[threadIdx.x * kMostRuns + r];
      factor[threadIdx.x] = rsqrtf(sum / static_cast<float>(p.k) + norm.epsilon);
    }
    __syncthreads();
  }
}

// kRows: 8 or 16, at least p.rows. Shared memory: the stages of W, then x.
template <uint32_t kRows, bool kNorm, typename Out>
__global__ __launch_bounds__(kThreads, 2) void skinny_kernel(const Product p, const Norm norm,
                                                             const Tiling tiling, const Out out) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Barrier full[kMostStages], empty[kMostStages];
  __shared__ StripSums<kMathWarps, kRows> sums;
  __shared__ float factor[kRows];
  static_assert(sizeof sums >= kRows * kMostRuns * sizeof(float) &&
                kMostRuns * 1024 * sizeof(bf16) > kSharedBytes);

  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, strips = p.n / kStrip;
  const uint32_t row_values = tiling.stage_columns + kPadding, stage_values = kStrip * row_values;
  bf16* const stages = reinterpret_cast<bf16*>(shared);
  uint4* const staged = reinterpret_cast<uint4*>(stages + tiling.stages * stage_values);
  const uint32_t my_strips = (strips - blockIdx.x + gridDim.x - 1) / gridDim.x,
                 my_stages = my_strips * tiling.stages_of_strip;

  if (threadIdx.x == 0) init_stages(full, empty, tiling.stages, kMathWarps);
  __syncthreads();
  let_successor_start();

  // The copy thread's: stage number `next` of this block into its place.
  uint32_t next = 0;
  Place copied;
  const auto fetch = [&](uint64_t policy) {
    const uint32_t strip = blockIdx.x + next / tiling.stages_of_strip * gridDim.x,
                   part = next % tiling.stages_of_strip;
    const bf16* const from = p.weights + size_t{strip} * kStrip * p.stride() + part * tiling.stage_columns;
    bf16* const to = stages + copied.index * stage_values;
    Barrier& done = full[copied.index];
    done.expect(kStrip * tiling.stage_columns * sizeof(bf16));
    for (uint32_t row = 0; row < kStrip; ++row)
      copy_bulk(to + row * row_values, from + size_t{row} * p.stride(), tiling.stage_columns * sizeof(bf16),
                done, policy);
    ++next;
    copied.advance(tiling.stages);
  };
  const bool copies = warp == kCopyWarp && lane == 0;
  const uint64_t policy = evict_first_policy();
  if (copies)
    while (next < min(tiling.stages, my_stages)) fetch(policy);
  wait_for_predecessor();
  stage_rows<kRows, kNorm>(p, norm, staged, factor, &sums.values[0][0][0]);

  if (warp == kCopyWarp) {
    if (!copies) return;
    while (next < my_stages) {
      empty[copied.index].wait(copied.parity ^
                               1);  // of the phase before: whoever used the stage last has left it
      fetch(policy);
    }
  } else if (warp < kMathWarps) {
    const uint32_t row = lane / 4, chunk = lane % 4, groups = tiling.stage_columns / kColumns;
    Place used;
    for (uint32_t s = 0; s < my_strips; ++s) {
      Accumulator total, other;  // two, so that products need not wait for each other
      for (uint32_t part = 0; part < tiling.stages_of_strip; ++part) {
        full[used.index].wait(used.parity);
        const bf16* const w_row = stages + used.index * stage_values + row * row_values + chunk * 8;
        const uint4* const x_group = staged + part * groups * p.rows * 4 + chunk;
#pragma unroll 4
        for (uint32_t group = warp; group < groups; group += kMathWarps) {
          const uint4 w = *reinterpret_cast<const uint4*>(w_row + group * kColumns);
          uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
          if (row < p.rows) low = x_group[(group * p.rows + row) * 4];
          if (kRows > 8 && row + 8 < p.rows) high = x_group[(group * p.rows + row + 8) * 4];
          mma(total, low.x, high.x, low.y, high.y, w.x, w.y);
          mma(other, low.z, high.z, low.w, high.w, w.z, w.w);
        }
        __syncwarp();
        if (lane == 0) empty[used.index].arrive();
        used.advance(tiling.stages);
      }
      for (int i = 0; i < 4; ++i) total.v[i] += other.v[i];
      float* const mine = sums.begin(s, warp);
      mine[row * kStrip + chunk * 2] = total.v[0];
      mine[row * kStrip + chunk * 2 + 1] = total.v[1];
      if constexpr (kRows > 8) {
        mine[(row + 8) * kStrip + chunk * 2] = total.v[2];
        mine[(row + 8) * kStrip + chunk * 2 + 1] = total.v[3];
      }
      sums.end(s);
    }
  } else {
    sums.template take<kNorm>(out, factor, p.rows, my_strips, threadIdx.x - kFirstOutWarp * kWarp);
  }
}

// The widest stages that divide the columns, as many as fit beside x; no stages at all when too few do.
Tiling tile(const Product& p) {
  Tiling t;
  for (uint32_t columns = kColumns; columns <= kMostStageColumns; columns += kColumns)
    if (p.k % columns == 0) t.stage_columns = columns;
  const size_t x_bytes = size_t{p.rows} * p.k * sizeof(bf16),
               stage_bytes = kStrip * (t.stage_columns + kPadding) * sizeof(bf16);
  if (x_bytes + kFewestStages * stage_bytes > kSharedBytes) return t;
  const size_t fit = (kSharedBytes - x_bytes) / stage_bytes;
  t.stages = fit < kMostStages ? static_cast<uint32_t>(fit) : kMostStages;
  t.stages_of_strip = p.k / t.stage_columns;
  t.shared_bytes = static_cast<uint32_t>(x_bytes + t.stages * stage_bytes);
  return t;
}

template <uint32_t kRows, bool kNorm, typename Out>
cudaError_t launch_rows(const Launch& how, const Product& p, const Norm& norm, const Out& out) {
  const Tiling tiling = tile(p);
  if (tiling.stages == 0) return cudaErrorInvalidValue;
  const auto kernel = skinny_kernel<kRows, kNorm, Out>;
  const uint32_t strips = p.n / kStrip, places = static_cast<uint32_t>(how.multiprocessors);
  return launch(how, kernel, dim3(strips < places ? strips : places), dim3(kThreads), tiling.shared_bytes, p,
                norm, tiling, out);
}

template <bool kNorm, typename Out>
cudaError_t launch_product(const Launch& how, const Product& p, const Norm& norm, const Out& out) {
  if (!skinny_fits(p)) return cudaErrorInvalidValue;
  return p.rows <= 8 ? launch_rows<8, kNorm>(how, p, norm, out) : launch_rows<16, kNorm>(how, p, norm, out);
}

// Parts of its columns that add_product takes a product in; 0: it does not fit.
uint32_t parts_for(const Product& p) {
  for (uint32_t parts = 1; parts <= kMostParts; ++parts) {
    Product part = p;
    part.k = p.k / parts;
    if (p.k % (parts * kColumns) == 0 && skinny_fits(part)) return parts;
  }
  return 0;
}

}  // namespace

bool skinny_fits(const Product& p) {
  return p.rows > 0 && p.rows <= kSkinnyRows && p.n > 0 && p.n % kStrip == 0 && p.k > 0 &&
         p.k % kColumns == 0 && tile(p).stages > 0;
}

cudaError_t project_qkv(const Launch& how, const Product& p, const Norm& norm, const bf16* bias,
                        const TokenView& tokens, const RopeView& rope, const KvView& kv, uint32_t layer,
                        uint32_t heads, bf16* q) {
  return launch_product<true>(
      how, p, norm, QkvOut{tokens, rope, kv, bias, q, layer, heads * kv.head_dim, kv.kv_heads * kv.head_dim});
}

bool add_product_fits(const Product& p) {
  return parts_for(p) != 0;
}

// Many long rows are taken in parts of their columns, as few as fit.
cudaError_t add_product(const Launch& how, const Product& p, bf16* residual) {
  const uint32_t parts = parts_for(p);
  if (parts == 0) return cudaErrorInvalidValue;
  Product part = p;
  part.row_stride = static_cast<uint32_t>(p.stride());
  part.k = p.k / parts;
  for (uint32_t i = 0; i < parts; ++i, part.weights += part.k, part.x += part.k)
    if (cudaError_t e = launch_product<false>(how, part, {}, ResidualOut{residual, p.n}); e != cudaSuccess)
      return e;
  return cudaSuccess;
}

cudaError_t gated_product(const Launch& how, const Product& p, const Norm& norm, Gate gate, bf16* y) {
  if (gate == Gate::kSilu) return launch_product<true>(how, p, norm, GatedOut<Gate::kSilu>{y, p.n});
  return launch_product<true>(how, p, norm, GatedOut<Gate::kGeluTanh>{y, p.n});
}

cudaError_t logits(const Launch& how, const Product& p, float soft_cap, float* y) {
  return launch_product<false>(how, p, {}, LogitsOut{y, p.n, soft_cap});
}

}  // namespace ringmaster::gpu_worker::cuda
