// What the tests of this folder share: the reference data in the build tree, the default model's
// tokenizer, a writer of small GGUF files, and a source of random text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/gguf.h"
#include "tokenizer-worker/text/tokenizer.h"

namespace ringmaster::tokenizer_worker::test {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

inline std::string data_file(const std::string& name) {
  return read_file(std::string(TEXT_TEST_DATA) + "/" + name);
}

// The default model's tokenizer, loaded once a test binary. Throws with the remedy when the model is not
// there.
inline const Tokenizer& smollm2() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto path = resolve_model("smollm2");
    if (!path)
      throw std::runtime_error(path.error().message +
                               "; `ringmaster pull smollm2` or scripts/test fetches it");
    auto gguf = Gguf::open(*path);
    if (!gguf) throw std::runtime_error(gguf.error().message);
    auto loaded = load_tokenizer(*gguf);
    if (!loaded) throw std::runtime_error(loaded.error().message);
    return std::move(loaded).value();
  }();
  return *tokenizer;
}

inline std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text, bool control = false) {
  std::vector<TokenId> ids;
  tokenizer.encode(text, control, ids);
  return ids;
}

inline void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) return put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  if (code < 0x10000)
    return put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)),
      put(0x80 | (code & 0x3F));
}

// Characters that scanners get wrong, mixed with any character at all.
inline std::string random_text(std::mt19937& random, size_t characters) {
  static const char32_t kTricky[] = {
      ' ',    ' ',    '\n',   '\t',   '\r',   '\'',   's',      't',     'r',    'e',   'l',
      'd',    'V',    'a',    '1',    '9',    '.',    '-',      0xA0,    0x85,   0xB2,  0x660,
      0x2028, 0x3000, 0x200B, 0x345,  0x17F,  0x212A, 0x11DE0,  0x16FF4, 0x4E2D, 0xE9,  0x1F600,
      0x301,  0xFFFD, 0x2160, 0x1680, 0x180E, 0xFEFF, 0x10FFFF, 0xAD,    0x3042, 0x5D0, 0x0};
  std::string text;
  for (size_t i = 0; i < characters; ++i) {
    char32_t code = kTricky[random() % std::size(kTricky)];
    if (random() % 8 == 0) code = random() % 0x110000;
    if (code >= 0xD800 && code < 0xE000) code = 'x';
    append_utf8(text, code);
  }
  return text;
}

// A GGUF file with keys and no tensors.
class GgufWriter {
 public:
  using Texts = std::vector<std::string>;
  using Numbers = std::vector<int32_t>;

  GgufWriter& text(const std::string& key, const std::string& value) { return begin(key, 8).put(value); }
  GgufWriter& number(const std::string& key, uint32_t value) { return begin(key, 4).put(value); }
  GgufWriter& boolean(const std::string& key, bool value) {
    return begin(key, 7).put(static_cast<uint8_t>(value));
  }
  GgufWriter& texts(const std::string& key, const Texts& values) {
    begin(key, 9).put(uint32_t{8}).put(uint64_t{values.size()});
    for (const std::string& value : values) put(value);
    return *this;
  }
  GgufWriter& numbers(const std::string& key, const Numbers& values) {
    begin(key, 9).put(uint32_t{5}).put(uint64_t{values.size()});
    for (const int32_t value : values) put(value);
    return *this;
  }
  void write(const std::string& path) const {
    GgufWriter head;
    head.bytes_ = "GGUF";
    head.put(uint32_t{3}).put(uint64_t{0}).put(keys_);
    std::ofstream(path, std::ios::binary) << head.bytes_ << bytes_ << std::string(64, '\0');
  }

 private:
  GgufWriter& begin(const std::string& key, uint32_t type) {
    ++keys_;
    return put(key).put(type);
  }
  GgufWriter& put(const std::string& value) {
    put(uint64_t{value.size()});
    bytes_ += value;
    return *this;
  }
  template <typename T>
  GgufWriter& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  std::string bytes_;
  uint64_t keys_ = 0;
};

}  // namespace ringmaster::tokenizer_worker::test
