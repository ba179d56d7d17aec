#include "launcher/audit_facts.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

#include "launcher/read_file.h"

namespace ringmaster::launcher {
namespace {

// The router answers within its own limit of 500 ms (router/audit.h); more is silence.
constexpr Nanos kAnswerLimit = 900 * kMillisecond;
constexpr Nanos kAskAgain = 30 * kMillisecond;

std::string path_of(const std::string& endpoint) {
  constexpr std::string_view kIpc = "ipc://";
  return endpoint.starts_with(kIpc) ? endpoint.substr(kIpc.size()) : std::string();
}

void count_socket(Descriptors& d, std::string_view target, const AuditEndpoints& endpoints,
                  const std::map<uint64_t, UnixSocket>& sockets) {
  constexpr std::string_view kPrefix = "socket:[";
  uint64_t inode = 0;
  std::from_chars(target.data() + kPrefix.size(), target.data() + target.size(), inode);
  const auto found = sockets.find(inode);
  if (found == sockets.end() || found->second.path.empty())
    ++d.sockets;
  else if (found->second.listening)
    ++d.listening;
  else if (found->second.path == endpoints.workers)
    ++d.worker_connections;
  else if (found->second.path == endpoints.clients)
    ++d.client_connections;
  else
    ++d.ring_connections;
}

void count(Descriptors& d, std::string_view target, const AuditEndpoints& endpoints,
           const std::map<uint64_t, UnixSocket>& sockets) {
  ++d.total;
  if (target.starts_with("/memfd:ringmaster.slot"))
    ++d.slots;
  else if (target.starts_with("/memfd:ringmaster.bell"))
    ++d.bells;
  else if (target == "anon_inode:[pidfd]")
    ++d.pidfds;
  else if (target == "anon_inode:[eventfd]")
    ++d.eventfds;
  else if (target == "anon_inode:[eventpoll]")
    ++d.epolls;
  else if (target == "anon_inode:[timerfd]")
    ++d.timerfds;
  else if (target == "anon_inode:[signalfd]")
    ++d.signalfds;
  else if (target.starts_with("socket:["))
    count_socket(d, target, endpoints, sockets);
  else if (target.starts_with("/") && target != "/dev/null")
    ++d.files;
  else
    ++d.others;
}

// The process, and with it its folder, may vanish at any moment.
template <typename Visit>
void for_each_entry(const std::string& folder, Visit visit) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    visit(entry->path());
}

// Memory files in /proc/PID/maps, each once: address perms offset dev inode path.
void count_mappings(ProcessFacts& process) {
  std::istringstream lines(read_file("/proc/" + std::to_string(process.pid) + "/maps"));
  std::set<std::string> slots, bells;
  for (std::string line; std::getline(lines, line);) {
    const size_t name = line.find("/memfd:ringmaster.");
    if (name == std::string::npos) continue;
    std::istringstream fields(line);
    std::string skipped, inode;
    fields >> skipped >> skipped >> skipped >> skipped >> inode;
    if (line.compare(name, 22, "/memfd:ringmaster.slot") == 0) slots.insert(inode);
    if (line.compare(name, 22, "/memfd:ringmaster.bell") == 0) bells.insert(inode);
  }
  process.mapped_slots = static_cast<uint32_t>(slots.size());
  process.mapped_bells = static_cast<uint32_t>(bells.size());
}

// Since a start in clock ticks after boot (field 22 of /proc/PID/stat).
Nanos age_of(uint64_t start_ticks) {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const Nanos start = static_cast<Nanos>(start_ticks) * (kSecond / sysconf(_SC_CLK_TCK));
  return std::max<Nanos>(now.tv_sec * kSecond + now.tv_nsec - start, 0);
}

// Its number may be another process's by now. A supervisor that could not read its own start has written 0.
pid_t living_supervisor(const SupervisorRecord& record) {
  const bool same = record.start_ticks == 0 || process_start_ticks(record.pid) == record.start_ticks;
  return same ? record.pid : 0;
}

// Books of all processes; asks again while another audit is on its way.
Result<client::ClusterBooks> ask(client::Client& client) {
  const Nanos deadline = monotonic_now() + kAnswerLimit;
  while (true) {
    auto books = client.books(std::max<Nanos>(deadline - monotonic_now(), 0));
    const bool busy = !books && books.error().code == Code::kOverloaded;
    if (!busy || monotonic_now() + kAskAgain >= deadline) return books;
    const timespec pause{0, kAskAgain};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

std::map<uint64_t, UnixSocket> parse_unix_sockets(const std::string& text) {
  std::map<uint64_t, UnixSocket> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // Num RefCount Protocol Flags Type St Inode Path
    std::istringstream fields(line);
    std::string number, references, protocol, flags, type, state, path;
    uint64_t inode = 0;
    if (!(fields >> number >> references >> protocol >> flags >> type >> state >> inode)) continue;
    std::getline(fields >> std::ws, path);
    constexpr std::string_view kAccepting = "00010000";  // __SO_ACCEPTCON
    out[inode] = {path, flags == kAccepting};
  }
  return out;
}

ProcessFacts read_process(const std::string& name, pid_t pid, const std::string& state,
                          const AuditEndpoints& endpoints, const std::map<uint64_t, UnixSocket>& sockets) {
  ProcessFacts out{.name = name, .pid = pid, .state = state};
  if (pid <= 0) return out;
  const std::string proc = "/proc/" + std::to_string(pid);
  const std::string stat = read_file(proc + "/stat");
  const size_t end = stat.rfind(')');  // "pid (name) state": the name may hold anything
  if (end == std::string::npos || end + 2 >= stat.size() || stat[end + 2] == 'Z') return out;
  out.alive = true;
  out.stopped = stat[end + 2] == 'T' || stat[end + 2] == 't';
  out.age = age_of(process_start_ticks(pid));
  for_each_entry(proc + "/task", [&](const std::filesystem::path&) { ++out.threads; });
  for_each_entry(proc + "/fd", [&](const std::filesystem::path& fd) {
    std::error_code gone;  // closed since
    const auto target = std::filesystem::read_symlink(fd, gone);
    if (!gone) count(out.descriptors, target.native(), endpoints, sockets);
  });
  count_mappings(out);
  return out;
}

Result<std::vector<ProcessFacts>> read_former_audit(const std::string& path) {
  const std::string text = read_file(path);
  if (text.empty()) return Error{Code::kNotFound, path + " cannot be read, or is empty"};
  try {
    std::vector<ProcessFacts> out;
    const auto json = nlohmann::json::parse(text);
    for (const auto& process : json.at("processes")) {
      ProcessFacts& facts = out.emplace_back();
      facts.name = process.at("name").get<std::string>();
      facts.threads = process.at("threads").get<uint32_t>();
      for (const DescriptorKind& kind : kDescriptorKinds)
        facts.descriptors.*kind.count = process.at("descriptors").at(std::string(kind.name)).get<uint32_t>();
    }
    return out;
  } catch (const nlohmann::json::exception& error) {
    return Error{Code::kMalformed, path + " is not the output of `ringmaster audit --json`: " + error.what()};
  }
}

AuditSnapshot take_snapshot(client::Client& client, const ClusterConfig& config,
                            const SupervisorRecord& record) {
  AuditSnapshot out;
  out.slots = config.gpu_worker.slots;
  out.registration =
      config.router.worker_timeout;  // a new router is heard of within one heartbeat, a quarter
  const AuditEndpoints endpoints{path_of(record.client_endpoint), path_of(record.worker_endpoint)};
  if (auto books = ask(client); books)
    out.books = std::move(books).value();
  else
    out.no_books = std::string(name(books.error().code)) + ": " + books.error().message;
  const auto sockets = parse_unix_sockets(read_file("/proc/net/unix"));
  out.processes.push_back(
      read_process("supervisor", living_supervisor(record), record.state, endpoints, sockets));
  for (const ChildRecord& child : record.children)
    out.processes.push_back(read_process(child.name, child.pid, child.state, endpoints, sockets));
  return out;
}

}  // namespace ringmaster::launcher
