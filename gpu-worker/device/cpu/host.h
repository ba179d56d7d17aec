// What this host lends the device: processors, memory, and plain regions of it. Asked once, at start.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace ringmaster::gpu_worker {

// Threads worth starting: the processors of the affinity mask, at most what CPU quotas (cgroup v2 or v1, own
// group and all above it) allow, at least 1.
unsigned usable_threads();

// Bytes the process may still take: MemAvailable, at most what the memory limits of its cgroups leave.
uint64_t available_memory();

// Zeroed anonymous memory, aligned to 2 MiB where possible and asking for huge pages; pages are taken at
// first touch.
class Region {
 public:
  static Result<Region> create(size_t bytes, const char* purpose);
  Region() = default;
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  ~Region();
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;  // inside the mapping, aligned
  size_t bytes_ = 0;
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace ringmaster::gpu_worker
