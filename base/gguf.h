// A GGUF file, mapped read-only and checked once at open: the tokenizer-worker reads its vocabulary and chat
// template, the gpu-worker its tensors. Everything handed out points into the mapping and lives as long as
// the Gguf. Format: GGUF version 2 and 3, little-endian (ggml docs/gguf.md). Any thread after open(). The
// file is hostile input: every count, length and offset is checked for overflow and against the file before
// use, keys and tensor names are unique, tensors lie aligned inside the file and do not overlap. Time and
// memory are bounded by the size of the header (n log n in the number of keys and tensors; look-ups are
// binary searches, so no hash can be flooded). Not checked: what keys mean, UTF-8 of values. REQUIRES: nobody
// shortens the file while it is open (SIGBUS).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace ringmaster {

enum class TensorType : uint32_t {  // numbers of the format
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kBF16 = 30,
};
std::string_view name(TensorType type);  // "Q4_1"; a number the format does not have: "unknown"

struct GgufTensor {
  std::string_view name;
  TensorType type;
  std::vector<uint64_t> shape;      // as in the file: fastest-varying first
  std::span<const std::byte> data;  // bounds and size checked
};

class Gguf {
 public:
  using Value = std::variant<bool, uint64_t, int64_t, double, std::string_view, std::vector<std::string_view>,
                             std::vector<int64_t>, std::vector<double>>;

  // Errors (message names the file, offset and what was expected): kNotFound, kPermissionDenied, kMalformed
  // (truncated included), kUnsupportedVersion, kUnsupported.
  static Result<Gguf> open(const std::string& path);

  Gguf(Gguf&&) noexcept;
  Gguf& operator=(Gguf&&) noexcept;
  ~Gguf();

  const std::string& path() const { return path_; }
  const Value* find(std::string_view key) const;
  // Typed look-ups; the Error names file and key. Integers accept any integer type of the format that fits.
  Result<uint64_t> integer(std::string_view key) const;
  Result<double> number(std::string_view key) const;
  Result<std::string_view> text(std::string_view key) const;
  Result<std::span<const std::string_view>> texts(std::string_view key) const;
  Result<std::span<const int64_t>> integers(std::string_view key) const;
  Result<std::span<const double>> numbers(std::string_view key) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* tensor(std::string_view name) const;
  // Of the header (all keys and tensor descriptions) and the file's size: equal models have equal hashes.
  uint64_t header_hash() const { return header_hash_; }

 private:
  friend class GgufParser;  // base/gguf_parser.cc
  Gguf() = default;
  Error wrong_type(std::string_view key, const char* wanted) const;
  Error missing(std::string_view key) const;

  std::string path_;
  std::span<const std::byte> map_;
  std::vector<std::pair<std::string_view, Value>> values_;  // by key
  std::vector<GgufTensor> tensors_;                         // in file order
  std::vector<uint32_t> by_name_;                           // indices into tensors_, by name
  uint64_t header_hash_ = 0;
};

}  // namespace ringmaster
