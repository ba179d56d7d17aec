#include "gpu-worker/device/cpu/host.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ringmaster::gpu_worker {
namespace {

constexpr size_t kHugePage = 2 << 20;

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

// A whole number, or nothing for "max", "-1" and the like.
std::optional<uint64_t> number(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || text.size() > 19)
    return std::nullopt;
  return std::stoull(text);
}

std::optional<uint64_t> number_in(const std::string& path) {
  const std::optional<std::string> line = first_line(path);
  return line ? number(*line) : std::nullopt;
}

// The folders of this process's cgroup under `controller` ("" is v2), innermost first.
std::vector<std::string> cgroup_folders(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  std::vector<std::string> folders;
  for (std::string line; std::getline(file, line);) {  // "ID:controller,controller:/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool wanted =
        controller.empty() ? names == ",," : names.find("," + controller + ",") != std::string::npos;
    if (!wanted) continue;
    const std::string root = controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
    for (std::string path = line.substr(second + 1); path.size() > 1; path.resize(path.rfind('/')))
      folders.push_back(root + path);
    folders.push_back(root);
  }
  return folders;
}

double cpu_quota() {
  double quota = std::numeric_limits<double>::infinity();
  for (const std::string& folder : cgroup_folders("")) {
    const std::optional<std::string> line = first_line(folder + "/cpu.max");  // "QUOTA PERIOD"
    if (!line) continue;
    const size_t blank = line->find(' ');
    if (blank == std::string::npos) continue;
    const std::optional<uint64_t> granted = number(line->substr(0, blank)),
                                  period = number(line->substr(blank + 1));
    if (granted && period && *period > 0)
      quota = std::min(quota, static_cast<double>(*granted) / static_cast<double>(*period));
  }
  for (const std::string& folder : cgroup_folders("cpu")) {
    const std::optional<uint64_t> granted = number_in(folder + "/cpu.cfs_quota_us");
    const std::optional<uint64_t> period = number_in(folder + "/cpu.cfs_period_us");
    if (granted && period && *period > 0)
      quota = std::min(quota, static_cast<double>(*granted) / static_cast<double>(*period));
  }
  return quota;
}

}  // namespace

unsigned usable_threads() {
  // The mask may be larger than cpu_set_t on hosts with more than 1024 processors; then all of cpu_set_t
  // counts.
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int processors = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : CPU_SETSIZE;
  const double quota = std::max(1.0, cpu_quota());
  return static_cast<unsigned>(std::max(1.0, std::min(static_cast<double>(processors), quota)));
}

uint64_t available_memory() {
  uint64_t available = std::numeric_limits<uint64_t>::max();
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("MemAvailable:")) continue;
    const size_t first = line.find_first_of("0123456789");
    if (first != std::string::npos) available = std::strtoull(line.c_str() + first, nullptr, 10) * 1024;
  }
  struct Names {
    const char *controller, *limit, *usage;
  };
  for (const Names& names : {Names{"", "/memory.max", "/memory.current"},
                             Names{"memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes"}})
    for (const std::string& folder : cgroup_folders(names.controller)) {
      const std::optional<uint64_t> limit = number_in(folder + names.limit),
                                    usage = number_in(folder + names.usage);
      if (limit && usage) available = std::min(available, *limit - std::min(*limit, *usage));
    }
  return available;
}

Result<Region> Region::create(size_t bytes, const char* purpose) {
  Region region;
  region.bytes_ = bytes;
  region.mapped_ = bytes + kHugePage;
  void* mapping = mmap(nullptr, region.mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    region.mapped_ = 0;
    return Error{Code::kResourceExhausted, "cannot take " + std::to_string(bytes) + " bytes of memory for " +
                                               purpose + ": " + std::strerror(errno)};
  }
  region.mapping_ = mapping;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  region.data_ = static_cast<std::byte*>(mapping) + (kHugePage - address % kHugePage) % kHugePage;
  madvise(region.data_, bytes,
          MADV_HUGEPAGE);  // a wish: without it everything works, with more page-table misses
  return region;
}

Region::Region(Region&& other) noexcept {
  *this = std::move(other);
}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

Region::~Region() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

}  // namespace ringmaster::gpu_worker
