// One test body for every instruction set this processor has, and what the bodies share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gpu-worker/kernels/dispatch.h"
#include "gpu-worker/kernels/half.h"
#include "gpu-worker/kernels/kernels.h"
#include "gpu-worker/kernels/packing.h"

namespace ringmaster::gpu_worker::kernels {

// Tolerances, relative to the sum of the magnitudes that were added: single-precision rounding over a few
// thousand terms.
inline constexpr double kFloatTolerance = 4e-6;

class EveryTable : public testing::TestWithParam<const Table*> {
 protected:
  const Table& table() const { return *GetParam(); }
  bool exact() const { return std::string(table().name) == "generic"; }

  std::vector<float> normal(size_t n, float deviation = 1) {
    std::normal_distribution<float> values(0, deviation);
    std::vector<float> out(n);
    for (float& x : out) x = values(random_);
    return out;
  }
  std::mt19937 random_{20261130};
};

inline std::string table_name(const testing::TestParamInfo<const Table*>& info) {
  return info.param->name;
}

// Memory aligned as the kernels want packed weights and prepared rows.
class Bytes {
 public:
  explicit Bytes(size_t n, uint8_t fill = 0) : storage_(n + 64, std::byte{fill}) {}
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    return storage_.data() + (64 - address % 64) % 64;
  }

 private:
  std::vector<std::byte> storage_;
};

}  // namespace ringmaster::gpu_worker::kernels
