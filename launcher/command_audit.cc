// `ringmaster audit`: what all processes hold, and whether the live requests justify it.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "launcher/ask.h"
#include "launcher/audit.h"
#include "launcher/audit_facts.h"
#include "launcher/commands.h"
#include "launcher/record.h"
#include "launcher/state_dir.h"

namespace ringmaster::launcher {
namespace {

using Json = nlohmann::ordered_json;

// Between the two rounds: long enough for what is in motion (a step, a message, a retry of some 10 ms) to
// move.
constexpr Nanos kBetweenRounds = 150 * kMillisecond;
constexpr Nanos kIdlePoll = 50 * kMillisecond;

struct AuditOptions {
  bool json = false;
  double wait_idle = -1;  // seconds; below 0: do not wait
  std::string since;      // a file; empty: none
};

struct Verdict {
  AuditSnapshot snapshot;  // of the last round
  std::vector<Finding> findings;
  int rounds = 0;
};

void sleep_for(Nanos time) {
  const timespec t{time / kSecond, time % kSecond};
  nanosleep(&t, nullptr);
}

class Auditor {
 public:
  Auditor(const ClusterConfig& config, client::Client client, std::vector<ProcessFacts> before)
      : config_(config), client_(std::move(client)), before_(std::move(before)) {}

  Result<Verdict> run(const AuditOptions& options) {
    if (options.wait_idle >= 0)
      if (auto idle = wait_idle(static_cast<Nanos>(options.wait_idle * kSecond)); !idle) return idle.error();
    Verdict out;
    std::vector<Finding> former;
    for (out.rounds = 1;; ++out.rounds) {
      auto snapshot = take();
      if (!snapshot) return std::move(snapshot).error();
      out.snapshot = std::move(snapshot).value();
      std::vector<Finding> now = compare(out.snapshot);
      const bool busy = options.wait_idle >= 0 && !is_idle(out.snapshot);
      if (out.rounds == 2 || (now.empty() && !busy)) {
        if (out.rounds == 2) out.findings = seen_twice(former, now);
        // Also when another number is live than in the first round.
        if (busy) out.findings.push_back(still_busy(out.snapshot));
        return out;
      }
      former = std::move(now);
      sleep_for(kBetweenRounds);
    }
  }

 private:
  Result<AuditSnapshot> take() {
    auto record = read_record(config_.state_dir);
    if (!record) return std::move(record).error();
    AuditSnapshot snapshot = take_snapshot(client_, config_, *record);
    snapshot.before = before_;
    return snapshot;
  }
  // The audit itself says what keeps it from idling if it does not come to that in time.
  Status wait_idle(Nanos limit) {
    const Nanos deadline = monotonic_now() + limit;
    while (true) {
      const auto snapshot = take();
      if (!snapshot) return snapshot.error();
      if (is_idle(*snapshot) || monotonic_now() >= deadline) return ok_status();
      sleep_for(kIdlePoll);
    }
  }
  static Finding still_busy(const AuditSnapshot& snapshot) {
    const std::string live = snapshot.books ? std::to_string(snapshot.books->router.live) : "unknown";
    return {"idle", "router", "live requests, with every process ready", "0",
            live == "0" ? "0, and a process that is not ready or not registered" : live};
  }

