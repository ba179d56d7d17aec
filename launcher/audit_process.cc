// What the kernel says of a process: that it runs, its descriptors, threads and memory files.
#include <algorithm>

#include "launcher/audit_comparison.h"

namespace ringmaster::launcher {
namespace {

// What belongs to no slot and no peer never changes in the life of a process, and its successor has the
// same.
void as_before(Comparison& c, const ProcessFacts& p) {
  const auto before = std::ranges::find(c.snapshot().before, p.name, &ProcessFacts::name);
  if (before == c.snapshot().before.end()) return;
  // Clients come and go; pipes are the supervisor's. The others have rules of their own.
  constexpr std::string_view kOfPeers[] = {"slots",  "pidfds", "worker_connections", "client_connections",
                                           "others", "total"};
  for (const DescriptorKind& kind : kDescriptorKinds)
    if (!std::ranges::count(kOfPeers, kind.name) && !(is_worker(p) && kind.name == "bells"))
      c.equal("since", p.name, std::string(kind.name), before->descriptors.*kind.count,
              p.descriptors.*kind.count);
  c.equal("since", p.name, "threads", before->threads, p.threads);
}

void router_process(Comparison& c, const ProcessFacts& p) {
  c.equal("memory", p.name, "open slots", 0, p.descriptors.slots);
  c.equal("memory", p.name, "mapped slots", 0, p.mapped_slots);
  c.equal("descriptors", p.name, "pidfds", 0, p.descriptors.pidfds);
  const auto workers = std::ranges::count_if(c.snapshot().processes, [](const ProcessFacts& process) {
    return process.alive && process.name != "supervisor" && process.name != "router";
  });
  c.equal("descriptors", p.name, "connections of workers", static_cast<uint64_t>(workers),
          p.descriptors.worker_connections);
}

}  // namespace

void compare_memory(Comparison& c, const ProcessFacts& p, uint64_t slots, uint64_t peers) {
  c.equal("memory", p.name, "open slots", slots, p.descriptors.slots);
  c.equal("memory", p.name, "mapped slots", slots, p.mapped_slots);
  c.equal("memory", p.name, "open doorbells", peers + 1, p.descriptors.bells);
  c.equal("memory", p.name, "mapped doorbells", peers + 1, p.mapped_bells);
  c.equal("descriptors", p.name, "pidfds", peers, p.descriptors.pidfds);
}

void compare_process(Comparison& c, const ProcessFacts& p) {
  if (p.state != "ready" || !p.alive)
    return c.add("process", p.name, "state", "ready", p.alive ? p.state : p.state + ", process gone");
  if (p.name == "supervisor") {
    if (p.stopped) c.add("process", p.name, "state", "running", "stopped");
    const auto living = std::ranges::count_if(c.snapshot().processes, [](const ProcessFacts& child) {
      return child.name != "supervisor" && child.pid > 0;
    });
    c.equal("descriptors", p.name, "pidfds", static_cast<uint64_t>(living) + 1, p.descriptors.pidfds);
    c.equal("descriptors", p.name, "threads", 1, p.threads);
  } else if (p.name == "router") {
    router_process(c, p);
  } else if (p.name.starts_with("gpu-worker")) {
    c.equal("descriptors", p.name, "handshakes of slots", 0, p.descriptors.ring_connections);
  }
  as_before(c, p);
}

}  // namespace ringmaster::launcher
