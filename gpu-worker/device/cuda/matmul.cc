#include "gpu-worker/device/cuda/matmul.h"

#include <string>
#include <utility>

#include "gpu-worker/device/cuda/cuda_error.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr size_t kWorkspaceBytes =
    64 << 20;  // cuBLAS's own choice for Hopper is 32 MiB; split-K of wide products takes more

Status check(cublasStatus_t code, const std::string& what) {
  if (code == CUBLAS_STATUS_SUCCESS) return ok_status();
  const Code kind = code == CUBLAS_STATUS_ALLOC_FAILED ? Code::kResourceExhausted : Code::kWorkerLost;
  return Error{kind, what + ": cuBLASLt: " + cublasLtGetStatusString(code)};
}

}  // namespace

// Seen column by column, as cuBLASLt does: y^T [n, rows] = (W^T)^T [n, k] x^T [k, rows].
struct Matmul::Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weights = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {weights, x, y})
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
  }
};

Result<Matmul> Matmul::create() {
  Matmul m;
  if (Status s = check(cublasLtCreate(&m.handle_), "starting"); !s) return s.error();
  Result<Memory> workspace =
      Memory::create(Memory::Kind::kDevice, kWorkspaceBytes, "the workspace of matrix products");
  if (!workspace) return workspace.error();
  m.workspace_ = std::move(*workspace);
  return m;
}

Matmul::Matmul(Matmul&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      workspace_(std::move(other.workspace_)),
      plans_(std::move(other.plans_)) {}

Matmul::~Matmul() {
  plans_.clear();
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

Result<Matmul::Plan*> Matmul::plan_for(const Key& key) {
  const auto [found, fresh] = plans_.try_emplace(key);
  Plan& p = found->second;
  if (!fresh) return &p;
  const auto [rows, n, k, is_float] = key;
  const cudaDataType_t y_type = is_float ? CUDA_R_32F : CUDA_R_16BF;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  cublasLtMatmulPreference_t preference = nullptr;
  Status s =
      check(cublasLtMatmulDescCreate(&p.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  if (s)
    s = check(cublasLtMatmulDescSetAttribute(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                             sizeof transposed),
              "describing a product");
  if (s) s = check(cublasLtMatrixLayoutCreate(&p.weights, CUDA_R_16BF, k, n, k), "describing weights");
  if (s) s = check(cublasLtMatrixLayoutCreate(&p.x, CUDA_R_16BF, k, rows, k), "describing rows");
  if (s) s = check(cublasLtMatrixLayoutCreate(&p.y, y_type, n, rows, n), "describing a result");
  if (s) s = check(cublasLtMatmulPreferenceCreate(&preference), "choosing an algorithm");
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  if (s) {
    const size_t workspace = workspace_.size();
    s = check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                   &workspace, sizeof workspace),
              "choosing an algorithm");
  }
  if (s)
    s = check(cublasLtMatmulAlgoGetHeuristic(handle_, p.operation, p.weights, p.x, p.y, p.y, preference, 1,
                                             &result, &count),
              "choosing an algorithm");
  if (preference != nullptr) cublasLtMatmulPreferenceDestroy(preference);
  if (s && count == 0)
    s = Error{Code::kInternal, "cuBLASLt has no algorithm for a product of " + std::to_string(rows) + " x " +
                                   std::to_string(k) + " x " + std::to_string(n)};
  if (!s) {
    plans_.erase(found);
    return s.error();
  }
  p.algorithm = result.algo;
  return &p;
}

Status Matmul::run_as(cudaStream_t stream, void* y, cudaDataType_t y_type, const bf16* x, const bf16* weights,
                      uint32_t rows, uint32_t n, uint32_t k, bool add) {
  Result<Plan*> plan = plan_for({rows, n, k, y_type == CUDA_R_32F});
  if (!plan) return plan.error();
  const float one = 1, beta = add ? 1 : 0;
  return check(
      cublasLtMatmul(handle_, (*plan)->operation, &one, weights, (*plan)->weights, x, (*plan)->x, &beta, y,
                     (*plan)->y, y, (*plan)->y, &(*plan)->algorithm, workspace_.data(), workspace_.size(),
                     stream),
      "a product of " + std::to_string(rows) + " x " + std::to_string(k) + " x " + std::to_string(n));
}

Status Matmul::run(cudaStream_t stream, bf16* y, const bf16* x, const bf16* weights, uint32_t rows,
                   uint32_t n, uint32_t k, bool add) {
  return run_as(stream, y, CUDA_R_16BF, x, weights, rows, n, k, add);
}

Status Matmul::run(cudaStream_t stream, float* y, const bf16* x, const bf16* weights, uint32_t rows,
                   uint32_t n, uint32_t k) {
  return run_as(stream, y, CUDA_R_32F, x, weights, rows, n, k, false);
}

}  // namespace ringmaster::gpu_worker::cuda
