#include <cpuid.h>

#include "gpu-worker/kernels/dispatch.h"
#include "gpu-worker/kernels/tables.h"

namespace ringmaster::gpu_worker::kernels {
namespace {

// By hand: clang 14 does not know the name "f16c". Whether the system keeps the registers, AVX2's test says.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

std::vector<const Table*> available_tables() {
  std::vector<const Table*> tables;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni"))
    tables.push_back(&kAvx512Table);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
    tables.push_back(&kAvx2Table);
  tables.push_back(&kGenericTable);
  return tables;
}

}  // namespace ringmaster::gpu_worker::kernels
