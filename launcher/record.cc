#include "launcher/record.h"

#include <time.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "base/clock.h"
#include "launcher/read_file.h"
#include "launcher/state_dir.h"

namespace ringmaster::launcher {
namespace {

using Json = nlohmann::ordered_json;

// Json's own conversion cuts off what does not fit: pid 4294967297 would read as 1.
template <typename T>
T number(const Json& object, const char* key) {
  const Json& value = object.at(key);
  const bool fits = value.is_number_unsigned()  ? std::in_range<T>(value.get<uint64_t>())
                    : value.is_number_integer() ? std::in_range<T>(value.get<int64_t>())
                                                : false;
  if (!fits) throw std::out_of_range(key);
  return value.get<T>();
}

}  // namespace

std::string to_json(const SupervisorRecord& record) {
  Json children = Json::array();
  for (const ChildRecord& child : record.children)
    children.push_back({{"name", child.name},
                        {"pid", child.pid},
                        {"state", child.state},
                        {"restarts", child.restarts},
                        {"started_at", child.started_at},
                        {"restart_at", child.restart_at},
                        {"last_end", child.last_end}});
  const Json json = {{"name", record.name},
                     {"pid", record.pid},
                     {"start_ticks", record.start_ticks},
                     {"started_at", record.started_at},
                     {"state", record.state},
                     {"client_endpoint", record.client_endpoint},
                     {"worker_endpoint", record.worker_endpoint},
                     {"children", children}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<SupervisorRecord> parse_record(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    SupervisorRecord record{.name = json.at("name"),
                            .pid = number<pid_t>(json, "pid"),
                            .start_ticks = number<uint64_t>(json, "start_ticks"),
                            .started_at = number<int64_t>(json, "started_at"),
                            .state = json.at("state"),
                            .client_endpoint = json.at("client_endpoint"),
                            .worker_endpoint = json.at("worker_endpoint"),
                            .children = {}};
    for (const Json& child : json.at("children"))
      record.children.push_back(
          {.name = child.at("name"),
           .pid = number<pid_t>(child, "pid"),
           .state = child.at("state"),
           .restarts = number<uint32_t>(child, "restarts"),
           .started_at = number<int64_t>(child, "started_at"),
           .last_end = child.at("last_end"),
           .restart_at = child.contains("restart_at") ? number<int64_t>(child, "restart_at") : 0});
    if (record.pid <= 0) return Error{Code::kMalformed, "pid is " + std::to_string(record.pid)};
    return record;
  } catch (const Json::exception& error) {
    return Error{Code::kMalformed, error.what()};
  } catch (const std::out_of_range& key) {
    return Error{Code::kMalformed, std::string(key.what()) + " is no whole number in its range"};
  }
}

int64_t unix_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

std::string record_path(const std::string& state_dir) {
  return state_dir + "/supervisor.json";
}

Result<SupervisorRecord> read_record(const std::string& state_dir) {
  const std::string text = read_file(record_path(state_dir));
  if (text.empty()) return Error{Code::kNotFound, "no cluster runs in " + state_dir};
  Result<SupervisorRecord> record = parse_record(text);
  if (!record.ok()) return Error{Code::kMalformed, record_path(state_dir) + ": " + record.error().message};
  return record;
}

Status RecordFile::write(const SupervisorRecord& record) {
  std::string text = to_json(record);
  if (text.size() < reserve_)
    text.resize(reserve_, '\n');  // the same blocks every time; JSON may end in space
  Status written = replace_file(path_, text);
  // The blocks of the former version are free now. Without them the next one has to find others.
  if (written.ok()) (void)write_file(next_version(path_), std::string(text.size(), '\n'));
  return written;
}

uint64_t process_start_ticks(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  // The second field is the program's name in parentheses and may hold anything; the third follows the last
  // one.
  const size_t end = stat.rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(end + 1));
  constexpr int kFirst = 3, kStartTime = 22;
  std::string skipped;
  for (int i = kFirst; i < kStartTime; ++i) fields >> skipped;
  uint64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

}  // namespace ringmaster::launcher
