// The slow products that the fast ones are compared with: sums in double.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

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

inline std::vector<double> product(const std::vector<double>& x, const Tensor& w, uint32_t rows, uint32_t n,
                                   uint32_t k) {
  std::vector<double> y(size_t{rows} * n);
  for (uint32_t r = 0; r < rows; ++r)
    for (uint32_t c = 0; c < n; ++c) {
      double sum = 0;
      for (uint32_t i = 0; i < k; ++i) sum += x[size_t{r} * k + i] * w.host[size_t{c} * k + i];
      y[size_t{r} * n + c] = sum;
    }
  return y;
}

inline std::vector<double> doubles(const std::vector<float>& v) {
  return {v.begin(), v.end()};
}

}  // namespace ringmaster::gpu_worker::cuda
