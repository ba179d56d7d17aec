#include "launcher/audit.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

namespace ringmaster::launcher {
namespace {

using client::GpuWorkerBooks;
using client::SequencePhase;
using client::SlotBooks;
using client::StreamPhase;
using client::TokenizerWorkerBooks;
using client::WorkerBooks;

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

std::string text(uint64_t number) {
  return std::to_string(number);
}

// Epochs as people read them in logs: incarnation:counter.
std::string show(Epoch epoch) {
  return "request " + text(epoch >> 32) + ":" + text(epoch & 0xFFFFFFFF);
}

bool is_worker(const ProcessFacts& process) {
  return process.name.starts_with("gpu-worker") || process.name.starts_with("tokenizer-worker");
}

// By name; a dead one is none.
const WorkerBooks* find_worker(const AuditSnapshot& snapshot, std::string_view name) {
  const auto found = std::ranges::find(snapshot.books->workers, name, &WorkerBooks::name);
  return found == snapshot.books->workers.end() || found->state == "dead" ? nullptr : &*found;
}

// A worker that runs, and that the router does not know (or only its predecessor).
bool unregistered(const AuditSnapshot& snapshot, const ProcessFacts& process) {
  if (!is_worker(process) || process.state != "ready" || !process.alive) return false;
  const WorkerBooks* known = find_worker(snapshot, process.name);
  return !known || known->pid != process.pid;
}

class Comparison {
 public:
  explicit Comparison(const AuditSnapshot& snapshot) : s_(snapshot) {}

  std::vector<Finding> run() {
    for (const ProcessFacts& process : s_.processes) check_process(process);
    if (!s_.books) {
      add("answer", "router", "books", "an answer", s_.no_books);
      return std::move(findings_);
    }
    router();
    for (const WorkerBooks& worker : s_.books->workers) {
      if (worker.state == "dead") continue;
      if (!worker.answered()) add("answer", worker.name, "books", "an answer", no_answer(worker));
      if (worker.tokenizer_books) tokenizer(worker, *worker.tokenizer_books);
      if (worker.gpu_books) gpu(worker, *worker.gpu_books);
    }
    return std::move(findings_);
  }

 private:
  void add(std::string_view rule, std::string process, std::string thing, std::string expected,
           std::string found) {
    findings_.push_back({std::string(audit_rule(rule).name), std::move(process), std::move(thing),
                         std::move(expected), std::move(found)});
  }
  void equal(std::string_view rule, const std::string& process, std::string thing, uint64_t expected,
             uint64_t found) {
    if (expected != found) add(rule, process, std::move(thing), text(expected), text(found));
  }

  const ProcessFacts* facts(std::string_view name) const {
    const auto found = std::ranges::find(s_.processes, name, &ProcessFacts::name);
    return found == s_.processes.end() ? nullptr : &*found;
  }
  std::string no_answer(const WorkerBooks& worker) const {
    const ProcessFacts* process = facts(worker.name);
    return process && process->stopped ? "no answer; the process is stopped" : "no answer";
  }
  const WorkerBooks* worker(std::string_view name) const { return find_worker(s_, name); }
  // It will be registered: it, or the router, has only just started.
  bool registering(const ProcessFacts& process) const {
    if (process.stopped || !unregistered(s_, process)) return false;
    const ProcessFacts* router = facts("router");
    return process.age < s_.registration || (router && router->age < s_.registration);
  }
  bool registering(std::string_view name) const {
    const ProcessFacts* process = facts(name);
    return process && registering(*process);
  }
  // A worker that has not met a new router yet still holds what belonged to the former one.
  bool idle() const {
    return s_.books->router.live == 0 &&
           std::ranges::none_of(s_.processes, [&](const ProcessFacts& p) { return registering(p); });
  }

  // ---- router ----

  void router() {
    const client::RouterBooks& books = s_.books->router;
    equal("requests.balance", "router", "accepted requests", books.ended + books.live, books.accepted);
    equal("requests.balance", "router", "live requests", books.requests.size() + books.unlisted, books.live);
    for (size_t i = 0; i < s_.books->workers.size(); ++i) {
      const WorkerBooks& w = s_.books->workers[i];
      if (books.unlisted > 0 || w.state == "dead") continue;
      const auto placed = std::ranges::count_if(books.requests, [&](const client::RequestBooks& r) {
        return (w.gpu ? r.gpu : r.tokenizer) == i && r.phase != client::RequestPhase::kWaiting;
      });
      equal("requests.load", w.name, "requests placed on it", static_cast<uint64_t>(placed), w.live);
    }
    for (const client::RequestBooks& r : books.requests) placed_request(r);
    registered();
  }

