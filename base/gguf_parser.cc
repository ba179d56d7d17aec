#include "base/gguf_parser.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

namespace ringmaster {
namespace {

static_assert(std::endian::native == std::endian::little, "values are read from the mapping as they lie");

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kFloat64,
  kValueTypes
};
constexpr std::array<uint32_t, kValueTypes> kValueBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kMaxKeyBytes = 65'535;     // ggml docs/gguf.md
constexpr uint64_t kMaxTensorNameBytes = 64;  // ggml docs/gguf.md
constexpr uint32_t kMaxDimensions = 4;        // ggml.h, GGML_MAX_DIMS
constexpr uint64_t kDefaultAlignment = 32;    // ggml docs/gguf.md
constexpr uint64_t kMaxAlignment = 1 << 20;   // files in the wild: 32, some 4096
// Elements of all arrays of one file. They are held as 8- or 16-byte values, so a hostile file costs at most
// 2 GiB; the largest vocabularies have 262,144 tokens with three arrays.
constexpr uint64_t kMaxArrayElements = 1 << 27;
constexpr uint64_t kMinKeyValueBytes = 8 + 1 + 4 + 1;  // length, one byte, type, smallest value
constexpr uint64_t kMinTensorBytes =
    8 + 1 + 4 + 8 + 4 + 8;  // length, one byte, dimensions, one, type, offset

// Eight bytes at a step; not cryptographic, only to tell models apart.
uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ull;
  uint64_t hash = seed * kPrime + bytes.size();
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 32;
  };
  size_t at = 0;
  uint64_t word = 0;
  for (; at + sizeof word <= bytes.size(); at += sizeof word) {
    std::memcpy(&word, bytes.data() + at, sizeof word);
    mix(word);
  }
  word = 0;
  std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  mix(word);
  return hash;
}

}  // namespace

// Walks the mapping once from front to back. The first error is kept; every read after it returns false.
class GgufParser {
 public:
  explicit GgufParser(Gguf& file) : file_(file), bytes_(file.map_) {}

  Status run() {
    if (read_head() && read_values() && read_tensors() && check_names() && place_data()) {
      file_.header_hash_ = hash_bytes(bytes_.first(header_end_), bytes_.size());
      return ok_status();
    }
    return std::move(error_);
  }

 private:
  bool fail(Code code, const std::string& what, uint64_t offset) {
    error_ = {code, file_.path_ + ": at byte " + std::to_string(offset) + ": " + what};
    return false;
  }
  bool malformed(const std::string& what, uint64_t offset) { return fail(Code::kMalformed, what, offset); }

  uint64_t left() const { return bytes_.size() - at_; }

  bool need(uint64_t count, const std::string& what) {
    if (count <= left()) return true;
    return malformed("the file ends inside " + what + ": " + std::to_string(count) + " bytes needed, " +
                         std::to_string(left()) + " there; it is truncated or damaged",
                     at_);
  }

  template <typename T>
  T take() {  // REQUIRES: sizeof(T) bytes are left
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  template <typename T>
  bool read(T& value, const std::string& what) {
    if (!need(sizeof value, what)) return false;
    value = take<T>();
    return true;
  }

  bool read_text(std::string_view& text, uint64_t min_bytes, uint64_t max_bytes, const std::string& what) {
    uint64_t length = 0;
    const uint64_t start = at_;
    if (!read(length, what)) return false;
    if (length < min_bytes || length > max_bytes)
      return malformed(what + " has " + std::to_string(length) + " bytes; allowed: " +
                           std::to_string(min_bytes) + " to " + std::to_string(max_bytes),
                       start);
    if (!need(length, what)) return false;
    text = {reinterpret_cast<const char*>(bytes_.data()) + at_, length};
    at_ += length;
    return true;
  }

  bool read_head() {
    if (!need(kMagic.size(), "the magic \"GGUF\"")) return false;
    if (std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) != 0)
      return malformed("not a GGUF file: expected the magic \"GGUF\"", 0);
    at_ = kMagic.size();
    uint32_t version = 0;
    if (!read(version, "the version")) return false;
    if (version == 0x02000000 || version == 0x03000000)
      return fail(Code::kUnsupportedVersion, "a big-endian file; only little-endian files are read", 4);
    if (version != 2 && version != 3)
      return fail(Code::kUnsupportedVersion, "GGUF version " + std::to_string(version) + "; allowed: 2, 3",
                  4);
    return read_count(tensor_count_, kMinTensorBytes, "tensors") &&
           read_count(value_count_, kMinKeyValueBytes, "keys");
  }

