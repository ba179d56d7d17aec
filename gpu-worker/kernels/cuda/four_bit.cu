#include "gpu-worker/kernels/cuda/four_bit.h"

#include <cuda_fp16.h>

#include "gpu-worker/kernels/cuda/mma.cuh"
#include "gpu-worker/kernels/cuda/pipeline.cuh"
#include "gpu-worker/kernels/cuda/product_out.cuh"
#include "gpu-worker/kernels/cuda/strips.cuh"

namespace ringmaster::gpu_worker::cuda {
namespace {

static_assert(kStrip == FourBitShape::kUnitRows);
// Roles, as in skinny.cu, with more warps that multiply: 12 divide the 24 units of 3072 columns (8 and 16 are
// slower by 5 and 1 % of a layer at one row).
constexpr uint32_t kMathWarps = 12, kCopyWarp = kMathWarps, kFirstOutWarp = kMathWarps + 1;
constexpr uint32_t kThreads = (kMathWarps + 1 + kOutWarps) * kWarp;
constexpr uint32_t kMostStages = 16, kFewestStages = 3;
constexpr uint32_t kMostStageBytes = 20 << 10;
// More than half of the shared memory: beside blocks of the next kernels attention waits for room (46 against
// 58 us a layer of Phi-3-mini). Not much more: copies far ahead gain nothing (208 KB: 47 us).
constexpr uint32_t kWantedBytes = 118 << 10;
constexpr uint32_t kSharedBytes = 210 << 10;  // of 227 KB, less what is declared in the kernel
constexpr uint32_t kMostRows = 16;            // of a launch
constexpr uint32_t kMostParts = 4;            // of the columns of add_product
constexpr uint32_t kMostBlocks = 64;          // of 256 columns, of a normed row
constexpr uint32_t kUnitChunks = FourBitShape::kUnitColumns / 8;  // of 16 bytes of x
constexpr uint32_t kMagic = 0x43004300;  // a pair of bf16 128s, whose mantissas end at the units
constexpr float kMagicValue = 128;

// One launch's share of a product.
struct Part {
  const std::byte* weights;  // of the first unit
  const bf16* x;             // [rows, k_stride], the first of these columns
  uint32_t n, k, rows;
  uint32_t k_stride;
  uint32_t units, strip_units;  // units: of k
  bool again;                   // the same weights are read once more by the next launch
};

struct Tiling {
  uint32_t stage_units = 0;  // divides units
  uint32_t stages_of_strip = 0;
  uint32_t stages = 0;
  uint32_t shared_bytes = 0;
};

// Of x in shared memory, in chunks of 16 bytes. Rows are 64 bytes apart beyond their length: two rows, which
// eight lanes read at once, lie in different banks.
__host__ __device__ constexpr uint32_t staged_row(uint32_t chunks) {
  return chunks + 4;
}

template <uint32_t kGroup>
constexpr uint32_t kUnitBytes = FourBitShape::kCodeBytes + FourBitShape::kUnitColumns / kGroup* kStrip * 4;

__device__ __forceinline__ uint32_t pair_of(uint32_t codes) {
  uint32_t pair;
  asm("lop3.b32 %0, %1, 0x000F000F, %2, 0xEA;" : "=r"(pair) : "r"(codes), "r"(kMagic));  // (a & b) | c
  return pair;
}

// x in shared memory, row by row, zeros beyond k, with a norm x * weight and the rows' factors in
// `factor`; sums of each group of columns, as staged, in `group_sums` [k / kGroup][kRows]. What no kernel of
// a step writes is read before the predecessor's end. All warps take part.
template <uint32_t kRows, uint32_t kGroup, bool kNorm, uint32_t kAtOnce>
__device__ void stage_rows(const Part& p, const Norm& norm, uint4* staged, float* group_sums, float* factor,
                           float* scratch) {
  constexpr uint32_t kAllWarps = kThreads / kWarp, kRun = kWarp * kAtOnce;  // chunks of 8 values
  const uint32_t chunks = p.k / 8, padded = p.units * kUnitChunks, warp = threadIdx.x / kWarp,
                 lane = threadIdx.x % kWarp, runs = (padded + kRun - 1) / kRun,
                 blocks = (padded + kWarp - 1) / kWarp;
  const uint4* const weights = reinterpret_cast<const uint4*>(norm.weight);
  uint4 w[kAtOnce];
  const auto read_norm = [&](uint32_t run) {
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t c = run * kRun + n * kWarp + lane;
      w[n] = c < chunks ? weights[c] : uint4{0, 0, 0, 0};
    }
  };
  if constexpr (kNorm) read_norm(warp % runs);
  wait_for_predecessor();
#pragma unroll 1
  for (uint32_t i = warp; i < p.rows * runs; i += kAllWarps) {
    const uint32_t row = i / runs, first = i % runs * kRun + lane;
    const uint4* const from = reinterpret_cast<const uint4*>(p.x + size_t{row} * p.k_stride);
    uint4 v[kAtOnce];
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t c = first + n * kWarp;
      v[n] = c < chunks ? from[c] : uint4{0, 0, 0, 0};
    }
    if constexpr (kNorm)
      if (i != warp) read_norm(i % runs);
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t c = first + n * kWarp;
      uint32_t* const values = &v[n].x;
      const uint32_t* const factors = &w[n].x;
      float sum = 0, squares = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float2 a = unpack(values[j]);
        if constexpr (kNorm) {
          const float2 b = unpack(factors[j]);
          squares = __fmaf_rn(a.y, a.y, __fmaf_rn(a.x, a.x, squares));
          values[j] = pack(a.x * b.x, a.y * b.y);
          a = unpack(values[j]);
        }
        sum += a.x + a.y;
      }
#pragma unroll
      for (uint32_t apart = 1; apart < kGroup / 8; apart *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, apart);
      if constexpr (kNorm) {  // by blocks of a warp's chunks, whatever a run is: a row's factor is the same
        squares = warp_sum(squares);
        const uint32_t block = i % runs * kAtOnce + n;
        if (lane == 0 && block < blocks) scratch[row * kMostBlocks + block] = squares;
      }
      if (c < padded) {
        staged[row * staged_row(padded) + c] = v[n];
        if (c % (kGroup / 8) == 0) group_sums[c / (kGroup / 8) * kRows + row] = sum;
      }
    }
  }
  __syncthreads();
  if constexpr (kNorm) {
    if (threadIdx.x < p.rows) {
      float sum = 0;
      for (uint32_t b = 0; b < blocks; ++b) sum += scratch[threadIdx.x * kMostBlocks + b];
      factor[threadIdx.x] = rsqrtf(sum / static_cast<float>(p.k) + norm.epsilon);
    }
    __syncthreads();
  }
}

