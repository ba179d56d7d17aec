// Decode steps as CUDA graphs: one for each batch size class and set of input buffers, captured at start. A
// step with fewer rows than its class runs with padding rows, which write to the scratch block and are
// sampled into the scratch lane.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/status.h"

namespace ringmaster::gpu_worker::cuda {

class DecodeGraphs {
 public:
  static constexpr uint32_t kSets = 2;  // of input buffers: steps in flight
  // Enqueues the decode step of a class with these inputs on the stream that is being captured.
  using Enqueue = std::function<Status(cudaStream_t stream, uint32_t rows, uint32_t set)>;

  DecodeGraphs() = default;
  static Result<DecodeGraphs> capture(cudaStream_t stream, uint32_t max_rows, const Enqueue& enqueue);
  DecodeGraphs(DecodeGraphs&& other) noexcept : classes_(std::move(other.classes_)) {
    other.classes_.clear();
  }
  DecodeGraphs& operator=(DecodeGraphs&& other) noexcept {
    std::swap(classes_, other.classes_);
    return *this;
  }
  ~DecodeGraphs();

  // The smallest class that holds so many rows.
  std::optional<uint32_t> class_of(uint32_t rows) const;
  Status launch(uint32_t rows_of_class, uint32_t set, cudaStream_t stream) const;

  // 1, 2, 4, 8, 16, then steps of 16 to 128, of 32 to 256, of 64 above; the last is max_rows.
  static std::vector<uint32_t> classes(uint32_t max_rows);

 private:
  struct Class {
    uint32_t rows = 0;
    std::array<cudaGraphExec_t, kSets> graphs{};
  };
  std::vector<Class> classes_;
};

}  // namespace ringmaster::gpu_worker::cuda