  void placed_request(const client::RequestBooks& r) {
    if (r.phase == client::RequestPhase::kWaiting) return;
    if (!r.tokenizer || !r.gpu || *r.tokenizer >= s_.books->workers.size() ||
        *r.gpu >= s_.books->workers.size())
      return add("streams.missing", "router", show(r.epoch), "a pair of workers",
                 "placed on a worker that is gone");
    const WorkerBooks& owner = s_.books->workers[*r.tokenizer];
    if (!owner.tokenizer_books || owner.tokenizer_books->unlisted > 0) return;
    if (!find_stream(*owner.tokenizer_books, r.epoch))
      add("streams.missing", owner.name, show(r.epoch), "a stream", "none");
  }

  // Workers that run are known to the router, under the same pid.
  void registered() {
    for (const ProcessFacts& process : s_.processes) {
      if (!unregistered(s_, process) || registering(process)) continue;
      if (const WorkerBooks* known = worker(process.name))
        equal("process", process.name, "pid at the router", static_cast<uint64_t>(process.pid),
              static_cast<uint64_t>(known->pid));
      else
        add("process", process.name, "registration", "known to the router",
            process.stopped ? "not; the process is stopped" : "not");
    }
  }

  // ---- tokenizer-workers ----

  static const client::StreamBooks* find_stream(const TokenizerWorkerBooks& books, Epoch epoch) {
    const auto found = std::ranges::find(books.streams, epoch, &client::StreamBooks::epoch);
    return found == books.streams.end() ? nullptr : &*found;
  }

  void tokenizer(const WorkerBooks& w, const TokenizerWorkerBooks& books) {
    equal("streams.balance", w.name, "assigned requests", books.ended + books.forgotten + books.live,
          books.assigned);
    equal("streams.balance", w.name, "live streams", books.streams.size() + books.unlisted, books.live);
    for (const client::StreamBooks& stream : books.streams) stream_owner(w, stream);
    for (const uint64_t tag : books.queries)
      if (!std::ranges::count(s_.books->router.queries, tag))
        add("queries.owner", w.name, "tokenize query " + text(tag), "awaited by the router", "not");
    links(w, books);
    for (const client::StreamBooks& stream : books.streams)
      if (stream.phase == StreamPhase::kRunning) sequence_of(w, books, stream);
    if (idle()) {
      equal("idle", w.name, "streams", 0, books.live);
      if (books.queries.empty()) equal("idle", w.name, "prompts in the encode pool", 0, books.encoding);
      for (const SlotBooks& slot : books.slots)
        equal("idle", w.name, "commands that wait for " + slot.peer, 0, slot.waiting);
    }
    const ProcessFacts* process = facts(w.name);
    if (!process || process->pid != w.pid || books.attaching > 0) return;
    memory(*process, books.slots.size(), books.slots.size(), books.slots.size());
  }

  void stream_owner(const WorkerBooks& w, const client::StreamBooks& stream) {
    const client::RouterBooks& router = s_.books->router;
    const auto live = std::ranges::find(router.requests, stream.epoch, &client::RequestBooks::epoch);
    if (live == router.requests.end()) {
      if (router.unlisted == 0) add("streams.owner", w.name, show(stream.epoch), "live in the router", "not");
      return;
    }
    const auto index = static_cast<uint32_t>(&w - s_.books->workers.data());
    if (live->tokenizer != index)
      add("streams.owner", w.name, show(stream.epoch), "placed on " + w.name,
          live->tokenizer ? "placed on " + s_.books->workers[*live->tokenizer].name : "placed on none");
  }

  void links(const WorkerBooks& w, const TokenizerWorkerBooks& books) {
    for (const SlotBooks& slot : books.slots) {
      if (registering(slot.peer)) continue;
      const WorkerBooks* peer = worker(slot.peer);
      if (!peer || peer->instance != slot.peer_instance) {
        add("slots.pair", w.name, "link to " + slot.peer, "a living gpu-worker", "an instance that is gone");
        continue;
      }
      const bool known = std::ranges::any_of(w.linked, [&](const WorkerBooks::LinkedTo& link) {
        return link.gpu_worker == slot.peer && link.gpu_instance == slot.peer_instance;
      });
      if (!known) add("links.known", w.name, "link to " + slot.peer, "known to the router", "not");
      if (!peer->gpu_books) continue;
      const SlotBooks* other = slot_of(peer->gpu_books->slots, slot.slot);
      if (!other || other->peer != w.name)
        add("slots.pair", slot.peer, "slot " + text(slot.slot), "held by " + w.name,
            other ? "held by " + other->peer : "free");
      else
        rings(w.name, slot, *other);
    }
    for (const WorkerBooks::LinkedTo& link : w.linked)
      if (std::ranges::none_of(books.slots, [&](const SlotBooks& slot) {
            return slot.peer == link.gpu_worker && slot.peer_instance == link.gpu_instance;
          }))
        add("links.known", w.name, "link to " + link.gpu_worker, "there, as the router knows it", "none");
  }

