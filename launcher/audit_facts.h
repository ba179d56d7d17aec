// Collects what launcher/audit.h compares: the books of all processes through the router, and what the kernel
// says of each process under /proc (descriptors by kind, threads, memory files), also of one that is stopped.
// Reads only; every wait has a deadline. Of main(), one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "base/config.h"
#include "base/status.h"
#include "client/cpp/ringmaster.h"
#include "launcher/audit.h"
#include "launcher/record.h"

namespace ringmaster::launcher {

// What a bound Unix socket is called, by inode: /proc/net/unix. An accepted connection has its listener's
// path.
struct UnixSocket {
  std::string path;
  bool listening = false;
};
std::map<uint64_t, UnixSocket> parse_unix_sockets(const std::string& proc_net_unix);

struct AuditEndpoints {
  std::string clients, workers;  // paths of the router's two Unix sockets; empty: not a Unix socket
};
// Facts of a process that may end meanwhile: then it is not alive and holds nothing.
ProcessFacts read_process(const std::string& name, pid_t pid, const std::string& state,
                          const AuditEndpoints& endpoints, const std::map<uint64_t, UnixSocket>& sockets);

// The processes of a former `audit --json`. kMalformed, kNotFound.
Result<std::vector<ProcessFacts>> read_former_audit(const std::string& path);

AuditSnapshot take_snapshot(client::Client& client, const ClusterConfig& config,
                            const SupervisorRecord& record);

}  // namespace ringmaster::launcher
