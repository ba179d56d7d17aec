#include "launcher/audit.h"

#include <algorithm>
#include <array>

#include "launcher/audit_comparison.h"

namespace ringmaster::launcher {
namespace {

constexpr std::array<AuditRule, 22> kRules = {{
    {"answer", "every process that is there says what it holds",
     "it hangs, is stopped or too busy: what it holds is not known"},
    {"process",
     "the supervisor runs; all that it has started are ready, alive and, workers, registered by pid",
     "requests avoid it; a stopped supervisor restarts nobody. See `ringmaster status`"},
    {"requests.balance", "accepted = ended + live, and the live ones are all there",
     "a request was lost or ended twice in the router"},
    {"requests.load", "requests counted for a worker = live requests placed on it",
     "placement sees a load that is not there"},
    {"streams.owner", "each stream of a tokenizer-worker is live in the router and placed there",
     "it computes for nobody"},
    {"streams.missing", "each request that the router has placed on a tokenizer-worker is a stream there",
     "its client waits for ever"},
    {"streams.balance", "assigned = ended + forgotten + live", "a request was lost or ended twice"},
    {"sequences.owner", "each sequence of a gpu-worker is a running stream of the holder of its slot",
     "blocks and a lane are taken for nobody"},
    {"sequences.missing", "each running stream whose rings are read is a sequence at its gpu-worker",
     "its client waits for ever"},
    {"queries.owner", "each tokenize query in work is one that the router waits for",
     "its answer goes to nobody"},
    {"slots.pair", "a slot held at a gpu-worker = a link of that living tokenizer-worker",
     "the slot stays taken until the tokenizer-worker ends"},
    {"links.known", "links of a tokenizer-worker = links that the router knows", "placement is wrong"},
    {"rings.read", "what one side has written, the other has read",
     "records lie in the ring and nobody takes them"},
    {"blocks.total", "free + cached + used = all", "KV blocks have leaked"},
    {"blocks.references", "references = entries of all block tables + releases that wait",
     "KV blocks leak or are freed too early"},
    {"blocks.used", "used blocks = different blocks in tables and waiting releases", "KV blocks have leaked"},
    {"lanes.held", "lanes taken = sequences that hold one; a running one does", "a lane has leaked"},
    {"books.fault", "the gpu-worker's own check of its books finds nothing",
     "its scheduler or cache is broken; it will end by itself when idle"},
    {"idle", "without a live request nothing is held", "something was not given back"},
    {"memory", "slots and doorbells that are open and mapped = those of the slots in use",
     "shared memory has leaked"},
    {"descriptors", "pidfds and connections = those of its slots and peers", "descriptors have leaked"},
    {"since", "all other descriptors, and threads, are those of the former audit (--since)",
     "descriptors or threads have leaked"},
}};

std::string no_answer(const Comparison& c, const client::WorkerBooks& worker) {
  const ProcessFacts* process = c.facts(worker.name);
  return process && process->stopped ? "no answer; the process is stopped" : "no answer";
}

}  // namespace

std::span<const AuditRule> audit_rules() {
  return kRules;
}

const AuditRule& audit_rule(std::string_view name) {
  return *std::ranges::find(kRules, name, &AuditRule::name);
}

std::vector<Finding> compare(const AuditSnapshot& snapshot) {
  Comparison c(snapshot);
  for (const ProcessFacts& process : snapshot.processes) compare_process(c, process);
  if (!snapshot.books) {
    c.add("answer", "router", "books", "an answer", snapshot.no_books);
    return c.take();
  }
  compare_router(c);
  for (const client::WorkerBooks& worker : snapshot.books->workers) {
    if (worker.state == "dead") continue;
    if (!worker.answered()) c.add("answer", worker.name, "books", "an answer", no_answer(c, worker));
    if (worker.tokenizer_books) compare_tokenizer_worker(c, worker, *worker.tokenizer_books);
    if (worker.gpu_books) compare_gpu_worker(c, worker, *worker.gpu_books);
  }
  return c.take();
}

std::vector<Finding> seen_twice(const std::vector<Finding>& first, const std::vector<Finding>& second) {
  std::vector<Finding> out;
  for (const Finding& finding : second)
    if (std::ranges::count(first, finding)) out.push_back(finding);
  return out;
}

bool is_idle(const AuditSnapshot& snapshot) {
  const bool ready = std::ranges::all_of(snapshot.processes,
                                         [](const ProcessFacts& p) { return p.alive && p.state == "ready"; });
  return ready && snapshot.books && snapshot.books->router.live == 0 &&
         std::ranges::none_of(snapshot.processes,
                              [&](const ProcessFacts& p) { return unregistered(snapshot, p); });
}

}  // namespace ringmaster::launcher
