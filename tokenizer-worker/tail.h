// The part of a growing sequence that somebody may still ask for: appended at the back, trimmed at the front,
// and addressed by position since the sequence began. Buffer is a std::string or a std::vector of plain
// values. Trimming is O(1) amortised; an empty one keeps its memory until release().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ringmaster::tokenizer_worker {

template <typename Buffer>
class Tail {
 public:
  using Value = typename Buffer::value_type;

  uint64_t begin() const { return begin_; }
  uint64_t end() const { return begin_ + (data_.size() - dead_); }

  // REQUIRES: nothing was appended yet.
  void start_at(uint64_t position) { begin_ = position; }
  void push_back(const Value& value) { data_.push_back(value); }
  void append(std::span<const Value> values) { data_.insert(data_.end(), values.begin(), values.end()); }

  // REQUIRES: begin() <= position <= end().
  std::span<const Value> from(uint64_t position) const {
    return std::span<const Value>(data_.data(), data_.size())
        .subspan(dead_ + static_cast<size_t>(position - begin_));
  }
  // REQUIRES: begin() <= position < end().
  const Value& operator[](uint64_t position) const {
    return data_[dead_ + static_cast<size_t>(position - begin_)];
  }

  // REQUIRES: position <= end(). A position before begin() changes nothing.
  void trim(uint64_t position) {
    if (position <= begin_) return;
    dead_ += static_cast<size_t>(position - begin_);
    begin_ = position;
    if (dead_ == data_.size()) {
      data_.clear();
      dead_ = 0;
    } else if (dead_ >= kCompact && dead_ * 2 > data_.size()) {
      data_.erase(data_.begin(), data_.begin() + static_cast<std::ptrdiff_t>(dead_));
      dead_ = 0;
    }
  }

  // Gives unused memory back.
  void release() {
    Buffer rest(data_.begin() + static_cast<std::ptrdiff_t>(dead_), data_.end());
    data_.swap(rest);
    dead_ = 0;
  }

 private:
  // Moving fewer values than this at a time costs more calls than the memory is worth.
  static constexpr size_t kCompact = 256;
  Buffer data_;
  size_t dead_ = 0;     // trimmed values still in data_
  uint64_t begin_ = 0;  // position of data_[dead_]
};

}  // namespace ringmaster::tokenizer_worker
