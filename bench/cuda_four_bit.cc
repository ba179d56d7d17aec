// Time of the products of a decode step with weights of four bits, each by itself and as a layer with its
// attention over 272 tokens, Phi-3-mini's shape, groups of 128: over as many copies of the weights as the
// model has layers (more than the cache holds), in a graph. Also the way of many rows: widened weights.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/cuda_timing.h"
#include "gpu-worker/device/cuda/step_inputs.h"
#include "gpu-worker/kernels/cuda/attention.h"
#include "gpu-worker/kernels/cuda/fill.h"
#include "gpu-worker/kernels/cuda/four_bit.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr uint32_t kLayers = 32, kHidden = 3072, kFeedForward = 8192, kHeads = 32, kHeadDim = 96;
constexpr uint32_t kContext = 272, kBlocksOfRow = kContext / 16, kMostRows = 64;

struct Layer {
  FourBitMatrix qkv, output, gate_up, down;
};

FourBitMatrix random_matrix(uint32_t n, uint32_t k, uint64_t seed) {
  FourBitMatrix m{.shape = {.n = n, .k = k, .group = 128}};
  m.data = take<std::byte>(m.shape.bytes());
  must(fill_random(m, seed));
  return m;
}

// The device's arrays of one step of `rows` sequences.
struct Inputs {
  StepInputs in;
  DecodeScratch scratch;

  Inputs(uint32_t rows, int multiprocessors) {
    StepPlan plan;
    for (uint32_t r = 0; r < rows; ++r) {
      plan.rows.push_back({.lane = r,
                           .first_id = r,
                           .num_tokens = 1,
                           .first_position = kContext - 1,
                           .first_block = r * kBlocksOfRow,
                           .num_blocks = kBlocksOfRow,
                           .samples = true});
      plan.ids.push_back(0);
      for (uint32_t b = 0; b < kBlocksOfRow; ++b) plan.blocks.push_back(r * kBlocksOfRow + b);
    }
    const StepLimits limits{.tokens = kMostRows,
                            .rows = kMostRows,
                            .blocks = kBlocksOfRow * kMostRows,
                            .kv_heads = kHeads,
                            .decode_warps = static_cast<uint32_t>(multiprocessors) * decode_warps(kHeadDim)};
    std::vector<std::byte> host(StepInputs::place(limits, nullptr).bytes);
    if (const auto shape = fill_inputs(plan, limits, 0, StepInputs::place(limits, host.data())); !shape) {
      std::fprintf(stderr, "%s\n", shape.error().message.c_str());
      std::exit(1);
    }
    auto* const bytes = take<std::byte>(host.size());
    must(cudaMemcpy(bytes, host.data(), host.size(), cudaMemcpyHostToDevice));
    in = StepInputs::place(limits, bytes);
    const size_t parts = StepInputs::max_pieces(limits);
    scratch = {take<float>(parts * kHidden), take<float>(parts * kHeads * 2),
               take<uint32_t>(kMostRows * kHeads)};
  }
};

int run() {
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int multiprocessors = 0;
  must(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  const Launch how{stream, true, multiprocessors};
  std::vector<Layer> layers;
  for (uint64_t i = 0; i < kLayers; ++i)
    layers.push_back({random_matrix(3 * kHidden, kHidden, 4 * i), random_matrix(kHidden, kHidden, 4 * i + 1),
                      random_matrix(2 * kFeedForward, kHidden, 4 * i + 2),
                      random_matrix(kHidden, kFeedForward, 4 * i + 3)});
  bf16 *x = take<bf16>(kMostRows * kHidden), *q = take<bf16>(kMostRows * kHidden),
       *a = take<bf16>(kMostRows * kFeedForward), *norm_weights = take<bf16>(kHidden),
       *wide = take<bf16>(size_t{2} * kFeedForward * kHidden);
  must(fill_uniform(x, kMostRows * kHidden, 1, 2));
  must(fill_constant(norm_weights, kHidden, 1));
  const Norm norm{norm_weights, 1e-5f};
  KvView kv{nullptr, kLayers, kHeads, kHeadDim};
  kv.data = take<bf16>(size_t{kMostRows} * kBlocksOfRow * kv.block_values());
  const RopeView rope{take<float>(kHeadDim / 2), kHeadDim};
  const AttentionShape attention{kHeads, kHeads, kHeadDim, 0.1f, 0, 0};
  must(cudaDeviceSynchronize());

  for (const uint32_t rows : {1u, 2u, 4u, 8u, 16u, 24u, 32u, 48u, 64u}) {
    const Inputs inputs(rows, multiprocessors);
    const TokenView tokens{inputs.in.position, inputs.in.kv_slot};
    const auto qkv = [&](const Layer& l, uint32_t i) {
      must(project_qkv(how, {l.qkv, x, rows}, norm, nullptr, tokens, rope, kv, i, kHeads, q));
    };
    const auto attend = [&](const Layer&, uint32_t i) {
      must(decode_attention(how, attention, kv, i,
                            {inputs.in.pieces, inputs.in.piece_count, inputs.in.block_table}, tokens, q,
                            inputs.scratch, q));
    };
    const auto output = [&](const Layer& l, uint32_t) { must(add_product(how, {l.output, q, rows}, x)); };
    const auto gate_up = [&](const Layer& l, uint32_t) {
      must(gated_product(how, {l.gate_up, x, rows}, norm, Gate::kSilu, a));
    };
    const auto down = [&](const Layer& l, uint32_t) { must(add_product(how, {l.down, a, rows}, x)); };
    const auto report = [&](const char* name, size_t bytes, const auto& one) {
      const float us = time_graph(stream,
                                  [&] {
                                    for (uint32_t i = 0; i < kLayers; ++i) one(layers[i], i);
                                  }) /
                       kLayers;
      std::printf("rows %2u %-10s %7.2f us %6.3f TB/s\n", rows, name, us,
                  static_cast<double>(bytes) / us * 1e-6);
    };
    const Layer& l = layers[0];
    const size_t products = l.qkv.shape.bytes() + l.output.shape.bytes() + l.gate_up.shape.bytes() +
                            l.down.shape.bytes(),
                 keys = size_t{rows} * kContext * kHidden * 4;
    report("qkv", l.qkv.shape.bytes(), qkv);
    report("attention", keys, attend);
    report("output", l.output.shape.bytes(), output);
    report("gate_up", l.gate_up.shape.bytes(), gate_up);
    report("down", l.down.shape.bytes(), down);
    report("products", products, [&](const Layer& layer, uint32_t i) {
      qkv(layer, i);
      output(layer, i);
      gate_up(layer, i);
      down(layer, i);
    });
    report("layer", products + keys, [&](const Layer& layer, uint32_t i) {
      qkv(layer, i);
      attend(layer, i);
      output(layer, i);
      gate_up(layer, i);
      down(layer, i);
    });
    if (rows == 1)
      report("widen", products, [&](const Layer& layer, uint32_t) {
        for (const FourBitMatrix& m : {layer.qkv, layer.output, layer.gate_up, layer.down})
          must(widen(how, m, wide));
      });
  }
  return 0;
}

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda

int main() {
  return ringmaster::gpu_worker::cuda::run();
}
