// Which table of kernels this processor runs; asked once, when a device starts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "gpu-worker/kernels/kernels.h"

namespace ringmaster::gpu_worker::kernels {

// Every table this processor can run, fastest first; never empty, "generic" is last.
std::vector<const Table*> available_tables();
inline const Table& best_table() {
  return *available_tables().front();
}

}  // namespace ringmaster::gpu_worker::kernels
