// What the fuzz targets share: the input as a script of small pieces, copies whose borders AddressSanitizer
// watches, and a check that ends the process. A script is read front to back; where it has ended, everything
// is 0 or empty.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

// A promise of the code under test that holds for every input.
#define FUZZ_CHECK(condition)                                                             \
  do {                                                                                    \
    if (!(condition)) ::ringmaster::fuzz::broken_promise(#condition, __FILE__, __LINE__); \
  } while (false)

namespace ringmaster::fuzz {

[[noreturn]] inline void broken_promise(const char* what, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
  std::abort();
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  template <typename T>
  T number() {
    T value{};
    const size_t size = std::min(sizeof value, left_);
    if (size != 0) std::memcpy(&value, data_, size);
    skip(size);
    return value;
  }
  uint8_t byte() { return number<uint8_t>(); }
  // Exactly as many bytes as its heap block has.
  std::vector<std::byte> bytes(size_t size) {
    size = std::min(size, left_);
    const auto* from = reinterpret_cast<const std::byte*>(data_);
    std::vector<std::byte> copy(from, from + size);
    skip(size);
    return copy;
  }
  std::string text(size_t size) {
    const std::vector<std::byte> copy = bytes(size);
    return {reinterpret_cast<const char*>(copy.data()), copy.size()};
  }
  std::string rest() { return text(left_); }
  // A piece with its size in front of it.
  std::vector<std::byte> sized_bytes() { return bytes(number<uint16_t>()); }
  std::string sized_text() { return text(number<uint16_t>()); }

 private:
  void skip(size_t size) {
    data_ += size;
    left_ -= size;
  }
  const uint8_t* data_;
  size_t left_;
};

// Writes such a script: the seeds.
class Script {
 public:
  template <typename T>
  Script& number(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Script& byte(int value) { return number(static_cast<uint8_t>(value)); }
  Script& text(std::string_view bytes) {
    out_ += bytes;
    return *this;
  }
  Script& sized(std::string_view bytes) { return number(static_cast<uint16_t>(bytes.size())).text(bytes); }
  const std::string& bytes() const { return out_; }

 private:
  std::string out_;
};

}  // namespace ringmaster::fuzz
