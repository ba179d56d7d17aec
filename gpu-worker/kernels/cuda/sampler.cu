#include "gpu-worker/kernels/cuda/sampler.h"

#include <cfloat>

#include "gpu-worker/kernels/cuda/mma.cuh"
#include "gpu-worker/model/philox.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr float kGreedyTemperature = 1e-5f;  // as model/sampler.h
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr uint32_t kEveryone = 0xFFFFFFFF;

struct Best {
  float logit = -INFINITY;
  uint32_t id = 0xFFFFFFFF;
};
__device__ Best better(const Best& a, const Best& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id) ? a : b;
}

// Orders as the logits do.
__device__ uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);  // -0 and 0 are equals
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Shared by the threads of one row.
struct Shared {
  unsigned long long histogram[kDigits];
  Best best[kWarps];
  double sums[kWarps];
  unsigned long long masses[kWarps];
  unsigned long long value;
  uint32_t digit, id;
};

// The candidates left: key above `key`, or equal to it with an id of at most `id`; weight of at least
// `min_weight`.
struct Cut {
  uint32_t key = 0;
  uint32_t id = kEveryone;
  float min_weight = 0;
};

class Row {
 public:
  __device__ Row(Shared& shared, const float* logits, uint32_t vocab)
      : s_(shared), logits_(logits), vocab_(vocab) {}

