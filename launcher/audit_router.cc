// What the router says, against itself, its workers and the processes that run.
#include <algorithm>

#include "launcher/audit_comparison.h"

namespace ringmaster::launcher {
namespace {

using client::WorkerBooks;

void placed_request(Comparison& c, const client::RequestBooks& r) {
  if (r.phase == client::RequestPhase::kWaiting) return;
  if (!r.tokenizer || !r.gpu || *r.tokenizer >= c.books().workers.size() ||
      *r.gpu >= c.books().workers.size())
    return c.add("streams.missing", "router", show(r.epoch), "a pair of workers",
                 "placed on a worker that is gone");
  const WorkerBooks& owner = c.books().workers[*r.tokenizer];
  if (!owner.tokenizer_books || owner.tokenizer_books->unlisted > 0) return;
  if (!find_stream(*owner.tokenizer_books, r.epoch))
    c.add("streams.missing", owner.name, show(r.epoch), "a stream", "none");
}

// Workers that run are known to the router, under the same pid.
void registered(Comparison& c) {
  for (const ProcessFacts& process : c.snapshot().processes) {
    if (!unregistered(c.snapshot(), process) || c.registering(process)) continue;
    if (const WorkerBooks* known = c.worker(process.name))
      c.equal("process", process.name, "pid at the router", static_cast<uint64_t>(process.pid),
              static_cast<uint64_t>(known->pid));
    else
      c.add("process", process.name, "registration", "known to the router",
            process.stopped ? "not; the process is stopped" : "not");
  }
}

}  // namespace

void compare_router(Comparison& c) {
  const client::RouterBooks& books = c.books().router;
  c.equal("requests.balance", "router", "accepted requests", books.ended + books.live, books.accepted);
  c.equal("requests.balance", "router", "live requests", books.requests.size() + books.unlisted, books.live);
  for (size_t i = 0; i < c.books().workers.size(); ++i) {
    const WorkerBooks& w = c.books().workers[i];
    if (books.unlisted > 0 || w.state == "dead") continue;
    const auto placed = std::ranges::count_if(books.requests, [&](const client::RequestBooks& r) {
      return (w.gpu ? r.gpu : r.tokenizer) == i && r.phase != client::RequestPhase::kWaiting;
    });
    c.equal("requests.load", w.name, "requests placed on it", static_cast<uint64_t>(placed), w.live);
  }
  for (const client::RequestBooks& r : books.requests) placed_request(c, r);
  registered(c);
}

}  // namespace ringmaster::launcher
