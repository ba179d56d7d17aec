// `ringmaster status`: what the supervisor says about its processes, and what the router says about the
// service.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "client/cpp/ringmaster.h"
#include "launcher/commands.h"
#include "launcher/not_ready.h"
#include "launcher/record.h"
#include "launcher/state_dir.h"

namespace ringmaster::launcher {
namespace {

using Json = nlohmann::ordered_json;

std::string age(int64_t since) {
  const int64_t seconds = std::max<int64_t>(0, (unix_now() - since) / kSecond);
  if (seconds < 60) return std::to_string(seconds) + " s";
  if (seconds < 3600) return std::to_string(seconds / 60) + " min";
  return std::to_string(seconds / 3600) + " h " + std::to_string(seconds % 3600 / 60) + " min";
}

// The router's side. Its silence is an answer too: the cluster is not ready.
Result<client::ClusterStatus> ask_router(const std::string& endpoint) {
  constexpr Nanos kLimit = 2 * kSecond;  // a live router answers in milliseconds
  Result<client::Client> client = client::Client::connect(endpoint);
  if (!client.ok()) return client.error();
  return client->status(kLimit);
}

Json service_json(const Result<client::ClusterStatus>& service) {
  if (!service.ok()) return {{"ready", false}, {"error", service.error().message}};
  const client::ClusterStatus& s = service.value();
  Json workers = Json::array();
  for (const client::WorkerStatus& w : s.workers)
    workers.push_back({{"name", w.name},
                       {"kind", w.kind},
                       {"pid", w.pid},
                       {"state", w.state},
                       {"device", w.device},
                       {"live", w.live},
                       {"running", w.running},
                       {"waiting", w.waiting},
                       {"blocks_free", w.blocks_free},
                       {"blocks_total", w.blocks_total},
                       {"steps", w.steps},
                       {"age_ms", w.age_ms}});
  Json counters = Json::object();
  for (const auto& [name, value] : s.counters) counters[name] = value;
  return {{"ready", s.ready},
          {"model", s.model},
          {"incarnation", s.incarnation},
          {"context_length", s.context_length},
          {"vocab_size", s.vocab_size},
          {"live_requests", s.live_requests},
          {"workers", workers},
          {"counters", counters}};
}

void print_json(const SupervisorRecord& record, const ClusterConfig& config,
                const Result<client::ClusterStatus>& service) {
  Json json = Json::parse(to_json(record));
  json["running"] = true;
  json["state_dir"] = config.state_dir;
  json["service"] = service_json(service);
  json["not_ready"] = not_ready_reasons(record, service, unix_now());
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

void print_text(const SupervisorRecord& record, const ClusterConfig& config,
                const Result<client::ClusterStatus>& service) {
  const bool ready = service.ok() && service.value().ready;
  std::printf("cluster '%s': %s, up %s\n", record.name.c_str(), ready ? "ready" : "NOT READY",
              age(record.started_at).c_str());
  for (const std::string& reason : not_ready_reasons(record, service, unix_now()))
    std::printf("  because     %s\n", reason.c_str());
  if (service.ok())
    std::printf("  model       %s, context %u\n  requests    %u live\n", service.value().model.c_str(),
                service.value().context_length, service.value().live_requests);
  std::printf("  clients     %s\n  state       %s\n  supervisor  process %d, %s\n\n",
              record.client_endpoint.c_str(), config.state_dir.c_str(), record.pid, record.state.c_str());
  std::printf("%-20s %-11s %8s %10s %8s  %s\n", "process", "state", "pid", "up", "restarts", "requests");
  for (const ChildRecord& child : record.children) {
    std::string work;
    if (service.ok())
      for (const client::WorkerStatus& w : service.value().workers)
        if (w.name == child.name) {
          work = w.state + ", " + std::to_string(w.live) + " live";
          if (w.blocks_total > 0)
            work += ", " + std::to_string(w.running) + " running, " + std::to_string(w.waiting) +
                    " waiting, blocks " + std::to_string(w.blocks_free) + "/" +
                    std::to_string(w.blocks_total) + " free";
        }
    if (!child.last_end.empty()) work += (work.empty() ? "" : "; ") + ("before: " + child.last_end);
    std::printf("%-20s %-11s %8d %10s %8u  %s\n", child.name.c_str(), child.state.c_str(), child.pid,
                child.pid > 0 ? age(child.started_at).c_str() : "-", child.restarts, work.c_str());
  }
}

void not_running(const ClusterConfig& config, bool json, Exit& exit) {
  if (!json)
    return fail(exit,
                "cluster '" + config.name + "' is not running (looked in " + config.state_dir +
                    "); start it with `ringmaster up`",
                ExitCode::kNotRunning);
  std::printf("%s\n", Json({{"name", config.name}, {"running", false}}).dump().c_str());
  exit.code = ExitCode::kNotRunning;
}

void status(const ClusterChoice& choice, bool json, Exit& exit) {
  const Result<ClusterConfig> chosen = chosen_config(choice);
  if (!chosen.ok()) return fail(exit, chosen.error());
  if (!state_dir_is_locked(chosen.value().state_dir)) return not_running(chosen.value(), json, exit);
  const Result<SupervisorRecord> record = read_record(chosen.value().state_dir);
  if (!record.ok()) {
    if (record.error().code == Code::kNotFound) return not_running(chosen.value(), json, exit);
    return fail(exit, record.error().message);
  }
  const Result<client::ClusterStatus> service = ask_router(record.value().client_endpoint);
  json ? print_json(record.value(), chosen.value(), service)
       : print_text(record.value(), chosen.value(), service);
  if (!service.ok() || !service.value().ready) exit.code = ExitCode::kNotReady;
}

}  // namespace

void add_status(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("status", "show a cluster's processes and whether it serves");
  auto choice = add_cluster_options(*command);
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print one JSON object");
  command->callback([choice, json, &exit] { status(*choice, *json, exit); });
}

}  // namespace ringmaster::launcher
