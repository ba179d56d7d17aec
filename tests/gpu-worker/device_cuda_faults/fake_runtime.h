// A CUDA runtime without a GPU, linked in front of the real one: device memory is host memory, kernels do
// nothing, everything enqueued is done at once. It counts calls, lets the n-th fail, hangs, and knows what
// was taken and not given back. One test at a time; the device under test may call it from any thread.
//
// It defines what the cuda device uses of the runtime and of cuBLASLt. A call that is new there and missing
// here shows as a link error of this test ("multiple definition": the linker has then fetched the real one).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace ringmaster::fake_cuda {

struct Setting {
  long fail_at = 0;                             // the call that fails, counted from 1; 0: none
  cudaError_t error = cudaErrorIllegalAddress;  // of it; of an allocation: no memory
  bool sticky = false;                          // all later calls fail too, as after a fault of a kernel
  int devices = 1;
  cudaError_t device_count_error = cudaSuccess;
  int major = 9, minor = 0;
  size_t free = size_t{8} << 30, total = size_t{141} << 30;
};

// Forgets all counts. REQUIRES: nothing of the runtime is in use.
void set(const Setting& setting);
// From now on no step ends: events stay unfinished, waiting for a stream never returns.
void hang();

// The call that failed; empty: none yet. Calls that only give back (free, destroy) are not made to fail.
std::string failed_call();
long calls();           // that could have failed
long allocations();     // of memory, ever
size_t device_bytes();  // of device memory, taken since set()
long live();            // memory, streams, events, graphs, handles and descriptors not given back
int last_priority();    // of the last stream made with one

}  // namespace ringmaster::fake_cuda