// y += W x^T for one unit: 8 rows of W are rows 0 to 7 of the product's A (8 to 15 are zero: strips of 16
// would divide among the multiprocessors too unevenly), eight rows of x at a time its B, so that neither
// moves between registers. y: weight row lane / 4, of each eight rows of x 2 (lane % 4) and the next. x:
// where the lane's rows begin in this unit. group_sums: of the unit.
template <uint32_t kRows, uint32_t kGroup>
__device__ __forceinline__ void multiply_unit(float (&y)[kRows / 8][2], const std::byte* unit,
                                              const uint4* const (&x)[kRows / 8], uint32_t x_first,
                                              const float* group_sums) {
  constexpr uint32_t kTiles = kRows / 8;
  const uint32_t lane = threadIdx.x % kWarp, row = lane / 4, chunk = lane % 4;
  const uint4 codes = *reinterpret_cast<const uint4*>(unit + lane * 16);
  Accumulator first[kTiles], second[kTiles];  // two, so that products need not wait for each other
#pragma unroll
  for (uint32_t c = 0; c < 4; ++c) {
    const uint32_t w = (&codes.x)[c], w0 = pair_of(w), w1 = pair_of(w >> 4), w2 = pair_of(w >> 8),
                   w3 = pair_of(w >> 12);
#pragma unroll
    for (uint32_t t = 0; t < kTiles; ++t) {
      const uint4 v = x[t][x_first + c * 4];
      mma(first[t], w0, 0, w1, 0, v.x, v.y);
      mma(second[t], w2, 0, w3, 0, v.z, v.w);
    }
    if ((c + 1) * 32 % kGroup != 0) continue;
    const uint32_t group = (c + 1) * 32 / kGroup - 1;
    const float2 scale = __half22float2(
        *reinterpret_cast<const __half2*>(unit + FourBitShape::kCodeBytes + (group * kStrip + row) * 4));
    const float offset = __fmaf_rn(-kMagicValue, scale.x, scale.y);
#pragma unroll
    for (uint32_t t = 0; t < kTiles; ++t) {
      const float2 sum = *reinterpret_cast<const float2*>(group_sums + group * kRows + t * 8 + chunk * 2);
      // Written out, so that kernels for few and for many rows round alike.
      y[t][0] =
          __fmaf_rn(scale.x, __fadd_rn(first[t].v[0], second[t].v[0]), __fmaf_rn(offset, sum.x, y[t][0]));
      y[t][1] =
          __fmaf_rn(scale.x, __fadd_rn(first[t].v[1], second[t].v[1]), __fmaf_rn(offset, sum.y, y[t][1]));
      first[t] = {};
      second[t] = {};
    }
  }
}

