// A ring in plain memory: index and data, as both sides of a slot see them. Data is allocated apart from the
// index, so that ASan sees any step beyond it.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "shm/layout.h"
#include "shm/ring.h"

namespace ringmaster::shm {

struct TestRing {
  explicit TestRing(size_t capacity)
      : capacity_(capacity), data_(new (std::align_val_t(kRecordAlign)) std::byte[capacity]()) {}
  ~TestRing() { operator delete[](data_, std::align_val_t(kRecordAlign)); }
  TestRing(const TestRing&) = delete;
  TestRing& operator=(const TestRing&) = delete;

  RingView view() { return {index_.get(), {data_, capacity_}}; }
  RingIndex& index() { return *index_; }
  std::byte* data() { return data_; }
  RecordHeader& header_at(size_t offset) { return *reinterpret_cast<RecordHeader*>(data_ + offset); }

 private:
  size_t capacity_;
  std::unique_ptr<RingIndex> index_ = std::make_unique<RingIndex>();
  std::byte* data_;
};

}  // namespace ringmaster::shm
