#include "launcher/memory.h"

#include <charconv>
#include <filesystem>
#include <string_view>

#include "launcher/read_file.h"

namespace ringmaster::launcher {
namespace {

std::optional<uint64_t> number_at(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

// The number after `key` at the start of a line.
std::optional<uint64_t> field(std::string_view text, std::string_view key) {
  for (size_t at = 0; at < text.size();
       at = text.find('\n', at) == std::string_view::npos ? text.size() : text.find('\n', at) + 1)
    if (text.substr(at).starts_with(key)) return number_at(text.substr(at + key.size()));
  return std::nullopt;
}

// What is left below memory.max of one group; nothing: no limit there.
std::optional<uint64_t> left_in_group(const std::string& folder) {
  const auto limit = number_at(read_file(folder + "/memory.max"));  // "max": no number
  const auto used = number_at(read_file(folder + "/memory.current"));
  if (!limit || !used) return std::nullopt;
  const uint64_t cache = field(read_file(folder + "/memory.stat"), "file ").value_or(0);
  const uint64_t held = *used > cache ? *used - cache : 0;
  return *limit > held ? *limit - held : 0;
}

}  // namespace

std::optional<AvailableMemory> available_memory(const std::string& root) {
  const auto kib = field(read_file(root + "/proc/meminfo"), "MemAvailable:");
  if (!kib) return std::nullopt;
  AvailableMemory available{*kib << 10, "MemAvailable of the host"};
  const std::string groups = read_file(root + "/proc/self/cgroup");
  const size_t at = groups.starts_with("0::") ? 0 : groups.find("\n0::");
  if (at == std::string::npos) return available;
  const size_t begin = groups.find("::", at) + 2;
  std::filesystem::path group = groups.substr(begin, groups.find('\n', begin) - begin);
  for (;; group = group.parent_path()) {
    const auto left = left_in_group(root + "/sys/fs/cgroup" + group.string());
    if (left && *left < available.bytes) available = {*left, "memory.max of control group " + group.string()};
    if (!group.has_relative_path()) return available;
  }
}

}  // namespace ringmaster::launcher
