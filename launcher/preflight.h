// Everything that can be known to be wrong before a process is started: programs, model, memory, address.
// Changes nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "launcher/memory.h"
#include "launcher/spawn.h"

namespace ringmaster::launcher {

std::string own_folder();  // of the running executable: the programs of the processes lie beside it

// The processes of `config` in start order; their programs are `programs`/router and so on.
std::vector<ChildSpec> plan_children(const ClusterConfig& config, const std::string& programs);

Status preflight(const ClusterConfig& config, const std::vector<ChildSpec>& children);

// The parts, for tests.
struct MemoryNeed {
  uint64_t weights = 0;
  uint64_t kv = 0;
};
Result<MemoryNeed> memory_need(const ClusterConfig& config);  // reads the model's header
Status check_memory(const MemoryNeed& need, const std::optional<AvailableMemory>& available);
Status check_endpoint_free(const std::string& endpoint);

}  // namespace ringmaster::launcher
