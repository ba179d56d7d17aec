// The tables the instruction-set files define, each only to be called where the processor has what its name
// says.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/kernels.h"

namespace ringmaster::gpu_worker::kernels {

extern const Table kGenericTable;
extern const Table kAvx2Table;    // AVX2, FMA, F16C
extern const Table kAvx512Table;  // AVX-512 F, BW, VL, DQ and VNNI

}  // namespace ringmaster::gpu_worker::kernels
