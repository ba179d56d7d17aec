// The tensors of a model file, found and checked, before a device brings them into its own form. Pure
// functions over a mapped file; any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/gguf.h"
#include "base/status.h"
#include "gpu-worker/kernels/packing.h"

namespace ringmaster::gpu_worker {

struct SourceTensor {
  std::span<const std::byte> data;  // rows one after another, as kernels/packing.h reads them
  kernels::SourceForm form{};
};

// Every tensor of the file has a place, or the file means something this build does not compute. Error:
// kUnsupported, naming the tensor.
Status check_all_known(const Gguf& file, uint32_t layers);

// A matrix of `rows` x `columns`, or a vector of `columns` (rows is 1). Errors: kMalformed (missing, wrong
// shape or size), kUnsupported (a type that `device` does not read): name the tensor.
Result<SourceTensor> find_tensor(const Gguf& file, const std::string& name, uint32_t rows, uint32_t columns,
                                 bool vector, std::string_view device);

}  // namespace ringmaster::gpu_worker