  // The likeliest, of those after `below` in the order of likelihood. finite: whether all logits are numbers.
  __device__ Best best(const Cut* below = nullptr, bool* finite = nullptr) {
    Best mine;
    bool bad = false;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < vocab_; i += kThreads) {
      const float logit = logits_[i];
      bad |= !isfinite(logit);
      if (below == nullptr || after(logit, i, *below)) mine = better(mine, {logit, i});
    }
    if (finite != nullptr) *finite = __syncthreads_or(bad) == 0;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
      mine = better(mine, {__shfl_xor_sync(0xFFFFFFFF, mine.logit, offset),
                           __shfl_xor_sync(0xFFFFFFFF, mine.id, offset)});
    __syncthreads();
    if (threadIdx.x % kWarp == 0) s_.best[threadIdx.x / kWarp] = mine;
    __syncthreads();
    Best all = s_.best[0];
    for (int w = 1; w < kWarps; ++w) all = better(all, s_.best[w]);
    return all;
  }

  // Sum of exp(logit - largest), the same whatever the threads do: in a fixed order.
  __device__ double exponentials(float largest) {
    double mine = 0;
    for (uint32_t i = threadIdx.x; i < vocab_; i += kThreads)
      mine += static_cast<double>(expf(logits_[i] - largest));
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(0xFFFFFFFF, mine, offset);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) s_.sums[threadIdx.x / kWarp] = mine;
    __syncthreads();
    double all = 0;
    for (int w = 0; w < kWarps; ++w) all += s_.sums[w];
    return all;
  }

  __device__ void weigh(float largest, float scale) {
    largest_ = largest;
    scale_ = scale;
  }
  __device__ float weight(float logit) const {
    return expf((logit - largest_) * scale_);
  }
  __device__ unsigned long long mass(float logit) const {
    return static_cast<unsigned long long>(weight(logit) * 0x1p40f);
  }
  __device__ bool within(float logit, uint32_t id, const Cut& cut) const {
    const uint32_t key = key_of(logit);
    return (key > cut.key || (key == cut.key && id <= cut.id)) &&
           (cut.min_weight == 0 || weight(logit) >= cut.min_weight);
  }

  // Mass of what the cut leaves. Leaves each warp's share, of the neighbouring ids that are its own, in
  // masses.
  __device__ unsigned long long mass_within(const Cut& cut) {
    const uint32_t share = share_size(), first = threadIdx.x / kWarp * share,
                   last = min(first + share, vocab_);
    unsigned long long mine = 0;
    for (uint32_t i = first + threadIdx.x % kWarp; i < last; i += kWarp)
      if (within(logits_[i], i, cut)) mine += mass(logits_[i]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(0xFFFFFFFF, mine, offset);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) s_.masses[threadIdx.x / kWarp] = mine;
    __syncthreads();
    unsigned long long all = 0;
    for (int w = 0; w < kWarps; ++w) all += s_.masses[w];
    return all;
  }

  // Narrows the cut to the likeliest candidates whose amounts reach `target`: of 1 each (top-k) or of their
  // mass (top-p). Digit by digit of the key, from the top.
  template <bool kMass>
  __device__ void keep(Cut& cut, unsigned long long target) {
    const Cut before = cut;
    uint32_t prefix = 0;
    unsigned long long above = 0;
#pragma unroll 1
    for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
      __syncthreads();
      for (int d = threadIdx.x; d < kDigits; d += kThreads) s_.histogram[d] = 0;
      __syncthreads();
      const uint32_t known = shift == 32 - kDigitBits ? 0 : ~0u << (shift + kDigitBits);
      for (uint32_t i = threadIdx.x; i < vocab_; i += kThreads) {
        const float logit = logits_[i];
        const uint32_t key = key_of(logit);
        if ((key & known) != prefix || !within(logit, i, before)) continue;
        atomicAdd(&s_.histogram[key >> shift & (kDigits - 1)], kMass ? mass(logit) : 1ull);
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        int d = kDigits - 1;
        int lowest = -1;  // digit in use
        unsigned long long sum = above;
        for (; d >= 0; --d) {
          if (s_.histogram[d] == 0) continue;
          lowest = d;
          if (sum + s_.histogram[d] >= target) break;
          sum += s_.histogram[d];
        }
        if (d < 0 && lowest >= 0) sum -= s_.histogram[lowest];  // all of them do not reach it: keep all
        s_.digit = static_cast<uint32_t>(lowest >= 0 ? lowest : 0);
        s_.value = sum;
      }
      __syncthreads();
      prefix |= s_.digit << shift;
      above = s_.value;
    }
    cut.key = prefix;
    // Equals: the lowest ids first, as many as are needed.
    const unsigned long long each = kMass ? mass(unkey(prefix)) : 1ull;
    const unsigned long long missing = target > above ? target - above : 0;
    const unsigned long long wanted = each == 0 ? 0xFFFFFFFFull : max(1ull, (missing + each - 1) / each);
    const uint32_t limit = before.key == prefix ? before.id : kEveryone;
    cut.id = nth_equal(prefix, limit, wanted);
  }

  // First id, in ascending order, at which the mass of the candidates exceeds `target`. REQUIRES:
  // mass_within(cut) just called.
  __device__ uint32_t draw(const Cut& cut, unsigned long long target) {
    if (threadIdx.x < kWarp) {
      unsigned long long below = 0;
      int w = 0;
      int last = 0;  // with any mass
      for (; w < kWarps; ++w) {
        if (s_.masses[w] == 0) continue;
        last = w;
        if (below + s_.masses[w] > target) break;
        below += s_.masses[w];
      }
      if (w == kWarps) below -= s_.masses[last];
      const uint32_t share = share_size(), first = static_cast<uint32_t>(last) * share,
                     end = min(first + share, vocab_);
      uint32_t chosen = 0xFFFFFFFF, newest = 0;
      for (uint32_t base = first; base < end && chosen == 0xFFFFFFFF; base += kWarp) {
        const uint32_t i = base + threadIdx.x;
        const unsigned long long mine = i < end && within(logits_[i], i, cut) ? mass(logits_[i]) : 0;
        unsigned long long upto = mine;
#pragma unroll
        for (int offset = 1; offset < kWarp; offset *= 2) {
          const unsigned long long other = __shfl_up_sync(0xFFFFFFFF, upto, offset);
          if (threadIdx.x >= static_cast<uint32_t>(offset)) upto += other;
        }
        const uint32_t hits = __ballot_sync(0xFFFFFFFF, mine != 0 && below + upto > target);
        const uint32_t any = __ballot_sync(0xFFFFFFFF, mine != 0);
        if (any != 0) newest = base + 31 - __clz(static_cast<int>(any));
        if (hits != 0) chosen = base + __ffs(static_cast<int>(hits)) - 1;
        below += __shfl_sync(0xFFFFFFFF, upto, kWarp - 1);
      }
      if (threadIdx.x == 0) s_.id = chosen != 0xFFFFFFFF ? chosen : newest;
    }
    __syncthreads();
    return s_.id;
  }

 private:
  __device__ uint32_t share_size() const {
    return (vocab_ + kWarps - 1) / kWarps;
  }
  __device__ static bool after(float logit, uint32_t id, const Cut& last) {
    const uint32_t key = key_of(logit);
    return key < last.key || (key == last.key && id > last.id);
  }
  __device__ static float unkey(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
  }

  // The id of the n-th candidate (from 1) with this key, of those with an id of at most `limit`; the last of
  // them if there are fewer.
  __device__ uint32_t nth_equal(uint32_t key, uint32_t limit, unsigned long long n) {
    __syncthreads();
    if (threadIdx.x < kWarp) {
      unsigned long long seen = 0;
      uint32_t found = limit;
      for (uint32_t base = 0; base < vocab_; base += kWarp) {
        const uint32_t i = base + threadIdx.x;
        const bool equal = i < vocab_ && i <= limit && key_of(logits_[i]) == key;
        const uint32_t hits = __ballot_sync(0xFFFFFFFF, equal);
        if (hits == 0) continue;
        const uint32_t count = __popc(hits);
        if (seen + count >= n) {
          uint32_t left = hits;
          for (unsigned long long skip = n - seen; skip > 1; --skip) left &= left - 1;
          found = base + __ffs(static_cast<int>(left)) - 1;
          break;
        }
        seen += count;
      }
      if (threadIdx.x == 0) s_.id = found;
    }
    __syncthreads();
    return s_.id;
  }

  Shared& s_;
  const float* logits_;
  const uint32_t vocab_;
  float largest_ = 0, scale_ = 1;
};

