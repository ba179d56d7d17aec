// STATE/supervisor.json: what the supervisor says about itself and its children, for `status`, `down` and
// people. Rewritten as a whole on each change, removed when the cluster has ended.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ringmaster::launcher {

struct ChildRecord {
  std::string name;
  pid_t pid = 0;           // 0: not running
  std::string state;       // starting, ready, backing off, stopping, stopped, given up
  uint32_t restarts = 0;   // since the supervisor started
  int64_t started_at = 0;  // of this incarnation, unix nanoseconds
  std::string last_end;    // how the last incarnation ended: "killed by signal 9"; empty: none ended
  int64_t restart_at = 0;  // while backing off: when the next one is started
};

struct SupervisorRecord {
  std::string name;  // of the cluster
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // tells the process from a later one with the same number
  int64_t started_at = 0;
  std::string state;  // starting, ready, stopping
  std::string client_endpoint;
  std::string worker_endpoint;
  std::vector<ChildRecord> children;
};

int64_t unix_now();  // in the nanoseconds of the records

std::string to_json(const SupervisorRecord& record);
Result<SupervisorRecord> parse_record(std::string_view json);

std::string record_path(const std::string& state_dir);
// kNotFound: no cluster runs there.
Result<SupervisorRecord> read_record(const std::string& state_dir);

// Writes the record so that a disk that fills up while the cluster runs does not make it stale: the next
// version is written into blocks that were taken before, then takes the former one's place in one step.
// Thread: the supervisor's.
class RecordFile {
 public:
  // `reserve`: bytes that every version takes; a longer one works as long as the disk has room.
  RecordFile(const std::string& state_dir, size_t reserve)
      : path_(record_path(state_dir)), reserve_(reserve) {}
  Status write(const SupervisorRecord& record);

 private:
  std::string path_;
  size_t reserve_;
};

// Field 22 of /proc/PID/stat; 0: no such process.
uint64_t process_start_ticks(pid_t pid);

}  // namespace ringmaster::launcher
