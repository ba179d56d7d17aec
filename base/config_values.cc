// How each kind of value in base/config_keys.h is read, described and written.
#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/config_keys.h"

namespace ringmaster {
namespace {

constexpr int kMaxCore = 8191;  // CONFIG_NR_CPUS of distribution kernels is 8192
constexpr size_t kMaxListItems = 65'536;

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

struct Unit64 {
  std::string_view name;
  uint64_t factor;
};
constexpr std::array<Unit64, 6> kDurationUnits = {{{"ns", 1},
                                                   {"us", 1'000},
                                                   {"ms", 1'000'000},
                                                   {"s", 1'000'000'000},
                                                   {"min", 60'000'000'000},
                                                   {"h", 3'600'000'000'000}}};
constexpr std::array<Unit64, 5> kSizeUnits = {
    {{"B", 1}, {"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30}, {"TiB", 1ull << 40}}};

// "1.5s": digits, an optional fraction, a unit. Exact: a value that is no whole number of the smallest unit
// is refused.
template <size_t N>
std::optional<uint64_t> parse_quantity(std::string_view text, const std::array<Unit64, N>& units) {
  const size_t split = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string_view digits = text.substr(0, split);
  std::string_view unit = text.substr(split);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  const auto known =
      std::find_if(units.begin(), units.end(), [&](const Unit64& u) { return u.name == unit; });
  if (known == units.end()) return std::nullopt;
  const size_t dot = digits.find('.');
  const std::string_view fraction = dot == std::string_view::npos ? "" : digits.substr(dot + 1);
  const auto whole = parse_number<uint64_t>(digits.substr(0, dot));
  if (!whole || (dot != std::string_view::npos && fraction.empty())) return std::nullopt;
  uint64_t value = 0;
  if (__builtin_mul_overflow(*whole, known->factor, &value)) return std::nullopt;
  uint64_t part = known->factor;
  for (const char c : fraction) {
    if (c < '0' || c > '9' || part % 10 != 0) return std::nullopt;
    part /= 10;
    if (__builtin_add_overflow(value, static_cast<uint64_t>(c - '0') * part, &value)) return std::nullopt;
  }
  return value;
}

template <size_t N>
std::string quantity_text(uint64_t value, const std::array<Unit64, N>& units) {
  size_t best = 0;
  for (size_t i = 0; i < N; ++i)
    if (value != 0 && value % units[i].factor == 0) best = i;
  return std::to_string(value / units[best].factor) + std::string(units[best].name);
}

template <typename Number>
std::string yaml_list(const std::vector<Number>& numbers) {
  std::string out = "[";
  for (const Number number : numbers) out += (out.size() > 1 ? ", " : "") + std::to_string(number);
  return out + "]";
}

std::string yaml_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<std::vector<int>> parse_cores(const RawValue& raw) {
  std::vector<std::string> parts;
  for (const std::string& item : raw.items)
    for (size_t start = 0; start <= item.size();) {
      const size_t comma = std::min(item.find(',', start), item.size());
      parts.push_back(item.substr(start, comma - start));
      start = comma + 1;
    }
  if (!raw.list && raw.items.size() == 1 && raw.items[0].empty()) parts.clear();
  std::vector<int> cores;
  for (const std::string& part : parts) {
    const size_t dash = part.find('-');
    const auto first = parse_number<int>(std::string_view(part).substr(0, dash));
    const auto last =
        dash == std::string::npos ? first : parse_number<int>(std::string_view(part).substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > kMaxCore) return std::nullopt;
    for (int core = *first; core <= *last; ++core) cores.push_back(core);
  }
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  return cores;
}

std::optional<std::vector<uint32_t>> parse_ids(const RawValue& raw) {
  if (!raw.list || raw.items.size() > kMaxListItems) return std::nullopt;
  std::vector<uint32_t> ids;
  for (const std::string& item : raw.items) {
    const auto id = parse_number<uint32_t>(item);
    if (!id || *id >= 1u << 24) return std::nullopt;
    ids.push_back(*id);
  }
  return ids;
}

// assign() by kind of field. A scalar of none is the empty text (`endpoint:` with nothing behind it).
struct Assign {
  const RawValue& raw;
  ClusterConfig& config;

  std::string scalar() const { return raw.items.empty() ? std::string() : raw.items.front(); }

  template <typename Number, typename Parsed>
  bool ranged(ConfigMember<Number> member, std::optional<Parsed> parsed, Parsed min, Parsed max) const {
    if (raw.list || !parsed || *parsed < min || *parsed > max) return false;
    member(config) = static_cast<Number>(*parsed);
    return true;
  }
  bool operator()(const CountField& f) const {
    return ranged(f.member, parse_number<uint64_t>(scalar()), f.min, f.max);
  }
  bool operator()(const StepField& f) const {
    return ranged(f.member, parse_number<uint64_t>(scalar()), uint64_t{0}, UINT64_MAX);
  }
  bool operator()(const SizeField& f) const { return ranged(f.member, parse_size(scalar()), f.min, f.max); }
  bool operator()(const DurationField& f) const {
    return ranged(f.member, parse_duration(scalar()), f.min, f.max);
  }
  bool operator()(const NiceField& f) const { return ranged(f.member, parse_number<int>(scalar()), -20, 19); }
  bool operator()(const FlagField& f) const {
    if (raw.list || (scalar() != "true" && scalar() != "false")) return false;
    f.member(config) = scalar() == "true";
    return true;
  }
  bool operator()(const ChoiceField& f) const {
    if (raw.list || std::find(f.choices.begin(), f.choices.end(), scalar()) == f.choices.end()) return false;
    f.member(config) = scalar();
    return true;
  }
  bool operator()(const ModeField& f) const {
    if (raw.list || (scalar() != "hash" && scalar() != "text")) return false;
    f.member(config) = scalar() == "hash" ? FakeConfig::Mode::kHash : FakeConfig::Mode::kText;
    return true;
  }
  bool operator()(const CoresField& f) const {
    auto cores = parse_cores(raw);
    if (!cores) return false;
    f.member(config) = std::move(*cores);
    return true;
  }
  bool operator()(const IdsField& f) const {
    auto ids = parse_ids(raw);
    if (!ids) return false;
    f.member(config) = std::move(*ids);
    return true;
  }
  bool operator()(const TextField& f) const {
    if (raw.list || !f.valid(scalar())) return false;
    f.member(config) = scalar();
    return true;
  }
};

struct Allowed {
  std::string operator()(const CountField& f) const {
    return std::to_string(f.min) + " to " + std::to_string(f.max);
  }
  std::string operator()(const StepField&) const { return "a whole number, 0 or more"; }
  std::string operator()(const SizeField& f) const {
    return size_text(f.min) + " to " + size_text(f.max) + " (units B, KiB, MiB, GiB, TiB)";
  }
  std::string operator()(const DurationField& f) const {
    return duration_text(f.min) + " to " + duration_text(f.max) + " (units ns, us, ms, s, min, h)";
  }
  std::string operator()(const NiceField&) const { return "-20 to 19"; }
  std::string operator()(const FlagField&) const { return "true, false"; }
  std::string operator()(const ChoiceField& f) const {
    std::string out;
    for (const std::string_view choice : f.choices) out += (out.empty() ? "" : ", ") + std::string(choice);
    return out;
  }
  std::string operator()(const ModeField&) const { return "hash, text"; }
  std::string operator()(const CoresField&) const {
    return "a list of cores, [0, 2] or 0-3,8; each 0 to " + std::to_string(kMaxCore);
  }
  std::string operator()(const IdsField&) const {
    return "a list of up to " + std::to_string(kMaxListItems) + " token ids, each below 16777216";
  }
  std::string operator()(const TextField& f) const { return std::string(f.allowed); }
};

struct YamlValue {
  ClusterConfig& config;
  std::string operator()(const CountField& f) const { return std::to_string(f.member(config)); }
  std::string operator()(const StepField& f) const { return std::to_string(f.member(config)); }
  std::string operator()(const SizeField& f) const { return size_text(f.member(config)); }
  std::string operator()(const DurationField& f) const { return duration_text(f.member(config)); }
  std::string operator()(const NiceField& f) const { return std::to_string(f.member(config)); }
  std::string operator()(const FlagField& f) const { return f.member(config) ? "true" : "false"; }
  std::string operator()(const ChoiceField& f) const { return f.member(config); }
  std::string operator()(const ModeField& f) const {
    return f.member(config) == FakeConfig::Mode::kHash ? "hash" : "text";
  }
  std::string operator()(const CoresField& f) const { return yaml_list(f.member(config)); }
  std::string operator()(const IdsField& f) const { return yaml_list(f.member(config)); }
  std::string operator()(const TextField& f) const { return yaml_text(f.member(config)); }
};

}  // namespace

std::optional<Nanos> parse_duration(std::string_view text) {
  if (text == "0") return 0;
  const auto value = parse_quantity(text, kDurationUnits);
  if (!value || *value > static_cast<uint64_t>(kNever)) return std::nullopt;
  return static_cast<Nanos>(*value);
}

std::optional<uint64_t> parse_size(std::string_view text) {
  const auto plain = parse_number<uint64_t>(text);
  return plain ? plain : parse_quantity(text, kSizeUnits);
}

std::string duration_text(Nanos value) {
  return value == 0 ? "0s" : quantity_text(static_cast<uint64_t>(value), kDurationUnits);
}

std::string size_text(uint64_t value) {
  return value == 0 ? "0B" : quantity_text(value, kSizeUnits);
}

bool assign(const ConfigField& field, const RawValue& raw, ClusterConfig& config) {
  return std::visit(Assign{raw, config}, field);
}

std::string allowed(const ConfigField& field) {
  return std::visit(Allowed{}, field);
}

std::string yaml_value(const ConfigField& field, const ClusterConfig& config) {
  // One accessor serves reading and writing; nothing is written here.
  return std::visit(YamlValue{const_cast<ClusterConfig&>(config)}, field);
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace ringmaster