  const ClusterConfig& config_;
  client::Client client_;
  const std::vector<ProcessFacts> before_;
};

// ---- output ----

std::string count(uint64_t number, const char* what) {
  return std::to_string(number) + " " + what;
}

std::string books_of(const client::WorkerBooks& w) {
  if (w.tokenizer_books) {
    const auto& b = *w.tokenizer_books;
    return count(b.live, "streams") + ", " + count(b.ended_kept, "ended") + ", " +
           count(b.slots.size(), "links") + ", " + count(b.encoding, "encoding") + ", " +
           count(b.queries.size(), "queries");
  }
  if (w.gpu_books) {
    const auto& b = *w.gpu_books;
    return count(b.live, "sequences") + ", lanes " + std::to_string(b.lanes_taken) + "/" +
           std::to_string(b.lanes) + ", slots " + std::to_string(b.slots.size()) + "/" +
           std::to_string(b.slots_total) + ", blocks " + std::to_string(b.blocks_used) + " used + " +
           std::to_string(b.blocks_cached) + " cached + " + std::to_string(b.blocks_free) + " free of " +
           std::to_string(b.blocks) + ", " + count(b.deferred, "waiting for a step");
  }
  return w.state == "dead" ? "dead" : "no answer";
}

std::string books_of(const AuditSnapshot& s, const std::string& name) {
  if (name == "supervisor") return count(s.processes.size() - 1, "processes");
  if (!s.books) return "no answer";
  if (name == "router") {
    const client::RouterBooks& b = s.books->router;
    return count(b.live, "live") + " (" + count(b.waiting, "waiting") + "), " +
           count(b.ended_kept, "ended kept") + ", " + count(b.clients, "clients with requests") + ", " +
           count(b.queries.size(), "queries");
  }
  for (const client::WorkerBooks& w : s.books->workers)
    if (w.name == name) return books_of(w);
  return "not registered";
}

void print_text(const Verdict& verdict) {
  std::printf("%-20s %8s %4s %8s %6s %6s  %s\n", "process", "pid", "fds", "threads", "slots", "bells",
              "holds");
  for (const ProcessFacts& p : verdict.snapshot.processes)
    std::printf("%-20s %8d %4u %8u %6u %6u  %s%s\n", p.name.c_str(), p.pid, p.descriptors.total, p.threads,
                p.mapped_slots, p.mapped_bells, books_of(verdict.snapshot, p.name).c_str(),
                p.stopped ? " (stopped)"
                : p.alive ? ""
                          : " (not running)");
  std::printf("\n");
  for (const Finding& f : verdict.findings)
    std::printf("%s: %s: %s: expected %s, found %s (%s)\n", f.process.c_str(), f.rule.c_str(),
                f.thing.c_str(), f.expected.c_str(), f.found.c_str(),
                std::string(audit_rule(f.rule).broken).c_str());
  if (verdict.findings.empty())
    std::printf("books balance\n");
  else
    std::printf("%zu findings, each seen in two rounds\n", verdict.findings.size());
}

Json descriptors_json(const Descriptors& d) {
  Json out = Json::object();
  for (const DescriptorKind& kind : kDescriptorKinds) out[std::string(kind.name)] = d.*kind.count;
  return out;
}

Json books_json(const client::ClusterBooks& books) {
  const client::RouterBooks& r = books.router;
  Json workers = Json::object();
  for (const client::WorkerBooks& w : books.workers) {
    Json& out = workers[w.name] = {{"state", w.state}, {"live", w.live}, {"answered", w.answered()}};
    if (w.tokenizer_books)
      out.update({{"streams", w.tokenizer_books->live},
                  {"ended_kept", w.tokenizer_books->ended_kept},
                  {"links", w.tokenizer_books->slots.size()},
                  {"encoding", w.tokenizer_books->encoding},
                  {"queries", w.tokenizer_books->queries.size()}});
    if (w.gpu_books)
      out.update({{"sequences", w.gpu_books->live},
                  {"lanes_taken", w.gpu_books->lanes_taken},
                  {"lanes", w.gpu_books->lanes},
                  {"slots_held", w.gpu_books->slots.size()},
                  {"slots", w.gpu_books->slots_total},
                  {"blocks", w.gpu_books->blocks},
                  {"blocks_free", w.gpu_books->blocks_free},
                  {"blocks_cached", w.gpu_books->blocks_cached},
                  {"blocks_used", w.gpu_books->blocks_used},
                  {"references", w.gpu_books->references},
                  {"deferred", w.gpu_books->deferred},
                  {"steps_in_flight", w.gpu_books->in_flight}});
  }
  return {{"router",
           {{"live", r.live},
            {"waiting", r.waiting},
            {"ended_kept", r.ended_kept},
            {"clients", r.clients},
            {"clients_gone", r.clients_gone},
            {"accepted", r.accepted},
            {"ended", r.ended},
            {"queries", r.queries.size()}}},
          {"workers", workers}};
}

void print_json(const Verdict& verdict) {
  Json findings = Json::array(), processes = Json::array();
  for (const Finding& f : verdict.findings)
    findings.push_back({{"rule", f.rule},
                        {"process", f.process},
                        {"thing", f.thing},
                        {"expected", f.expected},
                        {"found", f.found},
                        {"meaning", audit_rule(f.rule).broken}});
  for (const ProcessFacts& p : verdict.snapshot.processes)
    processes.push_back({{"name", p.name},
                         {"pid", p.pid},
                         {"state", p.state},
                         {"alive", p.alive},
                         {"stopped", p.stopped},
                         {"threads", p.threads},
                         {"mapped_slots", p.mapped_slots},
                         {"mapped_bells", p.mapped_bells},
                         {"descriptors", descriptors_json(p.descriptors)}});
  Json out = {{"balanced", verdict.findings.empty()},
              {"idle", is_idle(verdict.snapshot)},
              {"rounds", verdict.rounds},
              {"findings", findings},
              {"processes", processes}};
  if (verdict.snapshot.books)
    out["books"] = books_json(*verdict.snapshot.books);
  else
    out["books_error"] = verdict.snapshot.no_books;
  std::printf("%s\n", out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

void audit(const ClusterChoice& choice, const AuditOptions& options, Exit& exit) {
  const auto config = started_config(choice);
  if (!config)
    return fail(exit, config.error().message,
                config.error().code == Code::kNotFound ? ExitCode::kNotRunning : ExitCode::kUsage);
  if (!state_dir_is_locked(config->state_dir))
    return fail(exit, "cluster '" + config->name + "' is not running", ExitCode::kNotRunning);
  std::vector<ProcessFacts> before;
  if (!options.since.empty()) {
    auto former = read_former_audit(options.since);
    if (!former) return fail(exit, former.error().message, ExitCode::kUsage);
    before = std::move(former).value();
  }
  auto client = client::Client::connect(config->client_endpoint());
  if (!client) return fail(exit, client.error());
  const auto verdict = Auditor(*config, std::move(client).value(), std::move(before)).run(options);
  if (!verdict)
    return fail(exit, verdict.error().message,
                verdict.error().code == Code::kNotFound ? ExitCode::kNotRunning : ExitCode::kFailed);
  options.json ? print_json(*verdict) : print_text(*verdict);
  if (!verdict->findings.empty()) exit.code = ExitCode::kFailed;
}

}  // namespace

void add_audit(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("audit",
                                         "check what all processes hold (requests, KV blocks, lanes, slots, "
                                         "rings, descriptors) against the live "
                                         "requests");
  auto choice = add_cluster_options(*command);
  auto options = std::make_shared<AuditOptions>();
  command->add_flag("--json", options->json, "print one JSON object");
  command
      ->add_option("--wait-idle", options->wait_idle,
                   "first wait up to SECONDS until no request is live and every process is ready and "
                   "registered; one that is "
                   "live afterwards is a finding")
      ->type_name("SECONDS")
      ->check(real_number(0, 3600, "0 to 3600"));
  command
      ->add_option(
          "--since", options->since,
          "output of a former `audit --json` of this cluster: descriptors that belong to no peer, and "
          "threads, must be as they were then")
      ->type_name("FILE");
  command->footer(
      "Exit codes: 0 books balance, 1 they do not (or a process does not answer), 2 wrong arguments, 3 not "
      "running.");
  command->callback([choice, options, &exit] { audit(*choice, *options, exit); });
}

}  // namespace ringmaster::launcher