// kRows: 8 or 16, at least p.rows. Shared memory: the stages of W, x, the sums of its groups.
template <uint32_t kRows, uint32_t kGroup, bool kNorm, typename Out>
__global__ __launch_bounds__(kThreads, 1) void four_bit_kernel(const Part p, const Norm norm,
                                                               const Tiling tiling, const Out out) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ Barrier full[kMostStages], empty[kMostStages];
  __shared__ StripSums<kMathWarps, kRows> sums;
  __shared__ float factor[kRows];
  static_assert(sizeof sums >= kRows * kMostBlocks * sizeof(float));

  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, strips = p.n / kStrip;
  const uint32_t stage_bytes = tiling.stage_units * kUnitBytes<kGroup>;
  uint4* const staged = reinterpret_cast<uint4*>(shared + tiling.stages * stage_bytes);
  float* const group_sums = reinterpret_cast<float*>(staged + staged_row(p.units * kUnitChunks) * p.rows);
  const uint32_t my_strips = (strips - blockIdx.x + gridDim.x - 1) / gridDim.x,
                 my_stages = my_strips * tiling.stages_of_strip;

  if (threadIdx.x == 0) init_stages(full, empty, tiling.stages, kMathWarps);
  __syncthreads();
  let_successor_start();

  // The copy thread's: stage number `next` of this block into its place.
  uint32_t next = 0;
  Place copied;
  const uint64_t policy = p.again ? evict_last_policy() : evict_first_policy();
  const auto fetch = [&] {
    const uint32_t strip = blockIdx.x + next / tiling.stages_of_strip * gridDim.x,
                   part = next % tiling.stages_of_strip;
    Barrier& done = full[copied.index];
    done.expect(stage_bytes);
    copy_bulk(shared + copied.index * stage_bytes,
              p.weights + size_t{strip} * p.strip_units * kUnitBytes<kGroup> + part * stage_bytes,
              stage_bytes, done, policy);
    ++next;
    copied.advance(tiling.stages);
  };
  const bool copies = warp == kCopyWarp && lane == 0;
  if (copies)
    while (next < min(tiling.stages, my_stages)) fetch();
  __syncwarp();
  if (p.rows == 1)
    stage_rows<kRows, kGroup, kNorm, 1>(p, norm, staged, group_sums, factor, &sums.values[0][0][0]);
  else
    stage_rows<kRows, kGroup, kNorm, 4>(p, norm, staged, group_sums, factor, &sums.values[0][0][0]);

  if (warp == kCopyWarp) {
    if (!copies) return;
    while (next < my_stages) {
      empty[copied.index].wait(copied.parity ^ 1);
      fetch();
    }
  } else if (warp < kMathWarps) {
    constexpr uint32_t kUnitGroups = FourBitShape::kUnitColumns / kGroup, kTiles = kRows / 8;
    const uint32_t row = lane / 4, chunk = lane % 4;
    const uint4* x[kTiles];  // rows that there are not are read as the last one: nobody takes their sums
    for (uint32_t t = 0; t < kTiles; ++t)
      x[t] = staged + min(t * 8 + row, p.rows - 1) * staged_row(p.units * kUnitChunks) + chunk;
    Place used;
    for (uint32_t s = 0; s < my_strips; ++s) {
      float total[kTiles][2] = {};
      for (uint32_t part = 0; part < tiling.stages_of_strip; ++part) {
        full[used.index].wait(used.parity);
        const std::byte* const stage = shared + used.index * stage_bytes;
#pragma unroll 2
        for (uint32_t u = warp; u < tiling.stage_units; u += kMathWarps) {
          const uint32_t unit = part * tiling.stage_units + u;
          multiply_unit<kRows, kGroup>(total, stage + u * kUnitBytes<kGroup>, x, unit * kUnitChunks,
                                       group_sums + unit * kUnitGroups * kRows);
        }
        __syncwarp();
        if (lane == 0) empty[used.index].arrive();
        used.advance(tiling.stages);
      }
      float* const mine = sums.begin(s, warp);
#pragma unroll
      for (uint32_t t = 0; t < kTiles; ++t)
        for (uint32_t i = 0; i < 2; ++i) mine[(t * 8 + chunk * 2 + i) * kStrip + row] = total[t][i];
      sums.end(s);
    }
  } else {
    sums.template take<kNorm>(out, factor, p.rows, my_strips, threadIdx.x - kFirstOutWarp * kWarp);
  }
}

