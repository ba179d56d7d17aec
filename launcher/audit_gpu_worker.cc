// What a gpu-worker says: its blocks and lanes against its sequences, these and its slots against their
// owners.
#include <algorithm>

#include "launcher/audit_comparison.h"

namespace ringmaster::launcher {
namespace {

using client::GpuWorkerBooks;
using client::SequencePhase;
using client::SlotBooks;
using client::StreamPhase;
using client::WorkerBooks;

void sequence_owner(Comparison& c, const WorkerBooks& w, const GpuWorkerBooks& books,
                    const client::SequenceBooks& s) {
  const SlotBooks* slot = find_slot(books.slots, s.slot);
  if (!slot)
    return c.add("sequences.owner", w.name, show(s.epoch), "the holder of slot " + text(s.slot), "none");
  const WorkerBooks* owner = c.worker(slot->peer);
  if (!owner || !owner->tokenizer_books || owner->tokenizer_books->unlisted > 0) return;
  const client::StreamBooks* stream = find_stream(*owner->tokenizer_books, s.epoch);
  if (!stream || stream->phase == StreamPhase::kEncoding)
    c.add("sequences.owner", w.name, show(s.epoch), "a running stream of " + slot->peer,
          stream ? "it is still being encoded there" : "none");
}

void sequences(Comparison& c, const WorkerBooks& w, const GpuWorkerBooks& books) {
  uint64_t entries = 0, lanes = 0;
  for (const client::SequenceBooks& s : books.sequences) {
    entries += s.blocks;
    lanes += s.lane;
    if (s.phase == SequencePhase::kRunning && !s.lane)
      c.add("lanes.held", w.name, show(s.epoch), "a lane, since it runs", "none");
    if (s.phase != SequencePhase::kFinished) sequence_owner(c, w, books, s);
  }
  c.equal("blocks.references", w.name, "entries of all block tables", entries, books.table_references);
  c.equal("lanes.held", w.name, "lanes taken", lanes, books.lanes_taken);
}

void holder(Comparison& c, const WorkerBooks& w, const SlotBooks& slot) {
  const std::string thing = "slot " + text(slot.slot);
  const ProcessFacts* process = c.facts(slot.peer);
  if (process && (!process->alive || process->pid != slot.peer_pid))
    return c.add("slots.pair", w.name, thing, "free, or held by the living " + slot.peer,
                 "held by process " + text(static_cast<uint64_t>(slot.peer_pid)) + ", which is gone");
  const WorkerBooks* owner = c.worker(slot.peer);
  if (!owner || !owner->tokenizer_books) return;
  const bool paired = std::ranges::any_of(owner->tokenizer_books->slots, [&](const SlotBooks& link) {
    return link.slot == slot.slot && link.peer == w.name && link.peer_instance == w.instance;
  });
  if (!paired) c.add("slots.pair", w.name, thing, "a link of " + slot.peer, "none");
}

}  // namespace

void compare_gpu_worker(Comparison& c, const WorkerBooks& w, const GpuWorkerBooks& books) {
  if (!books.fault.empty())
    c.add("books.fault", w.name, "check", "no fault", books.fault.substr(0, books.fault.find('\n')));
  c.equal("blocks.total", w.name, "KV blocks", books.blocks,
          uint64_t{books.blocks_free} + books.blocks_cached + books.blocks_used);
  c.equal("blocks.references", w.name, "references", books.table_references + books.deferred,
          books.references);
  c.equal("blocks.used", w.name, "used KV blocks", books.blocks_held, books.blocks_used);
  if (books.unlisted == 0) sequences(c, w, books);
  for (const SlotBooks& slot : books.slots) holder(c, w, slot);
  if (c.idle()) {
    c.equal("idle", w.name, "sequences", 0, books.live);
    c.equal("idle", w.name, "lanes", 0, books.lanes_taken);
    c.equal("idle", w.name, "used KV blocks", 0, books.blocks_used);
    c.equal("idle", w.name, "releases that wait for a step", 0, books.deferred);
    c.equal("idle", w.name, "steps in flight", 0, books.in_flight);
    for (const SlotBooks& slot : books.slots)
      c.equal("idle", w.name, "records that wait for " + slot.peer, 0, slot.waiting);
  }
  const ProcessFacts* process = c.facts(w.name);
  if (process && process->pid == w.pid) compare_memory(c, *process, c.snapshot().slots, books.slots.size());
}

}  // namespace ringmaster::launcher
