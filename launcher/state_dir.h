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

// Replaces `path` in one step: a reader sees the old or the new text.
Status write_atomically(const std::string& path, std::string_view text);

}  // namespace ringmaster::launcher
