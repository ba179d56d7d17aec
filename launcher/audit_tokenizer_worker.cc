// What a tokenizer-worker says: its streams against the router, its links and rings against the gpu-workers.
#include <algorithm>

#include "launcher/audit_comparison.h"

namespace ringmaster::launcher {
namespace {

using client::GpuWorkerBooks;
using client::SlotBooks;
using client::StreamPhase;
using client::TokenizerWorkerBooks;
using client::WorkerBooks;

void stream_owner(Comparison& c, const WorkerBooks& w, const client::StreamBooks& stream) {
  const client::RouterBooks& router = c.books().router;
  const auto live = std::ranges::find(router.requests, stream.epoch, &client::RequestBooks::epoch);
  if (live == router.requests.end()) {
    if (router.unlisted == 0) c.add("streams.owner", w.name, show(stream.epoch), "live in the router", "not");
    return;
  }
  const auto index = static_cast<uint32_t>(&w - c.books().workers.data());
  if (live->tokenizer != index)
    c.add("streams.owner", w.name, show(stream.epoch), "placed on " + w.name,
          live->tokenizer ? "placed on " + c.books().workers[*live->tokenizer].name : "placed on none");
}

// Positions only grow, so the same pair of them in two rounds means that nothing has moved.
void rings(Comparison& c, const std::string& tokenizer, const SlotBooks& mine, const SlotBooks& gpu) {
  const std::string slot = " ring of slot " + text(mine.slot) + ", " + tokenizer;
  if (gpu.broken) {
    c.add("rings.read", mine.peer, "slot " + text(mine.slot) + ", " + tokenizer, "read", "broken: not read");
    return;
  }
  c.equal("rings.read", mine.peer, "command" + slot, mine.commands, gpu.commands);
  c.equal("rings.read", mine.peer, "prompt" + slot, mine.prompts, gpu.prompts);
  c.equal("rings.read", tokenizer, "token ring of slot " + text(mine.slot) + ", " + mine.peer, gpu.tokens,
          mine.tokens);
}

void links(Comparison& c, const WorkerBooks& w, const TokenizerWorkerBooks& books) {
  for (const SlotBooks& slot : books.slots) {
    if (c.registering(slot.peer)) continue;
    const WorkerBooks* peer = c.worker(slot.peer);
    if (!peer || peer->instance != slot.peer_instance) {
      c.add("slots.pair", w.name, "link to " + slot.peer, "a living gpu-worker", "an instance that is gone");
      continue;
    }
    const bool known = std::ranges::any_of(w.linked, [&](const WorkerBooks::LinkedTo& link) {
      return link.gpu_worker == slot.peer && link.gpu_instance == slot.peer_instance;
    });
    if (!known) c.add("links.known", w.name, "link to " + slot.peer, "known to the router", "not");
    if (!peer->gpu_books) continue;
    const SlotBooks* other = find_slot(peer->gpu_books->slots, slot.slot);
    if (!other || other->peer != w.name)
      c.add("slots.pair", slot.peer, "slot " + text(slot.slot), "held by " + w.name,
            other ? "held by " + other->peer : "free");
    else
      rings(c, w.name, slot, *other);
  }
  for (const WorkerBooks::LinkedTo& link : w.linked)
    if (std::ranges::none_of(books.slots, [&](const SlotBooks& slot) {
          return slot.peer == link.gpu_worker && slot.peer_instance == link.gpu_instance;
        }))
      c.add("links.known", w.name, "link to " + link.gpu_worker, "there, as the router knows it", "none");
}

void sequence_of(Comparison& c, const WorkerBooks& w, const TokenizerWorkerBooks& books,
                 const client::StreamBooks& stream) {
  if (!stream.link || *stream.link >= books.slots.size()) return;
  const SlotBooks& mine = books.slots[*stream.link];
  const WorkerBooks* peer = c.worker(mine.peer);
  if (!peer || peer->instance != mine.peer_instance || !peer->gpu_books) return;
  const GpuWorkerBooks& there = *peer->gpu_books;
  const SlotBooks* other = find_slot(there.slots, mine.slot);
  if (there.unlisted > 0 || !other || other->peer != w.name) return;
  // Its start or its end may still be on the way.
  const bool quiet = mine.waiting == 0 && other->waiting == 0 && mine.commands == other->commands &&
                     mine.tokens == other->tokens;
  if (quiet && !std::ranges::count(there.sequences, stream.epoch, &client::SequenceBooks::epoch))
    c.add("sequences.missing", peer->name, show(stream.epoch), "a sequence for " + w.name, "none");
}

}  // namespace

void compare_tokenizer_worker(Comparison& c, const WorkerBooks& w, const TokenizerWorkerBooks& books) {
  c.equal("streams.balance", w.name, "assigned requests", books.ended + books.forgotten + books.live,
          books.assigned);
  c.equal("streams.balance", w.name, "live streams", books.streams.size() + books.unlisted, books.live);
  for (const client::StreamBooks& stream : books.streams) stream_owner(c, w, stream);
  for (const uint64_t tag : books.queries)
    if (!std::ranges::count(c.books().router.queries, tag))
      c.add("queries.owner", w.name, "tokenize query " + text(tag), "awaited by the router", "not");
  links(c, w, books);
  for (const client::StreamBooks& stream : books.streams)
    if (stream.phase == StreamPhase::kRunning) sequence_of(c, w, books, stream);
  if (c.idle()) {
    c.equal("idle", w.name, "streams", 0, books.live);
    if (books.queries.empty()) c.equal("idle", w.name, "prompts in the encode pool", 0, books.encoding);
    for (const SlotBooks& slot : books.slots)
      c.equal("idle", w.name, "commands that wait for " + slot.peer, 0, slot.waiting);
  }
  const ProcessFacts* process = c.facts(w.name);
  if (!process || process->pid != w.pid || books.attaching > 0) return;
  compare_memory(c, *process, books.slots.size(), books.slots.size());
}

}  // namespace ringmaster::launcher
