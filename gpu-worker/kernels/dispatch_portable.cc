#include "gpu-worker/kernels/dispatch.h"
#include "gpu-worker/kernels/tables.h"

namespace ringmaster::gpu_worker::kernels {

std::vector<const Table*> available_tables() {
  return {&kGenericTable};
}

}  // namespace ringmaster::gpu_worker::kernels
