// The state directory of a cluster (STATE): who may use it, who holds it, and what is left in it afterwards.
//   STATE/lock             held (flock) by the supervisor, and by its janitor until everything is cleaned up
//   STATE/supervisor.json  what `status` and `down` read (launcher/record.h)
//   STATE/cluster.yaml     the resolved configuration; stays
//   STATE/logs/            JSON lines of every process; stays
//   STATE/*.sock, *.ring   sockets of the processes
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace ringmaster::launcher {

// Creates `dir` (mode 0700) and `dir`/logs. A directory that is there must belong to this user and be closed
// to others; its parent must not let others replace it.
Status create_state_dir(const std::string& dir);

// kAlreadyExists: a live cluster holds it.
Result<UniqueFd> lock_state_dir(const std::string& dir);
bool state_dir_is_locked(const std::string& dir);

// Removes what only means something while the cluster lives: sockets in `dir`, `sockets` elsewhere,
// supervisor.json and the lock file. Returns the paths it removed. REQUIRES: the caller holds the lock.
std::vector<std::string> remove_runtime_files(const std::string& dir,
                                              const std::vector<std::string>& sockets);

// Replaces `path` in one step: a reader sees the old or the new text. If the new one cannot be written,
// nothing of it stays.
Status write_atomically(const std::string& path, std::string_view text);

// What write_atomically is made of, for who keeps room on the disk for the next version (RecordFile).
std::string next_version(const std::string& path);  // where the new text is written before it takes the place
Status write_file(const std::string& path,
                  std::string_view text);  // in place: blocks that are there are used
// write_file of the next version, which then becomes `path`. An error leaves both as they were, or the next
// one half written.
Status replace_file(const std::string& path, std::string_view text);

}  // namespace ringmaster::launcher
