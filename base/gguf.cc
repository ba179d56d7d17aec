#include "base/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/gguf_parser.h"

namespace ringmaster {
namespace {

// Indexed by the format's number (ggml.h, enum ggml_type); types that no room of this project reads have no
// block size.
constexpr std::array<GgufTypeInfo, 40> kTypes = {{
    {"F32", 1, 4},      {"F16", 1, 2},        {"Q4_0", 32, 18},     {"Q4_1", 32, 20},     {"Q4_2", 0, 0},
    {"Q4_3", 0, 0},     {"Q5_0", 32, 22},     {"Q5_1", 32, 24},     {"Q8_0", 32, 34},     {"Q8_1", 32, 36},
    {"Q2_K", 256, 84},  {"Q3_K", 256, 110},   {"Q4_K", 256, 144},   {"Q5_K", 256, 176},   {"Q6_K", 256, 210},
    {"Q8_K", 256, 292}, {"IQ2_XXS", 0, 0},    {"IQ2_XS", 0, 0},     {"IQ3_XXS", 0, 0},    {"IQ1_S", 0, 0},
    {"IQ4_NL", 0, 0},   {"IQ3_S", 0, 0},      {"IQ2_S", 0, 0},      {"IQ4_XS", 0, 0},     {"I8", 0, 0},
    {"I16", 0, 0},      {"I32", 0, 0},        {"I64", 0, 0},        {"F64", 0, 0},        {"IQ1_M", 0, 0},
    {"BF16", 1, 2},     {"Q4_0_4_4", 0, 0},   {"Q4_0_4_8", 0, 0},   {"Q4_0_8_8", 0, 0},   {"TQ1_0", 0, 0},
    {"TQ2_0", 0, 0},    {"IQ4_NL_4_4", 0, 0}, {"IQ4_NL_4_8", 0, 0}, {"IQ4_NL_8_8", 0, 0}, {"MXFP4", 0, 0},
}};

}  // namespace

GgufTypeInfo gguf_type_info(uint32_t type) {
  return type < kTypes.size() ? kTypes[type] : GgufTypeInfo{"unknown", 0, 0};
}

std::string_view name(TensorType type) {
  return gguf_type_info(static_cast<uint32_t>(type)).name;
}

// A name from the file, safe to print.
std::string quoted_name(std::string_view text) {
  constexpr size_t kShown = 96;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) out += (c >= 0x20 && c < 0x7F) ? c : '?';
  if (text.size() > kShown) out += "...";
  return out + "'";
}

Result<Gguf> Gguf::open(const std::string& path) {
  // Not blocking: a pipe given as a model must be refused, not waited for.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const Code code = errno == ENOENT || errno == ENOTDIR ? Code::kNotFound
                      : errno == EACCES                   ? Code::kPermissionDenied
                                                          : Code::kInternal;
    return Error{code, path + ": cannot be opened: " + std::strerror(errno)};
  }
  struct stat info {};
  if (fstat(descriptor, &info) != 0) {
    const std::string why = std::strerror(errno);
    close(descriptor);
    return Error{Code::kUnavailable, path + ": cannot be looked at: " + why};
  }
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    close(descriptor);
    return Error{Code::kMalformed,
                 path + (S_ISREG(info.st_mode) ? ": the file is empty" : ": not a regular file")};
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  const int map_error = errno;
  close(descriptor);
  if (address == MAP_FAILED)
    return Error{Code::kResourceExhausted,
                 path + ": " + std::to_string(size) + " bytes cannot be mapped: " + std::strerror(map_error)};
  Gguf file;
  file.path_ = path;
  file.map_ = {static_cast<const std::byte*>(address), size};
  Status parsed = parse_gguf(file);
  if (!parsed.ok()) return parsed.error();
  return file;
}

Gguf::Gguf(Gguf&& other) noexcept {
  *this = std::move(other);
}

Gguf& Gguf::operator=(Gguf&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(map_, other.map_);
  std::swap(values_, other.values_);
  std::swap(tensors_, other.tensors_);
  std::swap(by_name_, other.by_name_);
  std::swap(header_hash_, other.header_hash_);
  return *this;
}

Gguf::~Gguf() {
  if (!map_.empty()) munmap(const_cast<std::byte*>(map_.data()), map_.size());
}

const Gguf::Value* Gguf::find(std::string_view key) const {
  const auto at =
      std::lower_bound(values_.begin(), values_.end(), key,
                       [](const auto& entry, std::string_view wanted) { return entry.first < wanted; });
  return at != values_.end() && at->first == key ? &at->second : nullptr;
}

const GgufTensor* Gguf::tensor(std::string_view wanted) const {
  const auto at =
      std::lower_bound(by_name_.begin(), by_name_.end(), wanted,
                       [&](uint32_t index, std::string_view text) { return tensors_[index].name < text; });
  return at != by_name_.end() && tensors_[*at].name == wanted ? &tensors_[*at] : nullptr;
}

Error Gguf::missing(std::string_view key) const {
  return {Code::kNotFound, path_ + ": the key " + quoted_name(key) + " is missing"};
}

Error Gguf::wrong_type(std::string_view key, const char* wanted) const {
  static constexpr std::array<const char*, std::variant_size_v<Value>> kHeld = {
      "a bool", "an integer",      "an integer",         "a number",
      "text",   "a list of texts", "a list of integers", "a list of numbers"};
  return {Code::kMalformed, path_ + ": the key " + quoted_name(key) + " is " + kHeld[find(key)->index()] +
                                "; expected: " + wanted};
}

Result<uint64_t> Gguf::integer(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  if (const auto* number = std::get_if<uint64_t>(value)) return *number;
  if (const auto* number = std::get_if<int64_t>(value); number != nullptr && *number >= 0)
    return static_cast<uint64_t>(*number);
  return wrong_type(key, "an integer, not negative");
}

Result<double> Gguf::number(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* number = std::get_if<uint64_t>(value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<int64_t>(value)) return static_cast<double>(*number);
  return wrong_type(key, "a number");
}

Result<std::string_view> Gguf::text(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  if (const auto* held = std::get_if<std::string_view>(value)) return *held;
  return wrong_type(key, "text");
}

Result<std::span<const std::string_view>> Gguf::texts(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  if (const auto* held = std::get_if<std::vector<std::string_view>>(value))
    return std::span<const std::string_view>(*held);
  return wrong_type(key, "a list of texts");
}

Result<std::span<const int64_t>> Gguf::integers(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  if (const auto* held = std::get_if<std::vector<int64_t>>(value)) return std::span<const int64_t>(*held);
  return wrong_type(key, "a list of integers");
}

Result<std::span<const double>> Gguf::numbers(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  if (const auto* held = std::get_if<std::vector<double>>(value)) return std::span<const double>(*held);
  return wrong_type(key, "a list of numbers");
}

}  // namespace ringmaster
