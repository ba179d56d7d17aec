// Shared-memory barriers and bulk copies (PTX ISA, "mbarrier" and "cp.async.bulk"): a copy engine fills
// stages of shared memory and reports at a barrier; warps that use a stage report at another. A phase's
// parity is all that a waiter has to know.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ringmaster::gpu_worker::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

class Barrier {
 public:
  __device__ __forceinline__ void init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&state_)), "r"(arrivals)
                 : "memory");
  }
  // Makes initialised barriers visible to the copy engine.
  __device__ static __forceinline__ void publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(&state_))
                 : "memory");
  }
  // Arrives and says how many bytes copies will bring.
  __device__ __forceinline__ void expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&state_)),
                 "r"(bytes)
                 : "memory");
  }
  // Until the phase of this parity (0, 1, 0, ...) has ended.
  __device__ __forceinline__ void wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_address(&state_)),
        "r"(parity)
        : "memory");
  }
  __device__ __forceinline__ uint32_t address() const { return shared_address(&state_); }

 private:
  uint64_t state_;
};

// A ring of stages: the copy engine reports at `full`, so many users at `empty`. One thread's; visible to the
// others after __syncthreads().
__device__ __forceinline__ void init_stages(Barrier* full, Barrier* empty, uint32_t stages, uint32_t users) {
  for (uint32_t i = 0; i < stages; ++i) {
    full[i].init(1);
    empty[i].init(users);
  }
  Barrier::publish();
}

// Where one of the users of the stages stands: which stage, and the parity of its phase.
struct Place {
  uint32_t index = 0, parity = 0;
  __device__ __forceinline__ void advance(uint32_t stages) {
    if (++index < stages) return;
    index = 0;
    parity ^= 1;
  }
};

// Barriers that the hardware names by number, 1 to 15, for some warps of a block: those that sync wait until
// `threads` have come, those that arrive do not. Whole warps only.
__device__ __forceinline__ void sync_named(uint32_t number, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_named(uint32_t number, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// `bytes` and both addresses are multiples of 16. policy: whether they are read once, and first to leave L2,
// or again soon.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, uint32_t bytes, const Barrier& done,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(done.address()), "l"(policy)
      : "memory");
}
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_last_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

}  // namespace ringmaster::gpu_worker::cuda
