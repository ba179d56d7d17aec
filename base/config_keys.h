// The one table of configuration keys: parsing, to_yaml(), error messages and docs/cluster.md all come from
// it. Knows values as text, not YAML; base/config.cc walks the YAML. Internal to base/ and its tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/config.h"

namespace ringmaster {

template <typename T>
using ConfigMember = T& (*)(ClusterConfig&);

struct CountField {
  ConfigMember<uint32_t> member;
  uint64_t min;
  uint64_t max;
};
struct StepField {
  ConfigMember<uint64_t> member;
};  // any 64-bit number
struct SizeField {
  ConfigMember<uint64_t> member;
  uint64_t min;
  uint64_t max;
};
struct DurationField {
  ConfigMember<Nanos> member;
  Nanos min;
  Nanos max;
};
struct NiceField {
  ConfigMember<int> member;
};
struct FlagField {
  ConfigMember<bool> member;
};
struct ChoiceField {
  ConfigMember<std::string> member;
  std::vector<std::string_view> choices;
};
struct ModeField {
  ConfigMember<FakeConfig::Mode> member;
};
struct CoresField {
  ConfigMember<std::vector<int>> member;
};  // [0, 2, 3] or "0-3,8"
struct IdsField {
  ConfigMember<std::vector<uint32_t>> member;
};
struct TextField {
  ConfigMember<std::string> member;
  bool (*valid)(std::string_view);
  std::string_view allowed;
};

using ConfigField = std::variant<CountField, StepField, SizeField, DurationField, NiceField, FlagField,
                                 ChoiceField, ModeField, CoresField, IdsField, TextField>;

struct ConfigKey {
  std::string_view section;  // "", "router", "gpu-worker.fake"; sections are contiguous in the table
  std::string_view name;
  ConfigField field;
  std::string_view help;
  std::string path() const;  // "gpu-worker.fake.step_time"
};

std::span<const ConfigKey> config_keys();

// One value as it stands in the file, without quotes.
struct RawValue {
  bool list = false;
  std::vector<std::string> items;  // one for a scalar; none for an absent value or an empty list
};

// False: `raw` is not an allowed value; config is unchanged.
bool assign(const ConfigField& field, const RawValue& raw, ClusterConfig& config);
std::string allowed(const ConfigField& field);                                  // "1 to 64"; for people
std::string yaml_value(const ConfigField& field, const ClusterConfig& config);  // assign() reads it back

std::optional<Nanos> parse_duration(std::string_view text);  // "2ms", "1.5s", "0"
std::optional<uint64_t> parse_size(std::string_view text);   // "512MiB", "4096"
std::string duration_text(Nanos value);
std::string size_text(uint64_t value);

size_t edit_distance(std::string_view a, std::string_view b);

// The table of docs/cluster.md.
std::string config_reference();

}  // namespace ringmaster
