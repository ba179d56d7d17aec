#include "tests/gpu-worker/device_cuda_faults/fake_runtime.h"

#include <cublasLt.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace ringmaster::fake_cuda {
namespace {

struct State {
  std::mutex mutex;
  Setting setting;     // guarded by mutex, like all below
  std::string failed;  // name of the call
  cudaError_t last = cudaSuccess;
  long calls = 0, allocations = 0, live = 0;
  size_t device_bytes = 0;
  int priority = 0;
  std::atomic<bool> hangs = false;
};

State& state() {
  static State s;
  return s;
}

// What a call returns: every one of them begins with it.
cudaError_t enter(const char* call, cudaError_t error) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const bool again = !s.failed.empty() && s.setting.sticky;
  if (++s.calls != s.setting.fail_at && !again) return cudaSuccess;
  if (!again) s.failed = call;
  return s.last = error;
}
cudaError_t enter(const char* call) {
  return enter(call, state().setting.error);
}

cublasStatus_t enter_blas(const char* call) {
  return enter(call) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

void count(long taken) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.live += taken;
}

// A handle that stands for an object nobody looks into.
template <typename Handle>
cudaError_t make(const char* call, Handle* handle) {
  if (const cudaError_t e = enter(call); e != cudaSuccess) return e;
  *handle = reinterpret_cast<Handle>(std::malloc(1));
  count(1);
  return cudaSuccess;
}
template <typename Handle>
cublasStatus_t make_blas(const char* call, Handle* handle) {
  return make(call, handle) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
cudaError_t give_back(const void* handle) {
  if (handle != nullptr) count(-1);
  std::free(const_cast<void*>(handle));
  return cudaSuccess;
}

cudaError_t allocate(const char* call, void** to, size_t bytes) {
  if (const cudaError_t e = enter(call, cudaErrorMemoryAllocation); e != cudaSuccess) return e;
  *to = std::calloc(bytes, 1);
  count(1);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  ++s.allocations;
  return *to != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t wait(const char* call) {
  while (state().hangs) sleep(1);
  return enter(call);
}

}  // namespace

void set(const Setting& setting) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.setting = setting;
  s.failed.clear();
  s.last = cudaSuccess;
  s.calls = s.allocations = s.live = 0;
  s.device_bytes = 0;
  s.hangs = false;
}
void hang() {
  state().hangs = true;
}
std::string failed_call() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.failed;
}
long calls() {
  return state().calls;
}
long allocations() {
  return state().allocations;
}
long live() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.live;
}
size_t device_bytes() {
  return state().device_bytes;
}
int last_priority() {
  return state().priority;
}

}  // namespace ringmaster::fake_cuda

using namespace ringmaster::fake_cuda;

extern "C" {

// ---- devices and errors ----

cudaError_t cudaGetDeviceCount(int* devices) {
  *devices = state().setting.devices;
  if (state().setting.device_count_error != cudaSuccess) return state().setting.device_count_error;
  return enter("cudaGetDeviceCount");
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 11040;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 12080;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int) {
  std::memset(to, 0, sizeof *to);
  std::strcpy(to->name, "Fake GPU");
  to->major = state().setting.major;
  to->minor = state().setting.minor;
  to->multiProcessorCount = 132;
  return enter("cudaGetDeviceProperties");
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return enter("cudaDeviceGetStreamPriorityRange");
}
cudaError_t cudaSetDevice(int) {
  return enter("cudaSetDevice");
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return enter("cudaGetDevice");
}
cudaError_t cudaDeviceSynchronize() {
  return wait("cudaDeviceSynchronize");
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = state().setting.free;
  *total = state().setting.total;
  return enter("cudaMemGetInfo");
}
cudaError_t cudaGetLastError() {
  return std::exchange(state().last, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return state().last;
}
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorMemoryAllocation ? "out of memory" : "a failure of the fake runtime";
}
const char* cudaGetErrorName(cudaError_t code) {
  return code == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorFake";
}

// ---- memory ----

cudaError_t cudaMalloc(void** to, size_t bytes) {
  const cudaError_t e = allocate("cudaMalloc", to, bytes);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (e == cudaSuccess) s.device_bytes += bytes;
  return e;
}
cudaError_t cudaHostAlloc(void** to, size_t bytes, unsigned) {
  return allocate("cudaHostAlloc", to, bytes);
}
cudaError_t cudaFree(void* memory) {
  return give_back(memory);
}
cudaError_t cudaFreeHost(void* memory) {
  return give_back(memory);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (const cudaError_t e = enter("cudaMemset"); e != cudaSuccess) return e;
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (const cudaError_t e = enter("cudaMemcpy"); e != cudaSuccess) return e;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (const cudaError_t e = enter("cudaMemcpyAsync"); e != cudaSuccess) return e;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t) {
  if (const cudaError_t e = enter("cudaMemcpy2DAsync"); e != cudaSuccess) return e;
  for (size_t row = 0; row < height; ++row)
    std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                width);
  return cudaSuccess;
}

// ---- streams, events, graphs ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return make("cudaStreamCreateWithFlags", stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  state().priority = priority;
  return make("cudaStreamCreateWithPriority", stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return give_back(stream);
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return wait("cudaStreamSynchronize");
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return enter("cudaStreamWaitEvent");
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return enter("cudaStreamBeginCapture");
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = nullptr;
  return make("cudaStreamEndCapture", graph);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return make("cudaEventCreateWithFlags", event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return give_back(event);
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return enter("cudaEventRecord");
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return state().hangs ? cudaErrorNotReady : enter("cudaEventQuery");
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t, unsigned long long) {
  return make("cudaGraphInstantiate", exec);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return enter("cudaGraphUpload");
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
  return enter("cudaGraphLaunch");
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return give_back(graph);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return give_back(exec);
}

// ---- kernels ----

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return enter("cudaFuncSetAttribute");
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  return enter("cudaLaunchKernelExC");
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return enter("a kernel");
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
// Functions of the driver: any of them succeeds and does nothing.
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = reinterpret_cast<void*>(+[]() -> int { return 0; });
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;  // asked once in a process, so a failure would outlive its trial
}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, struct CUstream_st*) {
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) {
  return cudaSuccess;
}
void** __cudaRegisterFatBinary(void*) {
  static void* binary = nullptr;
  return &binary;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {}

// ---- cuBLASLt ----

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return make_blas("cublasLtCreate", handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  give_back(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t) {
  return "a failure of the fake runtime";
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* to, cublasComputeType_t, cudaDataType_t) {
  return make_blas("cublasLtMatmulDescCreate", to);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                              const void*, size_t) {
  return enter_blas("cublasLtMatmulDescSetAttribute");
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  give_back(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* to, cudaDataType, uint64_t, uint64_t,
                                          int64_t) {
  return make_blas("cublasLtMatrixLayoutCreate", to);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  give_back(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* to) {
  return make_blas("cublasLtMatmulPreferenceCreate", to);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t, const void*,
                                                    size_t) {
  return enter_blas("cublasLtMatmulPreferenceSetAttribute");
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  give_back(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t*, int* count) {
  *count = 1;
  return enter_blas("cublasLtMatmulAlgoGetHeuristic");
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                              cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t, const void*,
                              const void*, cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
  return enter_blas("cublasLtMatmul");
}

}  // extern "C"