// Columns in so many parts; a part's x must start at a group.
Part part_of(const FourBitProduct& p, uint32_t parts) {
  const FourBitShape& shape = p.weights.shape;
  const uint32_t units = shape.units();
  return {.weights = p.weights.data,
          .x = p.x,
          .n = shape.n,
          .k = shape.k / parts,
          .rows = p.rows,
          .k_stride = shape.k,
          .units = units / parts,
          .strip_units = units,
          .again = false};
}

// The widest stages that divide the columns, as many as fit beside x; no stages at all when too few do.
Tiling tile(const Part& p, const FourBitShape& shape) {
  Tiling t;
  const uint32_t unit_bytes = shape.unit_bytes();
  for (uint32_t units = 1; units * unit_bytes <= kMostStageBytes; ++units)
    if (p.units % units == 0) t.stage_units = units;
  const size_t padded_k = size_t{p.units} * FourBitShape::kUnitColumns,
               x_bytes = size_t{p.rows} * staged_row(p.units * kUnitChunks) * 16 +
                         padded_k / shape.group * (p.rows > 8 ? 16 : 8) * sizeof(float),
               stage_bytes = size_t{t.stage_units} * unit_bytes;
  if (x_bytes + kFewestStages * stage_bytes > kSharedBytes || padded_k > kMostBlocks * 256) return t;
  const size_t wanted = x_bytes + kFewestStages * stage_bytes > kWantedBytes ? kSharedBytes : kWantedBytes;
  const size_t fit = (wanted - x_bytes) / stage_bytes;
  t.stages = fit < kMostStages ? static_cast<uint32_t>(fit) : kMostStages;
  t.stages_of_strip = p.units / t.stage_units;
  t.shared_bytes = static_cast<uint32_t>(x_bytes + t.stages * stage_bytes);
  return t;
}

bool shape_fits(const FourBitShape& s) {
  return s.n > 0 && s.n % kStrip == 0 && s.k > 0 && (s.group == 32 || s.group == 64 || s.group == 128) &&
         s.k % s.group == 0;
}

template <uint32_t kRows, uint32_t kGroup, bool kNorm, typename Out>
cudaError_t launch_rows(const Launch& how, const Part& p, const Tiling& tiling, const Norm& norm,
                        const Out& out) {
  const auto kernel = four_bit_kernel<kRows, kGroup, kNorm, Out>;
  const uint32_t strips = p.n / kStrip, places = static_cast<uint32_t>(how.multiprocessors);
  return launch(how, kernel, dim3(strips < places ? strips : places), dim3(kThreads), tiling.shared_bytes, p,
                norm, tiling, out);
}

template <bool kNorm, typename Out>
cudaError_t launch_part(const Launch& how, const Part& p, const FourBitShape& shape, const Norm& norm,
                        const Out& out) {
  const Tiling tiling = tile(p, shape);
  if (tiling.stages == 0) return cudaErrorInvalidValue;
  const auto with_group = [&]<uint32_t kGroup>() {
    return p.rows <= 8 ? launch_rows<8, kGroup, kNorm>(how, p, tiling, norm, out)
                       : launch_rows<16, kGroup, kNorm>(how, p, tiling, norm, out);
  };
  if (shape.group == 32) return with_group.template operator()<32>();
  if (shape.group == 64) return with_group.template operator()<64>();
  return with_group.template operator()<128>();
}

