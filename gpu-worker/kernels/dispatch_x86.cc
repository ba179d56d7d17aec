#include "gpu-worker/kernels/dispatch.h"
#include "gpu-worker/kernels/tables.h"

namespace ringmaster::gpu_worker::kernels {

std::vector<const Table*> available_tables() {
  std::vector<const Table*> tables;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni"))
    tables.push_back(&kAvx512Table);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    tables.push_back(&kAvx2Table);
  tables.push_back(&kGenericTable);
  return tables;
}

}  // namespace ringmaster::gpu_worker::kernels
