// The inside of base/gguf.h: walks a mapped file once and fills a Gguf. Only base/gguf.cc calls it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/gguf.h"
#include "base/status.h"

namespace ringmaster {

struct GgufTypeInfo {
  std::string_view name;
  uint32_t block_elements;  // 0: this build cannot size it
  uint32_t block_bytes;
};
GgufTypeInfo gguf_type_info(uint32_t type);

// A name from a file, safe to print and bounded.
std::string quoted_name(std::string_view text);

// REQUIRES: the mapping and path of `file` are set, nothing else is.
Status parse_gguf(Gguf& file);

}  // namespace ringmaster
