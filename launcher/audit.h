// What the processes of a cluster hold against what the live requests justify: the rules of `ringmaster
// audit`, as one pure function over what was collected (launcher/audit_facts.h). Asks nobody and judges no
// request. The rules are named with their meaning in audit.cc, written in
// audit_{process,router,tokenizer_worker,gpu_worker}.cc, and explained in docs/audit.md.
//
// The processes are asked one after another while they work, so one comparison may see differences that are
// only motion. A difference counts when it is the same, with the same epoch and amounts, in two rounds some
// 100 ms apart (seen_twice). Any thread; no state.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "client/cpp/books.h"

namespace ringmaster::launcher {

struct Descriptors {
  uint32_t slots = 0, bells = 0;  // memory files
  uint32_t pidfds = 0, eventfds = 0, epolls = 0, timerfds = 0, signalfds = 0;
  uint32_t files = 0;  // with a path; /dev/null apart
  uint32_t listening = 0, worker_connections = 0, client_connections = 0, ring_connections = 0;
  uint32_t sockets = 0;  // others: connections that this process has opened
  uint32_t others = 0;   // pipes, /dev/null
  uint32_t total = 0;
};

struct DescriptorKind {
  std::string_view name;
  uint32_t Descriptors::*count;
};
inline constexpr DescriptorKind kDescriptorKinds[] = {
    {"slots", &Descriptors::slots},
    {"bells", &Descriptors::bells},
    {"pidfds", &Descriptors::pidfds},
    {"eventfds", &Descriptors::eventfds},
    {"epolls", &Descriptors::epolls},
    {"timerfds", &Descriptors::timerfds},
    {"signalfds", &Descriptors::signalfds},
    {"files", &Descriptors::files},
    {"listening", &Descriptors::listening},
    {"worker_connections", &Descriptors::worker_connections},
    {"client_connections", &Descriptors::client_connections},
    {"ring_connections", &Descriptors::ring_connections},
    {"sockets", &Descriptors::sockets},
    {"others", &Descriptors::others},
    {"total", &Descriptors::total},
};

struct ProcessFacts {
  std::string name;  // "supervisor", "router", "gpu-worker.0"
  pid_t pid = 0;
  std::string state;  // as the supervisor says: "ready"
  bool alive = false;
  bool stopped = false;  // by a signal or a debugger
  Nanos age = 0;         // since its start
  uint32_t threads = 0;
  Descriptors descriptors;
  uint32_t mapped_slots = 0, mapped_bells = 0;
};

struct AuditSnapshot {
  uint32_t slots = 0;      // gpu-worker.slots
  Nanos registration = 0;  // a worker may be on its way to the router for so long after a start of either
  std::optional<client::ClusterBooks> books;
  std::string no_books;  // why there are none
  std::vector<ProcessFacts> processes;
  std::vector<ProcessFacts> before;  // of a former audit; empty: none
};

struct Finding {
  std::string rule, process, thing, expected, found;
  bool operator==(const Finding&) const = default;
};

struct AuditRule {
  std::string_view name, holds, broken;  // what must hold; what it means if it does not
};
std::span<const AuditRule> audit_rules();
const AuditRule& audit_rule(std::string_view name);  // REQUIRES: it is one of them

std::vector<Finding> compare(const AuditSnapshot& snapshot);
std::vector<Finding> seen_twice(const std::vector<Finding>& first, const std::vector<Finding>& second);
// No request is live, every process is ready and every worker registered: then everything must be at its
// baseline.
bool is_idle(const AuditSnapshot& snapshot);

}  // namespace ringmaster::launcher