  static const SlotBooks* slot_of(const std::vector<SlotBooks>& slots, uint32_t number) {
    const auto found = std::ranges::find(slots, number, &SlotBooks::slot);
    return found == slots.end() ? nullptr : &*found;
  }

  // Positions only grow, so the same pair of them in two rounds means that nothing has moved.
  void rings(const std::string& tokenizer, const SlotBooks& mine, const SlotBooks& gpu) {
    const std::string slot = " ring of slot " + text(mine.slot) + ", " + tokenizer;
    if (gpu.broken) {
      add("rings.read", mine.peer, "slot " + text(mine.slot) + ", " + tokenizer, "read", "broken: not read");
      return;
    }
    equal("rings.read", mine.peer, "command" + slot, mine.commands, gpu.commands);
    equal("rings.read", mine.peer, "prompt" + slot, mine.prompts, gpu.prompts);
    equal("rings.read", tokenizer, "token ring of slot " + text(mine.slot) + ", " + mine.peer, gpu.tokens,
          mine.tokens);
  }

  void sequence_of(const WorkerBooks& w, const TokenizerWorkerBooks& books,
                   const client::StreamBooks& stream) {
    if (!stream.link || *stream.link >= books.slots.size()) return;
    const SlotBooks& mine = books.slots[*stream.link];
    const WorkerBooks* peer = worker(mine.peer);
    if (!peer || peer->instance != mine.peer_instance || !peer->gpu_books) return;
    const GpuWorkerBooks& there = *peer->gpu_books;
    const SlotBooks* other = slot_of(there.slots, mine.slot);
    if (there.unlisted > 0 || !other || other->peer != w.name) return;
    // Its start or its end may still be on the way.
    const bool quiet = mine.waiting == 0 && other->waiting == 0 && mine.commands == other->commands &&
                       mine.tokens == other->tokens;
    if (quiet && !std::ranges::count(there.sequences, stream.epoch, &client::SequenceBooks::epoch))
      add("sequences.missing", peer->name, show(stream.epoch), "a sequence for " + w.name, "none");
  }

  // ---- gpu-workers ----

  void gpu(const WorkerBooks& w, const GpuWorkerBooks& books) {
    if (!books.fault.empty())
      add("books.fault", w.name, "check", "no fault", books.fault.substr(0, books.fault.find('\n')));
    equal("blocks.total", w.name, "KV blocks", books.blocks,
          uint64_t{books.blocks_free} + books.blocks_cached + books.blocks_used);
    equal("blocks.references", w.name, "references", books.table_references + books.deferred,
          books.references);
    equal("blocks.used", w.name, "used KV blocks", books.blocks_held, books.blocks_used);
    if (books.unlisted == 0) sequences(w, books);
    for (const SlotBooks& slot : books.slots) holder(w, slot);
    if (idle()) {
      equal("idle", w.name, "sequences", 0, books.live);
      equal("idle", w.name, "lanes", 0, books.lanes_taken);
      equal("idle", w.name, "used KV blocks", 0, books.blocks_used);
      equal("idle", w.name, "releases that wait for a step", 0, books.deferred);
      equal("idle", w.name, "steps in flight", 0, books.in_flight);
      for (const SlotBooks& slot : books.slots)
        equal("idle", w.name, "records that wait for " + slot.peer, 0, slot.waiting);
    }
    const ProcessFacts* process = facts(w.name);
    if (process && process->pid == w.pid) memory(*process, s_.slots, books.slots.size(), books.slots.size());
  }

  void sequences(const WorkerBooks& w, const GpuWorkerBooks& books) {
    uint64_t entries = 0, lanes = 0;
    for (const client::SequenceBooks& s : books.sequences) {
      entries += s.blocks;
      lanes += s.lane;
      if (s.phase == SequencePhase::kRunning && !s.lane)
        add("lanes.held", w.name, show(s.epoch), "a lane, since it runs", "none");
      if (s.phase != SequencePhase::kFinished) sequence_owner(w, books, s);
    }
    equal("blocks.references", w.name, "entries of all block tables", entries, books.table_references);
    equal("lanes.held", w.name, "lanes taken", lanes, books.lanes_taken);
  }

