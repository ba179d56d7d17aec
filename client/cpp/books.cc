#include "client/cpp/books.h"

#include <algorithm>

#include "client/cpp/wire.h"

namespace ringmaster::client::wire {
namespace {

std::string text(const flatbuffers::String* s) {
  return s ? s->str() : std::string();
}

// msg::kNone, or a place beyond the list: none.
std::optional<uint32_t> place(uint32_t index, size_t count) {
  return index < count ? std::optional(index) : std::nullopt;
}

template <typename List>
size_t size(const List* list) {
  return list ? list->size() : 0;
}

// The verifier does not check the range of enums: what a newer build says beyond the last is the last.
template <typename To, typename From>
To phase(From value) {
  return static_cast<To>(std::min(value, From::MAX));
}

std::vector<uint64_t> numbers(const flatbuffers::Vector<uint64_t>* list) {
  return list ? std::vector<uint64_t>(list->begin(), list->end()) : std::vector<uint64_t>();
}

std::vector<SlotBooks> slots(const flatbuffers::Vector<flatbuffers::Offset<msg::SlotBooks>>* list) {
  std::vector<SlotBooks> out;
  if (list)
    for (const msg::SlotBooks* s : *list)
      out.push_back({s->slot(), s->peer()->str(), s->peer_pid(), s->peer_instance(), s->commands(),
                     s->prompts(), s->tokens(), s->waiting(), s->broken()});
  return out;
}

RouterBooks router_books(const msg::RouterBooks& books, size_t workers) {
  RouterBooks out;
  if (books.requests())
    for (const msg::RequestBooks* r : *books.requests())
      out.requests.push_back({r->epoch(), place(r->tokenizer(), workers), place(r->gpu(), workers),
                              phase<RequestPhase>(r->phase())});
  out.unlisted = books.unlisted();
  out.live = books.live();
  out.waiting = books.waiting();
  out.ended_kept = books.ended_kept();
  out.clients = books.clients();
  out.clients_gone = books.clients_gone();
  out.accepted = books.accepted();
  out.ended = books.ended();
  out.queries = numbers(books.queries());
  return out;
}

TokenizerWorkerBooks tokenizer_books(const msg::TokenizerWorkerBooks& books) {
  TokenizerWorkerBooks out;
  if (books.streams())
    for (const msg::StreamBooks* s : *books.streams())
      out.streams.push_back(
          {s->epoch(), place(s->link(), size(books.slots())), phase<StreamPhase>(s->phase())});
  out.unlisted = books.unlisted();
  out.live = books.live();
  out.ended_kept = books.ended_kept();
  out.clients = books.clients();
  out.assigned = books.assigned();
  out.ended = books.ended();
  out.forgotten = books.forgotten();
  out.encoding = books.encoding();
  out.queries = numbers(books.queries());
  out.slots = slots(books.slots());
  out.attaching = books.attaching();
  return out;
}

GpuWorkerBooks gpu_books(const msg::GpuWorkerBooks& books) {
  GpuWorkerBooks out;
  if (books.sequences())
    for (const msg::SequenceBooks* s : *books.sequences())
      out.sequences.push_back(
          {s->epoch(), s->slot(), s->blocks(), phase<SequencePhase>(s->phase()), s->lane()});
  out.unlisted = books.unlisted();
  out.live = books.live();
  out.lanes_taken = books.lanes_taken();
  out.lanes = books.lanes();
  out.in_flight = books.in_flight();
  out.blocks = books.blocks();
  out.blocks_free = books.blocks_free();
  out.blocks_cached = books.blocks_cached();
  out.blocks_used = books.blocks_used();
  out.blocks_held = books.blocks_held();
  out.references = books.references();
  out.table_references = books.table_references();
  out.deferred = books.deferred();
  out.slots = slots(books.slots());
  out.slots_total = books.slots_total();
  out.fault = text(books.fault());
  return out;
}

WorkerBooks worker_books(const msg::AuditedWorker& worker) {
  WorkerBooks out;
  out.name = worker.name()->str();
  out.gpu = worker.gpu();
  out.pid = worker.pid();
  out.instance = worker.instance();
  out.state = worker.state()->str();
  out.live = worker.live();
  if (worker.linked())
    for (const msg::LinkedTo* link : *worker.linked())
      out.linked.push_back({link->gpu_worker()->str(), link->gpu_instance()});
  if (!worker.books() || worker.books()->size() == 0) return out;
  const msg::WorkerBooks& books = *worker.books_nested_root();
  if (!worker.gpu() && books.tokenizer()) out.tokenizer_books = tokenizer_books(*books.tokenizer());
  if (worker.gpu() && books.gpu()) out.gpu_books = gpu_books(*books.gpu());
  return out;
}

}  // namespace

Result<ClusterBooks> cluster_books(const msg::AuditReply& reply) {
  if (reply.code() != msg::Code::ok) return Error{msg::to_code(reply.code()), text(reply.message())};
  ClusterBooks out;
  out.incarnation = reply.incarnation();
  if (reply.router()) out.router = router_books(*reply.router(), size(reply.workers()));
  if (reply.workers())
    for (const msg::AuditedWorker* worker : *reply.workers()) out.workers.push_back(worker_books(*worker));
  return out;
}

msg::Bytes audit_query(flatbuffers::FlatBufferBuilder& b, uint64_t tag) {
  b.Clear();
  return msg::seal<msg::RouterMessage>(b, msg::RouterBody::AuditQuery, msg::CreateAuditQuery(b, tag).Union());
}

}  // namespace ringmaster::client::wire
