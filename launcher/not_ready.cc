#include "launcher/not_ready.h"

#include <algorithm>

#include "base/clock.h"

namespace ringmaster::launcher {
namespace {

// "gpu-worker.0 waits 3 s before its next restart (killed by signal 9)"; empty: nothing is wrong with it.
std::string trouble(const ChildRecord& child, int64_t now) {
  std::string text = child.name;
  if (child.state == "ready" || child.state == "stopped") return "";
  if (child.state == "backing off")
    text += " waits " + std::to_string(std::max<int64_t>(0, child.restart_at - now + kSecond - 1) / kSecond) +
            " s before its next restart";
  else if (child.state == "given up")
    text += " is given up after " + std::to_string(child.restarts) + " restarts (`ringmaster logs " +
            child.name + "`)";
  else
    text += " is " + child.state;
  if (!child.last_end.empty()) text += ", before: " + child.last_end;
  return text;
}

// The router's view of one kind; empty: one of them is ready.
std::string trouble(const client::ClusterStatus& status, const std::string& kind) {
  std::string others;
  for (const client::WorkerStatus& worker : status.workers) {
    if (worker.kind != kind) continue;
    if (worker.state == "ready") return "";
    others += (others.empty() ? "" : ", ") + worker.name + " is " + worker.state;
  }
  return "no " + kind + " is ready" + (others.empty() ? "; none has registered" : ": " + others);
}

}  // namespace

std::vector<std::string> not_ready_reasons(const SupervisorRecord& record,
                                           const Result<client::ClusterStatus>& service, int64_t now) {
  std::vector<std::string> reasons;
  if (service.ok() && service.value().ready) return reasons;
  if (record.state == "stopping")
    reasons.push_back("the cluster is ending: running requests finish, no new ones");
  for (const ChildRecord& child : record.children)
    if (std::string text = trouble(child, now); !text.empty()) reasons.push_back(std::move(text));
  if (!service.ok()) {
    reasons.push_back("the router does not answer: " + service.error().message);
    return reasons;
  }
  for (const char* kind : {"gpu-worker", "tokenizer-worker"})
    if (std::string text = trouble(service.value(), kind); !text.empty()) reasons.push_back(std::move(text));
  if (reasons.empty())
    reasons.push_back("the router takes no requests: it is ending, or its workers are just linking");
  return reasons;
}

}  // namespace ringmaster::launcher
