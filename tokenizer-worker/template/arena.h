// Memory of one template or of one render: objects are placed one behind the other and all freed at once.
// Values may refer to each other in circles and are copied as plain bits. One owner, one thread; a
// template's arena is read by any thread once compiled. Only trivially destructible objects. Running over
// the limit is noticed by over_limit(), not by a null pointer: small objects are always served, whoever asks
// for much asks fits() first.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace ringmaster::tokenizer_worker::jinja {

class Arena {
 public:
  explicit Arena(size_t limit_bytes) : limit_(limit_bytes) {}
  Arena(Arena&&) = default;
  Arena& operator=(Arena&&) = default;

  bool fits(size_t bytes) const { return bytes <= limit_ && used_ <= limit_ - bytes; }
  bool over_limit() const { return used_ > limit_; }

  void* allocate(size_t bytes, size_t align) {
    uintptr_t at = (reinterpret_cast<uintptr_t>(next_) + align - 1) & ~(uintptr_t{align} - 1);
    if (next_ == nullptr || at + bytes > reinterpret_cast<uintptr_t>(end_)) {
      grow(bytes + align);
      at = (reinterpret_cast<uintptr_t>(next_) + align - 1) & ~(uintptr_t{align} - 1);
    }
    next_ = reinterpret_cast<char*>(at + bytes);
    return reinterpret_cast<void*>(at);
  }

  template <typename T, typename... Args>
  T* make(Args&&... args) {
    static_assert(std::is_trivially_destructible_v<T>);
    return new (allocate(sizeof(T), alignof(T))) T{std::forward<Args>(args)...};
  }

  // `count` objects, each as T{}.
  template <typename T>
  T* array(size_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    T* first = static_cast<T*>(allocate(count * sizeof(T), alignof(T)));
    for (size_t i = 0; i < count; ++i) new (first + i) T{};
    return first;
  }

  template <typename T>
  std::span<T> copy(const std::vector<T>& items) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (items.empty()) return {};
    T* first = static_cast<T*>(allocate(items.size() * sizeof(T), alignof(T)));
    std::memcpy(static_cast<void*>(first), items.data(), items.size() * sizeof(T));
    return {first, items.size()};
  }

  std::string_view copy(std::string_view text) {
    if (text.empty()) return {};
    char* first = static_cast<char*>(allocate(text.size(), 1));
    std::memcpy(first, text.data(), text.size());
    return {first, text.size()};
  }

  // Room for `size` bytes of text that starts with `prefix`. A prefix that was the last text made here is
  // extended where it stands, so that building a text piece by piece costs its length and not its square.
  char* text_after(std::string_view prefix, size_t size);

 private:
  void grow(size_t bytes);

  std::vector<std::unique_ptr<char[]>> chunks_;
  char* next_ = nullptr;
  char* end_ = nullptr;
  char* text_end_ = nullptr;       // end of the last text of text_after
  char* text_capacity_ = nullptr;  // and of the room reserved for it
  size_t used_ = 0;
  size_t limit_;
};

}  // namespace ringmaster::tokenizer_worker::jinja
