// Time of each kernel of a decode step by itself, over as many copies of its weights as a model has layers
// (more than the cache holds), in a graph, with and without overlap: microseconds and TB/s.
#include <cstdio>
#include <functional>
#include <vector>

#include "bench/cuda_timing.h"
#include "gpu-worker/device/cuda/step_inputs.h"
#include "gpu-worker/kernels/cuda/attention.h"
#include "gpu-worker/kernels/cuda/fill.h"
#include "gpu-worker/kernels/cuda/skinny.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

int run() {
  constexpr uint32_t kLayers = 32, hidden = 3072, ff = 8192, heads = 32, hd = 96, qkv_n = 9216;
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int sms = 0;
  must(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const size_t layer =
      size_t{qkv_n} * hidden + size_t{hidden} * hidden + 2 * size_t{ff} * hidden + size_t{hidden} * ff;
  bf16* w = take<bf16>(layer * kLayers);
  must(fill_uniform(w, layer * kLayers, 0.02f, 1));
  bf16 *x = take<bf16>(16 * hidden), *q = take<bf16>(16 * hidden), *a = take<bf16>(16 * ff),
       *norm = take<bf16>(hidden);
  must(fill_uniform(x, 16 * hidden, 1, 2));
  must(fill_constant(norm, hidden, 1));
  KvView kv{nullptr, kLayers, heads, hd};
  constexpr uint32_t kBlocks = 16 * 24;
  kv.data = take<bf16>(kBlocks * kv.block_values());
  uint32_t *pos = take<uint32_t>(16), *slot = take<uint32_t>(16);
  float* freq = take<float>(hd / 2);
  must(cudaDeviceSynchronize());
  for (const uint32_t rows : {1u, 2u, 4u, 8u, 16u}) {
    // context of 272
    StepPlan plan;
    for (uint32_t r = 0; r < rows; ++r) {
      plan.rows.push_back({.lane = r,
                           .first_id = r,
                           .num_tokens = 1,
                           .first_position = 271,
                           .first_block = r * 17,
                           .num_blocks = 17,
                           .samples = true});
      plan.ids.push_back(0);
      for (uint32_t b = 0; b < 17; ++b) plan.blocks.push_back(r * 24 + b);
    }
    const StepLimits limits{.tokens = 16,
                            .rows = 16,
                            .blocks = 17 * 16,
                            .kv_heads = heads,
                            .decode_warps = static_cast<uint32_t>(sms) * decode_warps(hd)};
    std::vector<std::byte> host(StepInputs::place(limits, nullptr).bytes);
    const auto shape = fill_inputs(plan, limits, 0, StepInputs::place(limits, host.data()));
    std::byte* bytes = take<std::byte>(host.size());
    must(cudaMemcpy(bytes, host.data(), host.size(), cudaMemcpyHostToDevice));
    const StepInputs in = StepInputs::place(limits, bytes);
    const uint32_t parts = StepInputs::max_pieces(limits);
    const DecodeScratch scratch{take<float>(size_t{parts} * hidden), take<float>(size_t{parts} * heads * 2),
                                take<uint32_t>(16 * heads)};
    const AttentionShape attention{heads, heads, hd, 0.1f, 0, 0};
    for (const bool overlap : {false, true}) {
      const Launch how{stream, overlap, sms};
      bf16* at;
      const auto weights = [&](size_t n) { return std::exchange(at, at + n); };
      const auto report = [&](const char* name, size_t bytes_each, const std::function<void(uint32_t)>& one) {
        const float us = time_graph(stream,
                                    [&] {
                                      at = w;
                                      for (uint32_t l = 0; l < kLayers; ++l) one(l);
                                    }) /
                         kLayers;
        std::printf("rows %2u overlap %d %-10s %7.2f us %6.3f TB/s\n", rows, overlap, name, us,
                    static_cast<double>(bytes_each) / us * 1e-6);
      };
      const auto qkv = [&](uint32_t l) {
        must(project_qkv(how, {weights(size_t{qkv_n} * hidden), qkv_n, hidden, x, rows}, {norm, 1e-5f},
                         nullptr, {in.position, in.kv_slot}, {freq, hd}, kv, l, heads, q));
      };
      const auto att = [&](uint32_t l) {
        must(decode_attention(how, attention, kv, l, {in.pieces, in.piece_count, in.block_table},
                              {in.position, in.kv_slot}, q, scratch, q));
      };
      const auto o = [&](uint32_t) {
        must(add_product(how, {weights(size_t{hidden} * hidden), hidden, hidden, q, rows}, x));
      };
      const auto gu = [&](uint32_t) {
        must(gated_product(how, {weights(2 * size_t{ff} * hidden), 2 * ff, hidden, x, rows}, {norm, 1e-5f},
                           Gate::kSilu, a));
      };
      const Product down_product{w, hidden, ff, a, rows};
      const bool has_down = add_product_fits(down_product);
      const auto down = [&](uint32_t) {
        if (has_down) must(add_product(how, {weights(size_t{hidden} * ff), hidden, ff, a, rows}, x));
      };
      report("qkv", size_t{qkv_n} * hidden * 2, qkv);
      report("attention", size_t{rows} * 272 * heads * hd * 4, att);
      report("output", size_t{hidden} * hidden * 2, o);
      report("gate_up", 4 * size_t{ff} * hidden, gu);
      if (has_down) report("down", 2 * size_t{ff} * hidden, down);
      report("layer",
             layer * 2 + size_t{rows} * 272 * heads * hd * 4 - (has_down ? 0 : 2 * size_t{ff} * hidden),
             [&](uint32_t l) {
               qkv(l);
               att(l);
               o(l);
               gu(l);
               down(l);
             });
    }
  }
  (void)pos;
  (void)slot;
  return 0;
}

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda

int main() {
  return ringmaster::gpu_worker::cuda::run();
}