  void sequence_owner(const WorkerBooks& w, const GpuWorkerBooks& books, const client::SequenceBooks& s) {
    const SlotBooks* slot = slot_of(books.slots, s.slot);
    if (!slot)
      return add("sequences.owner", w.name, show(s.epoch), "the holder of slot " + text(s.slot), "none");
    const WorkerBooks* owner = worker(slot->peer);
    if (!owner || !owner->tokenizer_books || owner->tokenizer_books->unlisted > 0) return;
    const client::StreamBooks* stream = find_stream(*owner->tokenizer_books, s.epoch);
    if (!stream || stream->phase == StreamPhase::kEncoding)
      add("sequences.owner", w.name, show(s.epoch), "a running stream of " + slot->peer,
          stream ? "it is still being encoded there" : "none");
  }

  void holder(const WorkerBooks& w, const SlotBooks& slot) {
    const std::string thing = "slot " + text(slot.slot);
    const ProcessFacts* process = facts(slot.peer);
    if (process && (!process->alive || process->pid != slot.peer_pid))
      return add("slots.pair", w.name, thing, "free, or held by the living " + slot.peer,
                 "held by process " + text(static_cast<uint64_t>(slot.peer_pid)) + ", which is gone");
    const WorkerBooks* owner = worker(slot.peer);
    if (!owner || !owner->tokenizer_books) return;
    const bool paired = std::ranges::any_of(owner->tokenizer_books->slots, [&](const SlotBooks& link) {
      return link.slot == slot.slot && link.peer == w.name && link.peer_instance == w.instance;
    });
    if (!paired) add("slots.pair", w.name, thing, "a link of " + slot.peer, "none");
  }

  // ---- what the kernel says ----

  void memory(const ProcessFacts& p, uint64_t slots, uint64_t peers, uint64_t pidfds) {
    equal("memory", p.name, "open slots", slots, p.descriptors.slots);
    equal("memory", p.name, "mapped slots", slots, p.mapped_slots);
    equal("memory", p.name, "open doorbells", peers + 1, p.descriptors.bells);
    equal("memory", p.name, "mapped doorbells", peers + 1, p.mapped_bells);
    equal("descriptors", p.name, "pidfds", pidfds, p.descriptors.pidfds);
  }

  void check_process(const ProcessFacts& p) {
    if (p.state != "ready" || !p.alive)
      return add("process", p.name, "state", "ready", p.alive ? p.state : p.state + ", process gone");
    if (p.name == "supervisor") {
      if (p.stopped) add("process", p.name, "state", "running", "stopped");
      const auto living = std::ranges::count_if(s_.processes, [](const ProcessFacts& child) {
        return child.name != "supervisor" && child.pid > 0;
      });
      equal("descriptors", p.name, "pidfds", static_cast<uint64_t>(living) + 1, p.descriptors.pidfds);
      equal("descriptors", p.name, "threads", 1, p.threads);
    } else if (p.name == "router") {
      router_process(p);
    } else if (p.name.starts_with("gpu-worker")) {
      equal("descriptors", p.name, "handshakes of slots", 0, p.descriptors.ring_connections);
    }
    as_before(p);
  }

  // What belongs to no slot and no peer never changes in the life of a process, and its successor has the
  // same.
  void as_before(const ProcessFacts& p) {
    const auto before = std::ranges::find(s_.before, p.name, &ProcessFacts::name);
    if (before == s_.before.end()) return;
    // Clients come and go; pipes are the supervisor's. The others have rules of their own.
    constexpr std::string_view kOfPeers[] = {"slots",  "pidfds", "worker_connections", "client_connections",
                                             "others", "total"};
    for (const DescriptorKind& kind : kDescriptorKinds)
      if (!std::ranges::count(kOfPeers, kind.name) && !(is_worker(p) && kind.name == "bells"))
        equal("since", p.name, std::string(kind.name), before->descriptors.*kind.count,
              p.descriptors.*kind.count);
    equal("since", p.name, "threads", before->threads, p.threads);
  }

  void router_process(const ProcessFacts& p) {
    equal("memory", p.name, "open slots", 0, p.descriptors.slots);
    equal("memory", p.name, "mapped slots", 0, p.mapped_slots);
    equal("descriptors", p.name, "pidfds", 0, p.descriptors.pidfds);
    const auto workers = std::ranges::count_if(s_.processes, [](const ProcessFacts& process) {
      return process.alive && process.name != "supervisor" && process.name != "router";
    });
    equal("descriptors", p.name, "connections of workers", static_cast<uint64_t>(workers),
          p.descriptors.worker_connections);
  }

  const AuditSnapshot& s_;
  std::vector<Finding> findings_;
};

}  // namespace

std::span<const AuditRule> audit_rules() {
  return kRules;
}

const AuditRule& audit_rule(std::string_view name) {
  return *std::ranges::find(kRules, name, &AuditRule::name);
}

std::vector<Finding> compare(const AuditSnapshot& snapshot) {
  return Comparison(snapshot).run();
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
