// What the benchmarks of single kernels share: device arrays that live as long as the program, and the time
// of a graph. Any failure of CUDA ends the program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>

namespace ringmaster::gpu_worker::cuda {

inline void must(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(code));
  std::exit(1);
}

template <typename T>
T* take(size_t count) {
  void* p = nullptr;
  must(cudaMalloc(&p, count * sizeof(T)));
  must(cudaMemset(p, 0, count * sizeof(T)));
  return static_cast<T*>(p);
}

// Microseconds: the best of nine, after three to warm up.
inline float time_graph(cudaStream_t stream, const std::function<void()>& enqueue) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue();
  must(cudaStreamEndCapture(stream, &graph));
  must(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t a, b;
  must(cudaEventCreate(&a));
  must(cudaEventCreate(&b));
  float best = 1e9f;
  for (int i = 0; i < 12; ++i) {
    must(cudaEventRecord(a, stream));
    must(cudaGraphLaunch(exec, stream));
    must(cudaEventRecord(b, stream));
    must(cudaStreamSynchronize(stream));
    float ms = 0;
    must(cudaEventElapsedTime(&ms, a, b));
    if (i > 2) best = std::min(best, ms);
  }
  must(cudaEventDestroy(a));
  must(cudaEventDestroy(b));
  must(cudaGraphExecDestroy(exec));
  must(cudaGraphDestroy(graph));
  return best * 1e3f;
}

}  // namespace ringmaster::gpu_worker::cuda
