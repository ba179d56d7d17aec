// Received bytes at an address from which FlatBuffers may read 64-bit fields. ZeroMQ hands out larger
// messages where they happen to lie in its receive buffer, at any address, which is undefined behaviour to
// read as a message. Used by whoever receives from a socket, before anybody opens the message. Not
// thread-safe.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "schemas/codec.h"

namespace ringmaster::msg {

class Aligned {
 public:
  // `bytes` themselves where they lie well, otherwise a copy. Valid as long as `bytes`, until the next call.
  Bytes of(Bytes bytes) {
    if (bytes.empty() || reinterpret_cast<uintptr_t>(bytes.data()) % sizeof(uint64_t) == 0) return bytes;
    const size_t words = (bytes.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t);
    if (words <= kKeptWords && copy_.capacity() > kKeptWords) copy_ = {};
    copy_.resize(words);
    std::memcpy(copy_.data(), bytes.data(), bytes.size());
    return {reinterpret_cast<const std::byte*>(copy_.data()), bytes.size()};
  }

 private:
  // 64 KiB, ten times ordinary messages: a huge prompt is not kept.
  static constexpr size_t kKeptWords = 8192;
  std::vector<uint64_t> copy_;
};

}  // namespace ringmaster::msg