  // A count that the rest of the file could hold, so that reserving for it is safe.
  bool read_count(uint64_t& count, uint64_t min_bytes, const char* what) {
    const uint64_t start = at_;
    if (!read(count, std::string("the number of ") + what)) return false;
    const uint64_t most = std::min<uint64_t>(left() / min_bytes, UINT32_MAX);
    if (count > most)
      return malformed("the header announces " + std::to_string(count) + " " + what +
                           "; the rest of the file could hold at most " + std::to_string(most),
                       start);
    return true;
  }

  bool read_values() {
    file_.values_.reserve(value_count_);
    for (uint64_t i = 0; i < value_count_; ++i) {
      std::string_view key;
      if (!read_text(key, 1, kMaxKeyBytes, "the name of key " + std::to_string(i))) return false;
      uint32_t type = 0;
      const uint64_t type_at = at_;
      if (!read(type, "the type of key " + quoted_name(key))) return false;
      if (type >= kValueTypes)
        return fail(Code::kUnsupported,
                    "key " + quoted_name(key) + " has value type " + std::to_string(type) + "; known: 0 to " +
                        std::to_string(kValueTypes - 1),
                    type_at);
      Gguf::Value value;
      if (!(type == kArray ? read_array(key, value) : read_scalar(key, type, value))) return false;
      file_.values_.emplace_back(key, std::move(value));
    }
    return true;
  }

  bool read_scalar(std::string_view key, uint32_t type, Gguf::Value& value) {
    const uint64_t start = at_;
    if (type == kString) {
      std::string_view text;
      if (!read_text(text, 0, UINT64_MAX, "the text of key " + quoted_name(key))) return false;
      value = text;
      return true;
    }
    if (!need(kValueBytes[type], "the value of key " + quoted_name(key))) return false;
    switch (type) {
      case kU8:
        value = uint64_t{take<uint8_t>()};
        break;
      case kI8:
        value = int64_t{take<int8_t>()};
        break;
      case kU16:
        value = uint64_t{take<uint16_t>()};
        break;
      case kI16:
        value = int64_t{take<int16_t>()};
        break;
      case kU32:
        value = uint64_t{take<uint32_t>()};
        break;
      case kI32:
        value = int64_t{take<int32_t>()};
        break;
      case kU64:
        value = take<uint64_t>();
        break;
      case kI64:
        value = take<int64_t>();
        break;
      case kFloat32:
        value = double{take<float>()};
        break;
      case kFloat64:
        value = take<double>();
        break;
      default: {
        const auto byte = take<uint8_t>();
        if (byte > 1)
          return malformed(
              "the bool of key " + quoted_name(key) + " is " + std::to_string(byte) + "; allowed: 0, 1",
              start);
        value = byte == 1;
      }
    }
    return true;
  }

  bool read_array(std::string_view key, Gguf::Value& value) {
    const std::string what = "the array of key " + quoted_name(key);
    const uint64_t start = at_;
    uint32_t type = 0;
    uint64_t count = 0;
    if (!read(type, what) || !read(count, what)) return false;
    if (type == kArray)
      return fail(Code::kUnsupported, "key " + quoted_name(key) + " is an array of arrays", start);
    if (type >= kValueTypes)
      return fail(Code::kUnsupported,
                  "key " + quoted_name(key) + " is an array of value type " + std::to_string(type) +
                      "; known: 0 to " + std::to_string(kValueTypes - 1),
                  start);
    const uint64_t most = left() / kValueBytes[type];
    if (count > most)
      return malformed(what + " announces " + std::to_string(count) +
                           " elements; the rest of the file could hold at most " + std::to_string(most),
                       start);
    array_elements_ += count;  // cannot overflow: at most the file's bytes
    if (array_elements_ > kMaxArrayElements)
      return fail(Code::kTooLarge,
                  what + " brings the file to " + std::to_string(array_elements_) +
                      " array elements; allowed: " + std::to_string(kMaxArrayElements),
                  start);
    switch (type) {
      case kString:
        return read_texts(count, what, value);
      case kU8:
        return read_numbers<uint8_t, int64_t>(count, value);
      case kI8:
        return read_numbers<int8_t, int64_t>(count, value);
      case kU16:
        return read_numbers<uint16_t, int64_t>(count, value);
      case kI16:
        return read_numbers<int16_t, int64_t>(count, value);
      case kU32:
        return read_numbers<uint32_t, int64_t>(count, value);
      case kI32:
        return read_numbers<int32_t, int64_t>(count, value);
      case kI64:
        return read_numbers<int64_t, int64_t>(count, value);
      case kFloat32:
        return read_numbers<float, double>(count, value);
      case kFloat64:
        return read_numbers<double, double>(count, value);
      case kU64:
        return read_unsigned(count, UINT64_MAX >> 1, what, value);
      default:
        return read_bools(count, what, value);
    }
  }

