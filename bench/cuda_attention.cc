// Prefill attention by itself, whole prompts over keys and values in scattered blocks, every key seen that
// may be: microseconds and TFLOP/s (four operations a dim for each query and key that it sees).
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "bench/cuda_timing.h"
#include "gpu-worker/kernels/cuda/attention.h"
#include "gpu-worker/kernels/cuda/fill.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

template <typename T>
T* on_device(const std::vector<T>& values) {
  T* const to = take<T>(values.size());
  must(cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return to;
}

void measure(cudaStream_t stream, int multiprocessors, const AttentionShape& shape, uint32_t tokens) {
  const uint32_t blocks = (tokens + 15) / 16;
  KvView kv{nullptr, 1, shape.kv_heads, shape.head_dim};
  const size_t kv_values = blocks * kv.block_values(),
               q_values = size_t{tokens} * shape.heads * shape.head_dim;
  kv.data = take<bf16>(kv_values);
  bf16 *const q = take<bf16>(q_values), *const out = take<bf16>(q_values);
  must(fill_uniform(kv.data, kv_values, 1.7f, 1));
  must(fill_uniform(q, q_values, 1.7f, 2));
  std::vector<uint32_t> table;
  for (uint32_t b = 0; b < blocks; ++b) table.push_back(blocks - 1 - b);
  std::vector<PrefillTile> tiles;
  for (uint32_t i = 0; i < tokens; i += kPrefillTile)
    tiles.push_back({i, std::min(kPrefillTile, tokens - i), i, 0});
  std::reverse(tiles.begin(), tiles.end());  // the longest first
  const PrefillTile* const device_tiles = on_device(tiles);
  const uint32_t* const device_table = on_device(table);
  must(cudaDeviceSynchronize());
  constexpr int kTimes = 8;
  const float us =
      time_graph(stream,
                 [&] {
                   for (int i = 0; i < kTimes; ++i)
                     must(prefill_attention({stream, true, multiprocessors}, shape, kv, 0, device_tiles,
                                            static_cast<uint32_t>(tiles.size()), device_table, q, out));
                 }) /
      kTimes;
  const double operations = 2.0 * tokens * (tokens + 1) * shape.heads * shape.head_dim;
  std::printf("prefill attention %5u tokens, %2u/%2u heads of %3u: %8.1f us %4.0f TFLOP/s\n", tokens,
              shape.heads, shape.kv_heads, shape.head_dim, us, operations / us * 1e-6);
}

int run() {
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int multiprocessors = 0;
  must(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  for (const uint32_t tokens : {512u, 2048u, 8192u})
    for (const uint32_t head_dim : {64u, 96u, 128u, 256u})
      for (const uint32_t kv_heads : {32u, 8u})
        measure(stream, multiprocessors,
                {32, kv_heads, head_dim, 1 / std::sqrt(static_cast<float>(head_dim)), 0, 0}, tokens);
  return 0;
}

}  // namespace
}  // namespace ringmaster::gpu_worker::cuda

int main() {
  return ringmaster::gpu_worker::cuda::run();
}