__device__ void adjust(const LaneTables& lanes, const LaneState& lane, uint32_t index, const float* logits,
                       float* adjusted, uint32_t vocab, uint32_t token_number) {
  for (uint32_t i = threadIdx.x; i < vocab; i += kThreads) adjusted[i] = logits[i];
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < lane.num_bias; i += kThreads) {
    const LogitBias bias = lanes.bias[size_t{index} * kMaxLogitBias + i];
    atomicAdd(&adjusted[bias.id], bias.bias);
  }
  __syncthreads();
  if (lane.penalises != 0) {
    const uint16_t* const seen = lanes.seen + size_t{index} * vocab;
    for (uint32_t i = threadIdx.x; i < vocab; i += kThreads) {
      const uint32_t times = seen[i];
      if (times == 0) continue;
      float logit = adjusted[i];
      logit = logit > 0 ? logit / lane.repetition_penalty : logit * lane.repetition_penalty;
      if (times > 1) logit -= lane.frequency_penalty * static_cast<float>(times - 1) + lane.presence_penalty;
      adjusted[i] = fminf(fmaxf(logit, -FLT_MAX), FLT_MAX);  // extreme penalties overflow
    }
    __syncthreads();
  }
  if (token_number < lane.min_tokens)
    for (uint32_t i = threadIdx.x; i < lane.num_suppressed; i += kThreads)
      adjusted[lanes.suppressed[size_t{index} * kMaxSuppressed + i]] = -INFINITY;
  __syncthreads();
}

__device__ uint32_t choose(Row& row, const LaneState& lane, const Best& best, uint32_t vocab,
                           uint32_t token_number) {
  row.weigh(best.logit, 1 / lane.temperature);
  Cut cut;
  const double u = uniform(lane.seed, token_number);
  if (lane.top_k > 0 && lane.top_k < vocab) row.keep<false>(cut, lane.top_k);
  if (lane.top_p < 1) {
    const unsigned long long all = row.mass_within(cut);
    row.keep<true>(cut, max(1ull, static_cast<unsigned long long>(
                                      ceil(static_cast<double>(lane.top_p) * static_cast<double>(all)))));
  }
  cut.min_weight = lane.min_p;
  const unsigned long long left = row.mass_within(cut);
  return row.draw(cut, static_cast<unsigned long long>(u * static_cast<double>(left)));
}