  bool read_texts(uint64_t count, const std::string& what, Gguf::Value& value) {
    std::vector<std::string_view> texts;
    texts.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      // As read_text, without building a message for each of a million elements.
      if (left() < sizeof(uint64_t)) return need(sizeof(uint64_t), what);
      const auto length = take<uint64_t>();
      if (length > left()) return need(length, "element " + std::to_string(i) + " of " + what);
      texts.emplace_back(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
      at_ += length;
    }
    value = std::move(texts);
    return true;
  }

  template <typename Stored, typename Held>
  bool read_numbers(uint64_t count, Gguf::Value& value) {  // REQUIRES: the file holds them
    std::vector<Held> numbers(count);
    for (Held& number : numbers) number = take<Stored>();  // NOLINT(bugprone-signed-char-misuse): an int8
    value = std::move(numbers);
    return true;
  }

  bool read_unsigned(uint64_t count, uint64_t most, const std::string& what, Gguf::Value& value) {
    std::vector<int64_t> numbers(count);
    for (int64_t& number : numbers) {
      const auto stored = take<uint64_t>();
      if (stored > most)
        return malformed("an element of " + what + " is " + std::to_string(stored) + "; allowed: at most " +
                             std::to_string(most),
                         at_ - sizeof stored);
      number = static_cast<int64_t>(stored);
    }
    value = std::move(numbers);
    return true;
  }

  bool read_bools(uint64_t count, const std::string& what, Gguf::Value& value) {
    std::vector<int64_t> bools(count);
    for (int64_t& number : bools) {
      number = take<uint8_t>();
      if (number > 1)
        return malformed("an element of " + what + " is " + std::to_string(number) + "; allowed: 0, 1",
                         at_ - 1);
    }
    value = std::move(bools);
    return true;
  }

  bool read_tensors() {
    file_.tensors_.reserve(tensor_count_);
    offsets_.reserve(tensor_count_);
    for (uint64_t i = 0; i < tensor_count_; ++i)
      if (!read_tensor(i)) return false;
    header_end_ = at_;
    return true;
  }

  bool read_tensor(uint64_t index) {
    GgufTensor tensor{};
    const uint64_t start = at_;
    if (!read_text(tensor.name, 1, kMaxTensorNameBytes, "the name of tensor " + std::to_string(index)))
      return false;
    const std::string what = "tensor " + quoted_name(tensor.name);
    uint32_t dimensions = 0;
    if (!read(dimensions, what)) return false;
    if (dimensions < 1 || dimensions > kMaxDimensions)
      return malformed(what + " has " + std::to_string(dimensions) + " dimensions; allowed: 1 to " +
                           std::to_string(kMaxDimensions),
                       start);
    tensor.shape.resize(dimensions);
    for (uint64_t& size : tensor.shape) {
      if (!read(size, what)) return false;
      if (size == 0) return malformed(what + " has a dimension of size 0", at_ - sizeof size);
    }
    uint32_t type = 0;
    uint64_t offset = 0;
    if (!read(type, what) || !read(offset, what)) return false;
    tensor.type = static_cast<TensorType>(type);
    if (gguf_type_info(type).block_elements == 0)
      return fail(Code::kUnsupported,
                  what + " has type " + std::string(gguf_type_info(type).name) + " (" + std::to_string(type) +
                      "), which this build cannot read",
                  start);
    file_.tensors_.push_back(std::move(tensor));
    offsets_.push_back(offset);
    return true;
  }

