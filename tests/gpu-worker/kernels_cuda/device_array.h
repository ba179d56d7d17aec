// Arrays in device memory for kernel tests, and random values as the device will see them (rounded to bf16).
// Fresh memory is poisoned with NaN patterns, so that what a kernel forgets to write shows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "gpu-worker/kernels/cuda/launch.h"
#include "gpu-worker/kernels/cuda/tensors.h"

namespace ringmaster::gpu_worker::cuda {

inline void expect_ok(cudaError_t code, const char* what) {
  ASSERT_EQ(code, cudaSuccess) << what << ": " << cudaGetErrorString(code);
}
#define EXPECT_CUDA(call) expect_ok((call), #call)

inline Launch test_launch(bool overlap = true) {
  int count = 0;
  EXPECT_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return {.stream = nullptr, .overlap = overlap, .multiprocessors = count};
}

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
    EXPECT_CUDA(cudaMemset(data_, 0xFF, count * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    EXPECT_CUDA(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { (void)cudaFree(data_); }

  T* get() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    EXPECT_CUDA(cudaDeviceSynchronize());
    EXPECT_CUDA(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

// ---- bf16 on the host: its bits, so that no CUDA header function is needed ----

inline float from_bits(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
inline uint16_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// A bf16 tensor on both sides.
struct Tensor {
  std::vector<float> host;
  DeviceArray<uint16_t> device;

  static Tensor random(size_t count, float scale, uint32_t seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(count);
    for (float& v : values) v = from_bits(to_bits(normal(generator)));
    return Tensor(values);
  }
  explicit Tensor(const std::vector<float>& values) : host(values), device(bits_of(values)) {}
  bf16* get() const { return reinterpret_cast<bf16*>(device.get()); }

  static std::vector<uint16_t> bits_of(const std::vector<float>& values) {
    std::vector<uint16_t> bits;
    for (const float v : values) bits.push_back(to_bits(v));
    return bits;
  }
};

inline std::vector<float> floats(const std::vector<uint16_t>& bits) {
  std::vector<float> values;
  for (const uint16_t b : bits) values.push_back(from_bits(b));
  return values;
}

// |got - wanted| / |wanted|; NaN when anything is NaN.
inline double relative_error(const std::vector<float>& got, const std::vector<double>& wanted) {
  EXPECT_EQ(got.size(), wanted.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - wanted[i];
    error += difference * difference;
    size += wanted[i] * wanted[i];
  }
  return std::sqrt(error / size);
}

// Of bf16 results of float32 sums: half a unit in the last of eight bits, a little more where inputs were
// rounded on the way.
constexpr double kBf16Error = 5e-3;

}  // namespace ringmaster::gpu_worker::cuda
