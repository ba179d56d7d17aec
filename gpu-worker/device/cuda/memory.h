// Owners of device memory and of pinned host memory. Plain allocations, taken at start and held to the end.
// Move-only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "base/status.h"

namespace ringmaster::gpu_worker::cuda {

class Memory {
 public:
  enum class Kind { kDevice, kPinned };
  Memory() = default;
  // `what` names it in the error. Device memory is not cleared. bytes of 0 is an empty owner.
  static Result<Memory> create(Kind kind, size_t bytes, const std::string& what);
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        kind_(other.kind_) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(kind_, other.kind_);
    return *this;
  }
  ~Memory();

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  Kind kind_ = Kind::kDevice;
};

// Hands out aligned pieces of a memory, first counted, then placed: the same calls run twice, the first time
// with a null base.
class Layout {
 public:
  explicit Layout(std::byte* base = nullptr) : base_(base) {}
  template <typename T>
  T* take(size_t count) {
    constexpr size_t kAlign = 256;  // of cudaMalloc, and of what the copy engines like
    at_ = (at_ + kAlign - 1) / kAlign * kAlign;
    T* const piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at_);
    at_ += count * sizeof(T);
    return piece;
  }
  size_t bytes() const { return at_; }

 private:
  std::byte* base_;
  size_t at_ = 0;
};

}  // namespace ringmaster::gpu_worker::cuda
