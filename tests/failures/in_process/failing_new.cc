#include "tests/failures/in_process/failing_new.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "tests/simulate/allocations.h"

namespace ringmaster::failures {
namespace {

std::atomic<long> fail_at{0}, counted{0}, live{0};

void* allocate(size_t size, size_t alignment) {
  if (simulate::in_process && ++counted == fail_at) return nullptr;
  if (size == 0) size = 1;
  const size_t whole = (size + alignment - 1) / alignment * alignment;
  void* block =
      alignment <= alignof(std::max_align_t) ? std::malloc(size) : std::aligned_alloc(alignment, whole);
  if (block) ++live;
  return block;
}

void* allocate_or_throw(size_t size, size_t alignment) {
  void* block = allocate(size, alignment);
  if (!block) throw std::bad_alloc();
  return block;
}

void release(void* block) {
  if (block) --live;
  std::free(block);
}

}  // namespace

void fail_allocation(long n) {
  fail_at = n;
  counted = 0;
}
long allocations() {
  return counted;
}
bool allocation_failed() {
  return fail_at > 0 && counted >= fail_at;
}
long live_blocks() {
  return live;
}

}  // namespace ringmaster::failures

using ringmaster::failures::allocate;
using ringmaster::failures::allocate_or_throw;
using ringmaster::failures::release;

void* operator new(size_t size) {
  return allocate_or_throw(size, 1);
}
void* operator new[](size_t size) {
  return allocate_or_throw(size, 1);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 1);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 1);
}
void operator delete(void* block) noexcept {
  release(block);
}
void operator delete[](void* block) noexcept {
  release(block);
}
void operator delete(void* block, size_t) noexcept {
  release(block);
}
void operator delete[](void* block, size_t) noexcept {
  release(block);
}
void operator delete(void* block, std::align_val_t) noexcept {
  release(block);
}
void operator delete[](void* block, std::align_val_t) noexcept {
  release(block);
}
void operator delete(void* block, size_t, std::align_val_t) noexcept {
  release(block);
}
void operator delete[](void* block, size_t, std::align_val_t) noexcept {
  release(block);
}