__global__ __launch_bounds__(kThreads, 1) void sample_kernel(const LaneTables lanes, const float* all_logits,
                                                             float* all_adjusted, const uint32_t vocab,
                                                             const uint32_t width, const SampleRow* rows,
                                                             SampledToken* out) {
  __shared__ Shared shared;
  let_successor_start();
  wait_for_predecessor();
  const SampleRow what = rows[blockIdx.x];
  const LaneState lane = lanes.state[what.lane];
  const float* const logits = all_logits + size_t{blockIdx.x} * width;
  float* const adjusted = all_adjusted + size_t{blockIdx.x} * width;
  SampledToken& result = out[blockIdx.x];

  Row raw(shared, logits, vocab);
  bool finite = true;
  const Best raw_best = raw.best(nullptr, &finite);
  if (!finite) {
    if (threadIdx.x == 0) {
      result.id = 0;
      result.failed = 1;
      result.num_top = 0;
      lanes.last_id[what.lane] = 0;
    }
    return;
  }
  double log_sum = 0;
  if (lane.logprobs > 0) {
    log_sum = static_cast<double>(raw_best.logit) + log(raw.exponentials(raw_best.logit));
    Best next = raw_best;
    const uint32_t wanted = min(min(lane.logprobs - 1, kMaxTopLogprobs), vocab);
    for (uint32_t n = 0; n < wanted; ++n) {
      if (n > 0) {
        const Cut last{key_of(next.logit), next.id, 0};
        next = raw.best(&last);
      }
      if (threadIdx.x == 0) {
        result.top_id[n] = next.id;
        result.top_logprob[n] = static_cast<float>(static_cast<double>(next.logit) - log_sum);
      }
    }
    if (threadIdx.x == 0) result.num_top = wanted;
  } else if (threadIdx.x == 0) {
    result.num_top = 0;
  }

  const bool greedy = lane.temperature < kGreedyTemperature;
  const bool as_they_are = lane.num_bias == 0 && lane.penalises == 0 &&
                           (what.token_number >= lane.min_tokens || lane.num_suppressed == 0);
  uint32_t id = raw_best.id;
  bool failed = false;
  if (!greedy || !as_they_are) {
    if (!as_they_are) adjust(lanes, lane, what.lane, logits, adjusted, vocab, what.token_number);
    Row row(shared, as_they_are ? logits : adjusted, vocab);
    const Best best = as_they_are ? raw_best : row.best();
    failed = best.logit == -INFINITY;
    id = failed ? 0 : greedy ? best.id : choose(row, lane, best, vocab, what.token_number);
  }
  if (threadIdx.x != 0) return;
  result.id = id;
  result.failed = failed ? 1 : 0;
  result.logprob = lane.logprobs > 0 ? static_cast<float>(static_cast<double>(logits[id]) - log_sum) : 0;
  lanes.last_id[what.lane] = id;
  if (lane.penalises != 0 && !failed) {
    uint16_t& seen = lanes.seen[size_t{what.lane} * vocab + id];
    seen = seen == 0 ? 2 : seen == 0xFFFF ? seen : seen + 1;
  }
}

// One block: counts have to be whole before the next token.
__global__ void open_lane_kernel(const LaneTables lanes, const uint32_t lane, const uint32_t vocab,
                                 const uint32_t* context, const uint32_t count, const uint32_t prompt_count) {
  let_successor_start();
  wait_for_predecessor();
  if (threadIdx.x == 0) lanes.last_id[lane] = count > 0 ? context[count - 1] : 0;
  if (lanes.state[lane].penalises == 0) return;
  uint16_t* const seen = lanes.seen + size_t{lane} * vocab;
  for (uint32_t i = threadIdx.x; i < vocab; i += blockDim.x) seen[i] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < min(prompt_count, count); i += blockDim.x)
    if (context[i] < vocab) seen[context[i]] = 1;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (uint32_t i = prompt_count; i < count; ++i) {
    if (context[i] >= vocab) continue;
    uint16_t& times = seen[context[i]];
    times = times == 0 ? 2 : times == 0xFFFF ? times : times + 1;
  }
}

}  // namespace

cudaError_t open_lane(const Launch& how, const LaneTables& lanes, uint32_t lane, uint32_t vocab,
                      const uint32_t* context, uint32_t count, uint32_t prompt_count) {
  return launch(how, open_lane_kernel, dim3(1), dim3(kThreads), 0, lanes, lane, vocab, context, count,
                prompt_count);
}

cudaError_t sample(const Launch& how, const LaneTables& lanes, const float* logits, float* adjusted,
                   uint32_t vocab, uint32_t width, const SampleRow* rows, uint32_t count, SampledToken* out) {
  return launch(how, sample_kernel, dim3(count), dim3(kThreads), 0, lanes, logits, adjusted, vocab, width,
                rows, out);
}

}  // namespace ringmaster::gpu_worker::cuda
