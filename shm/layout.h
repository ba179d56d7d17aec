// The bytes of a ring slot, the shared memory between one tokenizer-worker and one gpu-worker. LAYOUT.md
// draws them. Both sides include this file; attach refuses on another magic, version or size. Fixed-width
// types only, no pointers; every offset is asserted. Knows neither CUDA nor ZeroMQ.
//
//   slot = header page | command ring | prompt ring | token ring
//
// Each ring has one producer and one consumer. Positions are 64-bit, count bytes and only grow; a
// record is contiguous and starts at a multiple of 64.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ringmaster::shm {

// "RMRING1\0" in memory order (little-endian).
inline constexpr uint64_t kSlotMagic = 0x00'31'47'4E'49'52'4D'52;
inline constexpr uint64_t kBellMagic = 0x00'31'4C'4C'45'42'4D'52;  // "RMBELL1\0"
inline constexpr uint32_t kLayoutVersion = 1;
inline constexpr size_t kCacheLine = 64;  // fixed: two builds must agree on it
inline constexpr size_t kPage = 4096;

// One word per role, each on its own cache line: the producer writes `head`, the consumer writes `tail`.
struct alignas(kCacheLine) RingIndex {
  std::atomic<uint64_t> head;  // bytes published
  std::byte pad0[kCacheLine - sizeof(uint64_t)];
  std::atomic<uint64_t> tail;  // bytes consumed
  std::byte pad1[kCacheLine - sizeof(uint64_t)];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(offsetof(RingIndex, tail) == 64 && sizeof(RingIndex) == 128);

struct RingPlace {
  uint64_t offset;    // of the first data byte, from the start of the slot; a multiple of kPage
  uint64_t capacity;  // bytes, a power of two
};

struct SlotHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t slot;  // index in the gpu-worker's table
  uint64_t size;  // of the whole slot
  uint64_t gpu_instance;
  RingPlace command, prompt, token;
  std::byte pad[128 - 80];
  RingIndex command_index, prompt_index, token_index;
};
static_assert(offsetof(SlotHeader, size) == 16 && offsetof(SlotHeader, gpu_instance) == 24);
static_assert(offsetof(SlotHeader, command) == 32 && offsetof(SlotHeader, token) == 64);
static_assert(offsetof(SlotHeader, command_index) == 128);
static_assert(sizeof(SlotHeader) <= kPage);
static_assert(std::is_standard_layout_v<SlotHeader>);

// Before each record. `size` counts this header and the payload, without the padding to 64.
struct RecordHeader {
  uint32_t size;
  uint32_t type;  // RecordType, or kPadRecord: skip to the ring's start
};
static_assert(sizeof(RecordHeader) == 8);
inline constexpr uint32_t kPadRecord = 0;
inline constexpr size_t kRecordAlign = 64;

// Capacities are powers of two in this range: whole pages, and below what a record's 32-bit size can count.
inline constexpr uint64_t kMinRingBytes = kPage;
inline constexpr uint64_t kMaxRingBytes = 1ull << 30;

// A doorbell: a page of its own. Ringers write `sequence`, the owner writes `sleeping`.
struct BellPage {
  uint64_t magic;
  uint32_t version;
  std::byte pad0[kCacheLine - 12];
  alignas(kCacheLine) std::atomic<uint32_t> sequence;  // the futex word: grows with every ring
  std::byte pad1[kCacheLine - sizeof(uint32_t)];
  alignas(kCacheLine) std::atomic<uint32_t> sleeping;  // 1: the owner is, or is about to be, in the futex
  std::byte pad2[kCacheLine - sizeof(uint32_t)];
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(offsetof(BellPage, sequence) == 64 && offsetof(BellPage, sleeping) == 128);
static_assert(sizeof(BellPage) == 192 && sizeof(BellPage) <= kPage);

}  // namespace ringmaster::shm