  // Sorted order serves the look-ups and shows duplicates side by side.
  bool check_names() {
    auto& values = file_.values_;
    std::sort(values.begin(), values.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 1; i < values.size(); ++i)
      if (values[i - 1].first == values[i].first)
        return malformed("key " + quoted_name(values[i].first) + " is there twice",
                         offset_of(values[i].first));
    const auto& tensors = file_.tensors_;
    auto& order = file_.by_name_;
    order.resize(tensors.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
    for (size_t i = 1; i < order.size(); ++i)
      if (tensors[order[i - 1]].name == tensors[order[i]].name)
        return malformed("tensor " + quoted_name(tensors[order[i]].name) + " is there twice",
                         offset_of(tensors[order[i]].name));
    return true;
  }

  uint64_t offset_of(std::string_view text) const {
    return static_cast<uint64_t>(reinterpret_cast<const std::byte*>(text.data()) - bytes_.data());
  }

  bool place_data() {
    uint64_t alignment = kDefaultAlignment;
    if (file_.find("general.alignment") != nullptr) {
      const Result<uint64_t> given = file_.integer("general.alignment");
      if (!given.ok()) return error_ = given.error(), false;
      alignment = given.value();
      if (alignment == 0 || alignment > kMaxAlignment || !std::has_single_bit(alignment))
        return malformed("general.alignment is " + std::to_string(alignment) +
                             "; allowed: a power of two up to " + std::to_string(kMaxAlignment),
                         0);
    }
    const uint64_t begin = (header_end_ + alignment - 1) / alignment * alignment;  // far below 2^63
    const uint64_t room = begin <= bytes_.size() ? bytes_.size() - begin : 0;
    for (size_t i = 0; i < file_.tensors_.size(); ++i)
      if (!place(file_.tensors_[i], offsets_[i], begin, room, alignment)) return false;
    return check_overlap();
  }

  bool place(GgufTensor& tensor, uint64_t offset, uint64_t begin, uint64_t room, uint64_t alignment) {
    const std::string what = "tensor " + quoted_name(tensor.name);
    const GgufTypeInfo info = gguf_type_info(static_cast<uint32_t>(tensor.type));
    if (tensor.shape[0] % info.block_elements != 0)
      return malformed(what + " has rows of " + std::to_string(tensor.shape[0]) + " elements; " +
                           std::string(info.name) + " needs a multiple of " +
                           std::to_string(info.block_elements),
                       offset_of(tensor.name));
    uint64_t size = tensor.shape[0] / info.block_elements;
    bool overflow = __builtin_mul_overflow(size, info.block_bytes, &size);
    for (size_t d = 1; d < tensor.shape.size(); ++d)
      overflow |= __builtin_mul_overflow(size, tensor.shape[d], &size);
    if (overflow) return malformed("the size of " + what + " does not fit 64 bits", offset_of(tensor.name));
    if (offset % alignment != 0)
      return malformed(what + " starts at offset " + std::to_string(offset) +
                           ", which is not a multiple of " + std::to_string(alignment),
                       offset_of(tensor.name));
    if (offset > room || size > room - offset)
      return malformed(what + " needs " + std::to_string(size) + " bytes at offset " +
                           std::to_string(offset) + " of the data, which has " + std::to_string(room) +
                           " bytes; the file is truncated or damaged",
                       offset_of(tensor.name));
    tensor.data = bytes_.subspan(begin + offset, size);
    return true;
  }

  bool check_overlap() {
    const auto& tensors = file_.tensors_;
    std::vector<uint32_t> order(file_.by_name_);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return tensors[a].data.data() < tensors[b].data.data(); });
    for (size_t i = 1; i < order.size(); ++i) {
      const GgufTensor& before = tensors[order[i - 1]];
      const GgufTensor& after = tensors[order[i]];
      if (before.data.data() + before.data.size() > after.data.data())
        return malformed("the data of tensors " + quoted_name(before.name) + " and " +
                             quoted_name(after.name) + " overlap",
                         offset_of(after.name));
    }
    return true;
  }

  Gguf& file_;
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t value_count_ = 0;
  uint64_t array_elements_ = 0;
  uint64_t header_end_ = 0;
  std::vector<uint64_t> offsets_;
  Error error_;
};

Status parse_gguf(Gguf& file) {
  return GgufParser(file).run();
}

}  // namespace ringmaster
