#include "router/audit.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "router/status_reply.h"

namespace ringmaster::router {
namespace {

static_assert(static_cast<int>(State::kWaiting) == static_cast<int>(msg::RequestPhase::waiting) &&
              static_cast<int>(State::kRunning) == static_cast<int>(msg::RequestPhase::running) &&
              static_cast<int>(State::kEnding) == static_cast<int>(msg::RequestPhase::ending) &&
              static_cast<int>(State::kEnded) == static_cast<int>(msg::RequestPhase::ended));

// A former self of a worker is not in the list: whoever still has it has a request of the dead.
uint32_t place(const WorkerPtr& worker, const std::vector<WorkerPtr>& all) {
  const auto found = worker ? std::ranges::find(all, worker) : all.end();
  return found == all.end() ? msg::kNone : static_cast<uint32_t>(found - all.begin());
}

std::unique_ptr<msg::AuditedWorkerT> describe(const Worker& worker, const WorkerRegistry& registry) {
  auto out = std::make_unique<msg::AuditedWorkerT>();
  out->name = worker.name;
  out->gpu = worker.is_gpu();
  out->pid = worker.pid;
  out->instance = worker.instance;
  out->state = state_of(worker, registry);
  out->live = worker.live;
  for (const Link& link : worker.links) {
    out->linked.push_back(std::make_unique<msg::LinkedToT>());
    out->linked.back()->gpu_worker = link.gpu_worker;
    out->linked.back()->gpu_instance = link.gpu_instance;
  }
  return out;
}

}  // namespace

msg::RouterBooksT Audits::own_books() const {
  msg::RouterBooksT out;
  std::vector<Epoch> epochs = table_.select([](const Request& r) { return r.live(); });
  std::ranges::sort(epochs);
  const size_t count = std::min(epochs.size(), msg::kMaxListed);
  for (size_t i = 0; i < count; ++i) {
    const Request& r = *table_.find(epochs[i]);
    out.requests.emplace_back(r.epoch, place(r.tokenizer, registry_.all()), place(r.gpu, registry_.all()),
                              static_cast<msg::RequestPhase>(r.state()));
  }
  out.unlisted = static_cast<uint32_t>(epochs.size() - count);
  out.live = static_cast<uint32_t>(table_.live());
  out.waiting = static_cast<uint32_t>(life_.waiting());
  out.ended_kept = static_cast<uint32_t>(table_.size() - table_.live());
  out.clients = static_cast<uint32_t>(table_.clients());
  out.clients_gone = static_cast<uint32_t>(table_.clients_gone());
  out.accepted = counters_[Counter::kRequestsAccepted];
  for (const Counter ending : {Counter::kEndedStop, Counter::kEndedLength, Counter::kEndedCancelled,
                               Counter::kEndedDeadline, Counter::kEndedRefused, Counter::kEndedError})
    out.ended += counters_[ending];
  out.queries = queries_.tags();
  return out;
}

void Audits::refuse(std::string_view route, uint64_t tag, Code code, const char* why) {
  flatbuffers::FlatBufferBuilder b(256);
  const auto message = b.CreateString(why);
  const auto body = msg::CreateAuditReply(b, tag, msg::to_wire(code), message, incarnation_);
  replies_.to_client(route, msg::seal<msg::ClientMessage>(b, msg::ClientBody::AuditReply, body.Union()));
}

void Audits::ask(std::string_view route, const msg::AuditQuery& query, Nanos now) {
  if (open_ || now < next_at_)
    return refuse(route, query.tag(), Code::kOverloaded, "another audit is on its way; ask again");
  next_at_ = now + kAuditSpacing;
  OpenAudit& open = open_.emplace();
  open.route = std::string(route);
  open.tag = next_tag_++;
  open.due = now + kAuditLimit;
  open.reply.tag = query.tag();
  open.reply.incarnation = incarnation_;
  // Before any worker counts: what it then knows and we do not is newer than our books.
  open.reply.router = std::make_unique<msg::RouterBooksT>(own_books());
  for (const WorkerPtr& worker : registry_.all()) {
    open.reply.workers.push_back(describe(*worker, registry_));
    const bool asked =
        worker->state != Worker::State::kDead && replies_.audit(*worker, open.tag) == actor::Sent::kOk;
    open.asked.push_back(asked ? worker : nullptr);
    open.unanswered += asked;
  }
  if (open.unanswered == 0) finish();
}

void Audits::answer(const Worker& from, const msg::Audited& answer) {
  if (!open_ || answer.tag() != open_->tag) return;
  const auto asked =
      std::ranges::find_if(open_->asked, [&](const WorkerPtr& worker) { return worker.get() == &from; });
  if (asked == open_->asked.end()) return;
  msg::AuditedWorkerT& worker = *open_->reply.workers[static_cast<size_t>(asked - open_->asked.begin())];
  // Beyond that the reply could not be sent; it then says that this worker has not answered.
  if (open_->bytes + answer.books()->size() <= kMaxAuditBytes)
    worker.books.assign(answer.books()->begin(), answer.books()->end());
  open_->bytes += worker.books.size();
  asked->reset();
  if (--open_->unanswered == 0) finish();
}

void Audits::run_due(Nanos now) {
  if (open_ && open_->due <= now) finish();
}

void Audits::finish() {
  const OpenAudit done = std::move(*std::exchange(open_, std::nullopt));
  flatbuffers::FlatBufferBuilder b(done.bytes + 4096);
  const auto body = msg::CreateAuditReply(b, &done.reply);
  replies_.to_client(done.route, msg::seal<msg::ClientMessage>(b, msg::ClientBody::AuditReply, body.Union()));
}

}  // namespace ringmaster::router
