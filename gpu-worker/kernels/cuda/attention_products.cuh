// The matrix product of a warpgroup (PTX ISA, "wgmma.mma_async"): 64 rows, B and mostly A from shared memory,
// C spread over the registers of 128 threads. Warp w holds rows 16 w to 16 w + 15 in the order of m16n8k16.
//
// Between begin_products() and the wait for the group that end_products() closed nobody touches the
// accumulators, nor A where it is in registers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu-worker/kernels/cuda/mma.cuh"
#include "gpu-worker/kernels/cuda/online_softmax.cuh"
#include "gpu-worker/kernels/cuda/pipeline.cuh"

namespace ringmaster::gpu_worker::cuda {

constexpr int kWarpgroup = 128;

// Rows whose k lies in `64 or 32` neighbouring bytes, in groups of eight rows (512 or 256 bytes, aligned to
// that) with 16-byte chunks swapped as mma_layout.h says; `stride` bytes from one group of rows to the next.
enum class RowBytes : uint64_t { k64 = 2, k32 = 3 };
__device__ __forceinline__ uint64_t operand(const void* at, RowBytes row, uint32_t stride) {
  return static_cast<uint64_t>(row) << 62 | static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 16 |
         (shared_address(at) >> 4 & 0x3FFF);
}
// The same operand `bytes` further on: another 16 of k, other rows.
__device__ __forceinline__ uint64_t advanced(uint64_t operand, uint32_t bytes) {
  return operand + (bytes >> 4);
}

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// What comes after does not begin before these have their values.
template <int kTiles>
__device__ __forceinline__ void settle(Accumulator (&d)[kTiles]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
    asm volatile("" : "+f"(d[i].v[0]), "+f"(d[i].v[1]), "+f"(d[i].v[2]), "+f"(d[i].v[3])::"memory");
}
// What this thread wrote to shared memory is visible to copies and products after it.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// d (+)= a b. By the width of d: 64, 96 or 128 columns.
__device__ __forceinline__ void multiply(Accumulator (&d)[8], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred more;\nsetp.ne.b32 more, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "%32, %33, more, 1, 1, 0, 0;\n}"
      : "+f"(d[0].v[0]), "+f"(d[0].v[1]), "+f"(d[0].v[2]), "+f"(d[0].v[3]), "+f"(d[1].v[0]), "+f"(d[1].v[1]),
        "+f"(d[1].v[2]), "+f"(d[1].v[3]), "+f"(d[2].v[0]), "+f"(d[2].v[1]), "+f"(d[2].v[2]), "+f"(d[2].v[3]),
        "+f"(d[3].v[0]), "+f"(d[3].v[1]), "+f"(d[3].v[2]), "+f"(d[3].v[3]), "+f"(d[4].v[0]), "+f"(d[4].v[1]),
        "+f"(d[4].v[2]), "+f"(d[4].v[3]), "+f"(d[5].v[0]), "+f"(d[5].v[1]), "+f"(d[5].v[2]), "+f"(d[5].v[3]),
        "+f"(d[6].v[0]), "+f"(d[6].v[1]), "+f"(d[6].v[2]), "+f"(d[6].v[3]), "+f"(d[7].v[0]), "+f"(d[7].v[1]),
        "+f"(d[7].v[2]), "+f"(d[7].v[3])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void multiply(Accumulator (&d)[16], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred more;\nsetp.ne.b32 more, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
      "%64, %65, more, 1, 1, 0, 0;\n}"
      : "+f"(d[0].v[0]), "+f"(d[0].v[1]), "+f"(d[0].v[2]), "+f"(d[0].v[3]), "+f"(d[1].v[0]), "+f"(d[1].v[1]),
        "+f"(d[1].v[2]), "+f"(d[1].v[3]), "+f"(d[2].v[0]), "+f"(d[2].v[1]), "+f"(d[2].v[2]), "+f"(d[2].v[3]),
        "+f"(d[3].v[0]), "+f"(d[3].v[1]), "+f"(d[3].v[2]), "+f"(d[3].v[3]), "+f"(d[4].v[0]), "+f"(d[4].v[1]),
        "+f"(d[4].v[2]), "+f"(d[4].v[3]), "+f"(d[5].v[0]), "+f"(d[5].v[1]), "+f"(d[5].v[2]), "+f"(d[5].v[3]),
        "+f"(d[6].v[0]), "+f"(d[6].v[1]), "+f"(d[6].v[2]), "+f"(d[6].v[3]), "+f"(d[7].v[0]), "+f"(d[7].v[1]),
        "+f"(d[7].v[2]), "+f"(d[7].v[3]), "+f"(d[8].v[0]), "+f"(d[8].v[1]), "+f"(d[8].v[2]), "+f"(d[8].v[3]),
        "+f"(d[9].v[0]), "+f"(d[9].v[1]), "+f"(d[9].v[2]), "+f"(d[9].v[3]), "+f"(d[10].v[0]),
        "+f"(d[10].v[1]), "+f"(d[10].v[2]), "+f"(d[10].v[3]), "+f"(d[11].v[0]), "+f"(d[11].v[1]),
        "+f"(d[11].v[2]), "+f"(d[11].v[3]), "+f"(d[12].v[0]), "+f"(d[12].v[1]), "+f"(d[12].v[2]),
        "+f"(d[12].v[3]), "+f"(d[13].v[0]), "+f"(d[13].v[1]), "+f"(d[13].v[2]), "+f"(d[13].v[3]),
        "+f"(d[14].v[0]), "+f"(d[14].v[1]), "+f"(d[14].v[2]), "+f"(d[14].v[3]), "+f"(d[15].v[0]),
        "+f"(d[15].v[1]), "+f"(d[15].v[2]), "+f"(d[15].v[3])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void multiply(Accumulator (&d)[8], const Weights16& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
      : "+f"(d[0].v[0]), "+f"(d[0].v[1]), "+f"(d[0].v[2]), "+f"(d[0].v[3]), "+f"(d[1].v[0]), "+f"(d[1].v[1]),
        "+f"(d[1].v[2]), "+f"(d[1].v[3]), "+f"(d[2].v[0]), "+f"(d[2].v[1]), "+f"(d[2].v[2]), "+f"(d[2].v[3]),
        "+f"(d[3].v[0]), "+f"(d[3].v[1]), "+f"(d[3].v[2]), "+f"(d[3].v[3]), "+f"(d[4].v[0]), "+f"(d[4].v[1]),
        "+f"(d[4].v[2]), "+f"(d[4].v[3]), "+f"(d[5].v[0]), "+f"(d[5].v[1]), "+f"(d[5].v[2]), "+f"(d[5].v[3]),
        "+f"(d[6].v[0]), "+f"(d[6].v[1]), "+f"(d[6].v[2]), "+f"(d[6].v[3]), "+f"(d[7].v[0]), "+f"(d[7].v[1]),
        "+f"(d[7].v[2]), "+f"(d[7].v[3])
      : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "l"(b));
}
__device__ __forceinline__ void multiply(Accumulator (&d)[12], const Weights16& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, "
      "{%48,%49,%50,%51}, %52, 1, 1, 1, 0;"
      : "+f"(d[0].v[0]), "+f"(d[0].v[1]), "+f"(d[0].v[2]), "+f"(d[0].v[3]), "+f"(d[1].v[0]), "+f"(d[1].v[1]),
        "+f"(d[1].v[2]), "+f"(d[1].v[3]), "+f"(d[2].v[0]), "+f"(d[2].v[1]), "+f"(d[2].v[2]), "+f"(d[2].v[3]),
        "+f"(d[3].v[0]), "+f"(d[3].v[1]), "+f"(d[3].v[2]), "+f"(d[3].v[3]), "+f"(d[4].v[0]), "+f"(d[4].v[1]),
        "+f"(d[4].v[2]), "+f"(d[4].v[3]), "+f"(d[5].v[0]), "+f"(d[5].v[1]), "+f"(d[5].v[2]), "+f"(d[5].v[3]),
        "+f"(d[6].v[0]), "+f"(d[6].v[1]), "+f"(d[6].v[2]), "+f"(d[6].v[3]), "+f"(d[7].v[0]), "+f"(d[7].v[1]),
        "+f"(d[7].v[2]), "+f"(d[7].v[3]), "+f"(d[8].v[0]), "+f"(d[8].v[1]), "+f"(d[8].v[2]), "+f"(d[8].v[3]),
        "+f"(d[9].v[0]), "+f"(d[9].v[1]), "+f"(d[9].v[2]), "+f"(d[9].v[3]), "+f"(d[10].v[0]),
        "+f"(d[10].v[1]), "+f"(d[10].v[2]), "+f"(d[10].v[3]), "+f"(d[11].v[0]), "+f"(d[11].v[1]),
        "+f"(d[11].v[2]), "+f"(d[11].v[3])
      : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "l"(b));
}
__device__ __forceinline__ void multiply(Accumulator (&d)[16], const Weights16& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
      "{%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
      : "+f"(d[0].v[0]), "+f"(d[0].v[1]), "+f"(d[0].v[2]), "+f"(d[0].v[3]), "+f"(d[1].v[0]), "+f"(d[1].v[1]),
        "+f"(d[1].v[2]), "+f"(d[1].v[3]), "+f"(d[2].v[0]), "+f"(d[2].v[1]), "+f"(d[2].v[2]), "+f"(d[2].v[3]),
        "+f"(d[3].v[0]), "+f"(d[3].v[1]), "+f"(d[3].v[2]), "+f"(d[3].v[3]), "+f"(d[4].v[0]), "+f"(d[4].v[1]),
        "+f"(d[4].v[2]), "+f"(d[4].v[3]), "+f"(d[5].v[0]), "+f"(d[5].v[1]), "+f"(d[5].v[2]), "+f"(d[5].v[3]),
        "+f"(d[6].v[0]), "+f"(d[6].v[1]), "+f"(d[6].v[2]), "+f"(d[6].v[3]), "+f"(d[7].v[0]), "+f"(d[7].v[1]),
        "+f"(d[7].v[2]), "+f"(d[7].v[3]), "+f"(d[8].v[0]), "+f"(d[8].v[1]), "+f"(d[8].v[2]), "+f"(d[8].v[3]),
        "+f"(d[9].v[0]), "+f"(d[9].v[1]), "+f"(d[9].v[2]), "+f"(d[9].v[3]), "+f"(d[10].v[0]),
        "+f"(d[10].v[1]), "+f"(d[10].v[2]), "+f"(d[10].v[3]), "+f"(d[11].v[0]), "+f"(d[11].v[1]),
        "+f"(d[11].v[2]), "+f"(d[11].v[3]), "+f"(d[12].v[0]), "+f"(d[12].v[1]), "+f"(d[12].v[2]),
        "+f"(d[12].v[3]), "+f"(d[13].v[0]), "+f"(d[13].v[1]), "+f"(d[13].v[2]), "+f"(d[13].v[3]),
        "+f"(d[14].v[0]), "+f"(d[14].v[1]), "+f"(d[14].v[2]), "+f"(d[14].v[3]), "+f"(d[15].v[0]),
        "+f"(d[15].v[1]), "+f"(d[15].v[2]), "+f"(d[15].v[3])
      : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "l"(b));
}
__device__ __forceinline__ void multiply(Accumulator (&d)[12], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred more;\nsetp.ne.b32 more, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, "
      "%48, %49, more, 1, 1, 0, 0;\n}"
      : "+f"(d[0].v[0]), "+f"(d[0].v[1]), "+f"(d[0].v[2]), "+f"(d[0].v[3]), "+f"(d[1].v[0]), "+f"(d[1].v[1]),
        "+f"(d[1].v[2]), "+f"(d[1].v[3]), "+f"(d[2].v[0]), "+f"(d[2].v[1]), "+f"(d[2].v[2]), "+f"(d[2].v[3]),
        "+f"(d[3].v[0]), "+f"(d[3].v[1]), "+f"(d[3].v[2]), "+f"(d[3].v[3]), "+f"(d[4].v[0]), "+f"(d[4].v[1]),
        "+f"(d[4].v[2]), "+f"(d[4].v[3]), "+f"(d[5].v[0]), "+f"(d[5].v[1]), "+f"(d[5].v[2]), "+f"(d[5].v[3]),
        "+f"(d[6].v[0]), "+f"(d[6].v[1]), "+f"(d[6].v[2]), "+f"(d[6].v[3]), "+f"(d[7].v[0]), "+f"(d[7].v[1]),
        "+f"(d[7].v[2]), "+f"(d[7].v[3]), "+f"(d[8].v[0]), "+f"(d[8].v[1]), "+f"(d[8].v[2]), "+f"(d[8].v[3]),
        "+f"(d[9].v[0]), "+f"(d[9].v[1]), "+f"(d[9].v[2]), "+f"(d[9].v[3]), "+f"(d[10].v[0]),
        "+f"(d[10].v[1]), "+f"(d[10].v[2]), "+f"(d[10].v[3]), "+f"(d[11].v[0]), "+f"(d[11].v[1]),
        "+f"(d[11].v[2]), "+f"(d[11].v[3])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void multiply(Accumulator (&d)[14], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred more;\nsetp.ne.b32 more, %58, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55}, "
      "%56, %57, more, 1, 1, 0, 0;\n}"
      : "+f"(d[0].v[0]), "+f"(d[0].v[1]), "+f"(d[0].v[2]), "+f"(d[0].v[3]), "+f"(d[1].v[0]), "+f"(d[1].v[1]),
        "+f"(d[1].v[2]), "+f"(d[1].v[3]), "+f"(d[2].v[0]), "+f"(d[2].v[1]), "+f"(d[2].v[2]), "+f"(d[2].v[3]),
        "+f"(d[3].v[0]), "+f"(d[3].v[1]), "+f"(d[3].v[2]), "+f"(d[3].v[3]), "+f"(d[4].v[0]), "+f"(d[4].v[1]),
        "+f"(d[4].v[2]), "+f"(d[4].v[3]), "+f"(d[5].v[0]), "+f"(d[5].v[1]), "+f"(d[5].v[2]), "+f"(d[5].v[3]),
        "+f"(d[6].v[0]), "+f"(d[6].v[1]), "+f"(d[6].v[2]), "+f"(d[6].v[3]), "+f"(d[7].v[0]), "+f"(d[7].v[1]),
        "+f"(d[7].v[2]), "+f"(d[7].v[3]), "+f"(d[8].v[0]), "+f"(d[8].v[1]), "+f"(d[8].v[2]), "+f"(d[8].v[3]),
        "+f"(d[9].v[0]), "+f"(d[9].v[1]), "+f"(d[9].v[2]), "+f"(d[9].v[3]), "+f"(d[10].v[0]),
        "+f"(d[10].v[1]), "+f"(d[10].v[2]), "+f"(d[10].v[3]), "+f"(d[11].v[0]), "+f"(d[11].v[1]),
        "+f"(d[11].v[2]), "+f"(d[11].v[3]), "+f"(d[12].v[0]), "+f"(d[12].v[1]), "+f"(d[12].v[2]),
        "+f"(d[12].v[3]), "+f"(d[13].v[0]), "+f"(d[13].v[1]), "+f"(d[13].v[2]), "+f"(d[13].v[3])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void multiply(Accumulator (&d)[18], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred more;\nsetp.ne.b32 more, %74, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71}, "
      "%72, %73, more, 1, 1, 0, 0;\n}"
      : "+f"(d[0].v[0]), "+f"(d[0].v[1]), "+f"(d[0].v[2]), "+f"(d[0].v[3]), "+f"(d[1].v[0]), "+f"(d[1].v[1]),
        "+f"(d[1].v[2]), "+f"(d[1].v[3]), "+f"(d[2].v[0]), "+f"(d[2].v[1]), "+f"(d[2].v[2]), "+f"(d[2].v[3]),
        "+f"(d[3].v[0]), "+f"(d[3].v[1]), "+f"(d[3].v[2]), "+f"(d[3].v[3]), "+f"(d[4].v[0]), "+f"(d[4].v[1]),
        "+f"(d[4].v[2]), "+f"(d[4].v[3]), "+f"(d[5].v[0]), "+f"(d[5].v[1]), "+f"(d[5].v[2]), "+f"(d[5].v[3]),
        "+f"(d[6].v[0]), "+f"(d[6].v[1]), "+f"(d[6].v[2]), "+f"(d[6].v[3]), "+f"(d[7].v[0]), "+f"(d[7].v[1]),
        "+f"(d[7].v[2]), "+f"(d[7].v[3]), "+f"(d[8].v[0]), "+f"(d[8].v[1]), "+f"(d[8].v[2]), "+f"(d[8].v[3]),
        "+f"(d[9].v[0]), "+f"(d[9].v[1]), "+f"(d[9].v[2]), "+f"(d[9].v[3]), "+f"(d[10].v[0]),
        "+f"(d[10].v[1]), "+f"(d[10].v[2]), "+f"(d[10].v[3]), "+f"(d[11].v[0]), "+f"(d[11].v[1]),
        "+f"(d[11].v[2]), "+f"(d[11].v[3]), "+f"(d[12].v[0]), "+f"(d[12].v[1]), "+f"(d[12].v[2]),
        "+f"(d[12].v[3]), "+f"(d[13].v[0]), "+f"(d[13].v[1]), "+f"(d[13].v[2]), "+f"(d[13].v[3]),
        "+f"(d[14].v[0]), "+f"(d[14].v[1]), "+f"(d[14].v[2]), "+f"(d[14].v[3]), "+f"(d[15].v[0]),
        "+f"(d[15].v[1]), "+f"(d[15].v[2]), "+f"(d[15].v[3]), "+f"(d[16].v[0]), "+f"(d[16].v[1]),
        "+f"(d[16].v[2]), "+f"(d[16].v[3]), "+f"(d[17].v[0]), "+f"(d[17].v[1]), "+f"(d[17].v[2]),
        "+f"(d[17].v[3])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

}  // namespace ringmaster::gpu_worker::cuda
