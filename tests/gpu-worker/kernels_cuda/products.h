// The slow products that the fast ones are compared with: sums in double.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

#include "gpu-worker/kernels/cuda/skinny.h"
#include "tests/gpu-worker/kernels_cuda/device_array.h"

namespace ringmaster::gpu_worker::cuda {

inline std::vector<double> normed(const Tensor& x, const Tensor& weight, uint32_t rows, uint32_t k,
                                  double epsilon) {
  std::vector<double> y(size_t{rows} * k);
  for (uint32_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (uint32_t i = 0; i < k; ++i) squares += double{x.host[r * k + i]} * x.host[r * k + i];
    const double factor = 1 / std::sqrt(squares / k + epsilon);
    for (uint32_t i = 0; i < k; ++i) y[r * k + i] = x.host[r * k + i] * factor * weight.host[i];
  }
  return y;
}

// w: [n, k], as the kernel sees the weights.
inline std::vector<double> product(const std::vector<double>& x, const std::vector<float>& w, uint32_t rows,
                                   uint32_t n, uint32_t k) {
  std::vector<double> y(size_t{rows} * n);
  for (uint32_t r = 0; r < rows; ++r)
    for (uint32_t c = 0; c < n; ++c) {
      double sum = 0;
      for (uint32_t i = 0; i < k; ++i) sum += x[size_t{r} * k + i] * w[size_t{c} * k + i];
      y[size_t{r} * n + c] = sum;
    }
  return y;
}

// Of rows that are (gate, up) alternately.
inline std::vector<double> gated(const std::vector<double>& both, Gate kind) {
  std::vector<double> y;
  for (size_t i = 0; i < both.size(); i += 2) {
    const double g = both[i];
    const double act = kind == Gate::kSilu
                           ? g / (1 + std::exp(-g))
                           : 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
    y.push_back(act * both[i + 1]);
  }
  return y;
}

inline std::vector<double> doubles(const std::vector<float>& v) {
  return {v.begin(), v.end()};
}

}  // namespace ringmaster::gpu_worker::cuda