uint32_t rows_of_pass(uint32_t rows) {
  const uint32_t passes = (rows + kMostRows - 1) / kMostRows;
  return (rows + passes - 1) / passes;
}

uint32_t parts_for(const FourBitProduct& p) {
  const FourBitShape& shape = p.weights.shape;
  if (p.rows == 0 || !shape_fits(shape)) return 0;
  for (uint32_t parts = 1; parts <= kMostParts; ++parts) {
    if (parts > 1 && (shape.units() % parts != 0 || shape.k % FourBitShape::kUnitColumns != 0)) continue;
    Part part = part_of(p, parts);
    part.rows = rows_of_pass(p.rows);
    if (tile(part, shape).stages > 0) return parts;
  }
  return 0;
}

// As many launches as the rows need; out_of(first row) is what is done with the sums of those from it on.
template <bool kNorm, typename OutOf>
cudaError_t launch_product(const Launch& how, const FourBitProduct& p, uint32_t parts, const Norm& norm,
                           const OutOf& out_of) {
  if (parts == 0) return cudaErrorInvalidValue;
  const FourBitShape& shape = p.weights.shape;
  const uint32_t most = rows_of_pass(p.rows);
  Part part = part_of(p, parts);
  for (uint32_t i = 0; i < parts; ++i, part.weights += size_t{part.units} * shape.unit_bytes()) {
    for (uint32_t first = 0; first < p.rows; first += most) {
      part.rows = p.rows - first < most ? p.rows - first : most;
      part.x = p.x + size_t{first} * shape.k + size_t{i} * part.k;
      part.again = first + most < p.rows;
      if (cudaError_t e = launch_part<kNorm>(how, part, shape, norm, out_of(first)); e != cudaSuccess)
        return e;
    }
  }
  return cudaSuccess;
}

}  // namespace

bool four_bit_fits(const FourBitProduct& p) {
  return parts_for(p) == 1;
}

bool add_four_bit_fits(const FourBitProduct& p) {
  return parts_for(p) != 0;
}

cudaError_t project_qkv(const Launch& how, const FourBitProduct& p, const Norm& norm, const bf16* bias,
                        const TokenView& tokens, const RopeView& rope, const KvView& kv, uint32_t layer,
                        uint32_t heads, bf16* q) {
  const uint32_t q_width = heads * kv.head_dim;
  return launch_product<true>(how, p, four_bit_fits(p) ? 1 : 0, norm, [&](uint32_t first) {
    return QkvOut{{tokens.position + first, tokens.kv_slot + first},
                  rope,
                  kv,
                  bias,
                  q + size_t{first} * q_width,
                  layer,
                  q_width,
                  kv.kv_heads * kv.head_dim};
  });
}

cudaError_t add_product(const Launch& how, const FourBitProduct& p, bf16* residual) {
  const uint32_t n = p.weights.shape.n;
  return launch_product<false>(how, p, parts_for(p), {}, [&](uint32_t first) {
    return ResidualOut{residual + size_t{first} * n, n};
  });
}

cudaError_t gated_product(const Launch& how, const FourBitProduct& p, const Norm& norm, Gate gate, bf16* y) {
  const uint32_t n = p.weights.shape.n, parts = four_bit_fits(p) ? 1 : 0;
  if (gate == Gate::kSilu)
    return launch_product<true>(how, p, parts, norm, [&](uint32_t first) {
      return GatedOut<Gate::kSilu>{y + size_t{first} * (n / 2), n};
    });
  return launch_product<true>(how, p, parts, norm, [&](uint32_t first) {
    return GatedOut<Gate::kGeluTanh>{y + size_t{first} * (n / 2), n};
  });
}

cudaError_t logits(const Launch& how, const FourBitProduct& p, float soft_cap, float* y) {
  const uint32_t n = p.weights.shape.n;
  return launch_product<false>(how, p, four_bit_fits(p) ? 1 : 0, {}, [&](uint32_t first) {
    return LogitsOut{y + size_t{first} * n, n, soft_cap};
  });
}

}  // namespace ringmaster::gpu_worker::cuda
