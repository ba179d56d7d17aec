#include "tokenizer-worker/tokenizer_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "tokenizer-worker/audit.h"

namespace ringmaster::tokenizer_worker {
namespace {

constexpr actor::Channel kRouter = 0;
// Commands that a full ring held back: nobody rings when there is room. About a decode step.
constexpr Nanos kRetryCommands = kMillisecond;

}  // namespace

TokenizerWorker::TokenizerWorker(WorkerIdentity identity, const WorkerTimes& times, Requests& requests,
                                 EncodePool& pool, RingLinks& links, Attacher& attacher,
                                 actor::Outbox& outbox, Counters& counters)
    : identity_(std::move(identity)),
      times_(times),
      requests_(requests),
      pool_(pool),
      links_(links),
      attacher_(attacher),
      outbox_(outbox),
      counters_(counters) {}

void TokenizerWorker::receive(actor::Channel, std::string_view, actor::Bytes message, Nanos now) {
  const auto opened = msg::open<msg::TokenizerWorkerMessage>(message);
  if (!opened) {
    counters_.add(Counter::kMessagesMalformed);
    return log::error("from the router: {}", opened.error().message);
  }
  const msg::TokenizerWorkerMessage& body = **opened;
  switch (body.body_type()) {
    case msg::TokenizerWorkerBody::GpuWorkers:
      return on_gpu_workers(*body.body_as_GpuWorkers(), now);
    case msg::TokenizerWorkerBody::Assign:
      return requests_.assign(*body.body_as_Assign(), now);
    case msg::TokenizerWorkerBody::AckedEpochs:
      return requests_.acknowledge(*body.body_as_AckedEpochs());
    case msg::TokenizerWorkerBody::Resend:
      return requests_.resend(*body.body_as_Resend(), now);
    case msg::TokenizerWorkerBody::End:
      return requests_.end(*body.body_as_End(), now);
    case msg::TokenizerWorkerBody::Forget:
      return requests_.forget(body.body_as_Forget()->epoch());
    case msg::TokenizerWorkerBody::TokenizeQuery:
      return on_query(*body.body_as_TokenizeQuery(), message);
    case msg::TokenizerWorkerBody::Drain:
      if (!draining_) drain(now);
      return;
    case msg::TokenizerWorkerBody::Audit:
      return audit(body.body_as_Audit()->tag());
    case msg::TokenizerWorkerBody::NONE:
      break;
  }
  counters_.add(Counter::kMessagesMalformed);
  log::error("from the router: a message of kind {}, which this build does not know",
             static_cast<int>(body.body_type()));
}

// ---- gpu-workers ----

void TokenizerWorker::on_gpu_workers(const msg::GpuWorkers& message, Nanos now) {
  // Another router than the one whose requests we run, or one that does not know us: it has ended those
  // requests and will not take their tokens. (A router that takes over running requests would ask for them
  // here.)
  const uint32_t incarnation = message.incarnation();
  if (incarnation == 0 || (last_incarnation_ != 0 && incarnation != last_incarnation_)) {
    if (requests_.live() > 0)
      log::warning("the router has lost or replaced its requests (incarnation {} after {}): {} end here",
                   incarnation, last_incarnation_, requests_.live());
    requests_.forget_all();
    forget_queries();
    announce_links_ = true;
  }
  if (incarnation == 0) {
    // Each heartbeat that a new router found waiting has this answer; one registration is enough for all.
    if (incarnation_ != 0 || register_at_ == kNever) register_at_ = now;
    incarnation_ = 0;
    return;
  }
  incarnation_ = last_incarnation_ = incarnation;
  register_at_ = kNever;

  std::vector<Wanted> former = std::exchange(wanted_, {});
  if (message.workers() != nullptr) {
    for (const msg::GpuWorker* listed : *message.workers()) {
      const auto same = std::find_if(former.begin(), former.end(), [&](const Wanted& w) {
        return w.instance == listed->instance() && w.name == listed->name()->string_view();
      });
      if (same != former.end()) {
        wanted_.push_back(std::move(*same));
        former.erase(same);
      } else {
        want(*listed, now);
      }
    }
  }
  // What the router has taken from the list runs nothing of ours any more. Its ring stays mapped: a slot is
  // given back by the death of a process only, and the gpu-worker may come back into the list.
  for (const Wanted& gone : former)
    if (const auto link = links_.find(gone.name, gone.instance))
      requests_.link_lost(*link, gone.name + " was taken out of service", now);
  if (std::exchange(announce_links_, false))
    for (const Wanted& w : wanted_)
      if (w.state == Wanted::State::kLinked) send_linked(w.name, w.instance, true);
  attach_wanted(now);
}

void TokenizerWorker::want(const msg::GpuWorker& listed, Nanos now) {
  Wanted wanted{listed.name()->str(), listed.instance(), listed.ring_socket()->str(),
                Wanted::State::kToAttach, now};
  if (links_.find(wanted.name, wanted.instance)) {  // attached before it left the list
    wanted.state = Wanted::State::kLinked;
    send_linked(wanted.name, wanted.instance, true);
  } else if (std::find(attaching_.begin(), attaching_.end(), std::pair(wanted.name, wanted.instance)) !=
             attaching_.end()) {
    wanted.state = Wanted::State::kAttaching;
  }
  wanted_.push_back(std::move(wanted));
}

TokenizerWorker::Wanted* TokenizerWorker::wanted(std::string_view name, uint64_t instance) {
  for (Wanted& w : wanted_)
    if (w.instance == instance && w.name == name) return &w;
  return nullptr;
}

void TokenizerWorker::attach_wanted(Nanos now) {
  for (Wanted& w : wanted_) {
    if (w.state != Wanted::State::kToAttach || w.try_at > now) continue;
    if (attacher_.attach({w.name, w.instance, w.ring_socket})) {
      w.state = Wanted::State::kAttaching;
      attaching_.emplace_back(w.name, w.instance);
    } else {
      w.try_at = now + times_.attach_again;
    }
  }
}

void TokenizerWorker::on_attached(Attached attached, Nanos now) {
  std::erase(attaching_, std::pair(attached.gpu_worker, attached.gpu_instance));
  Wanted* w = wanted(attached.gpu_worker, attached.gpu_instance);
  if (!attached.end) {
    log::warning("no ring to {}: {}", attached.gpu_worker, attached.end.error().message);
    if (w != nullptr) {
      w->state = Wanted::State::kToAttach;
      w->try_at = now + times_.attach_again;
    }
    return;
  }
  links_.add(attached.gpu_worker, attached.gpu_instance, std::move(*attached.end));
  log::info("attached to {}", attached.gpu_worker);
  if (w == nullptr) return;
  w->state = Wanted::State::kLinked;
  send_linked(w->name, w->instance, true);
}

void TokenizerWorker::handle_lost(Nanos now) {
  const std::vector<LostLink> all = links_.take_lost();
  if (all.empty()) return;
  for (const LostLink& lost : all) {
    counters_.add(Counter::kLinksLost);
    log::error("lost the ring to {}: {}", lost.link.gpu_worker, lost.why);
    requests_.link_lost(lost.link.id, "lost " + lost.link.gpu_worker + ": " + lost.why, now);
    // The same process is not tried again: it is dead, or it has broken the protocol.
    if (Wanted* w = wanted(lost.link.gpu_worker, lost.link.gpu_instance)) w->state = Wanted::State::kBarred;
  }
  // The router ends what still runs over a pair that is down, so what the gpu-worker said last goes first.
  requests_.flush(now);
  for (const LostLink& lost : all) send_linked(lost.link.gpu_worker, lost.link.gpu_instance, false);
}

// ---- tokenize queries ----

void TokenizerWorker::on_query(const msg::TokenizeQuery& query, actor::Bytes message) {
  EncodeJob job;
  job.ticket = {EncodeTicket::Kind::kQuery, next_query_++};
  job.message.resize((message.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  std::memcpy(job.message.data(), message.data(), message.size());
  const auto* copy = msg::GetTokenizerWorkerMessage(job.message.data())->body_as_TokenizeQuery();
  job.prompt = {copy->prompt_type(), copy->prompt()};
  const uint64_t number = job.ticket.number;
  if (auto ok = pool_.submit(std::move(job)); !ok) return answer(query.tag(), ok.error());
  queries_.emplace(number, query.tag());
}

void TokenizerWorker::forget_queries() {
  for (const auto& [number, tag] : queries_) pool_.cancel({EncodeTicket::Kind::kQuery, number});
  queries_.clear();
}

void TokenizerWorker::answer(uint64_t tag, const Result<std::vector<TokenId>>& result) {
  // An answer larger than a message may be could not be read by anyone.
  constexpr size_t kMaxIds = (msg::kMaxMessageBytes - 4096) / sizeof(TokenId);
  if (result && result->size() > kMaxIds)
    return answer(tag,
                  Error{Code::kTooLarge, "the prompt has " + std::to_string(result->size()) +
                                             " tokens; one answer holds at most " + std::to_string(kMaxIds)});
  builder_.Clear();
  if (result) {
    const auto ids = builder_.CreateVector(*result);
    send(msg::RouterBody::Tokenized, msg::CreateTokenized(builder_, tag, ids));
  } else {
    const auto text = builder_.CreateString(result.error().message);
    send(msg::RouterBody::Tokenized,
         msg::CreateTokenized(builder_, tag, 0, msg::to_wire(result.error().code), text));
  }
}

void TokenizerWorker::audit(uint64_t tag) {
  Holdings holdings{requests_.table(), links_, counters_, requests_.live(), pool_.in_flight(),
                    attaching_.size(), {}};
  for (const auto& [number, router_tag] : queries_) holdings.queries.push_back(router_tag);
  flatbuffers::FlatBufferBuilder books;
  build_books(books, std::move(holdings));
  if (outbox_.send(kRouter, "", msg::seal_audited(builder_, tag, books)) != actor::Sent::kOk)
    counters_.add(Counter::kSendsRefused);
}

// ---- a turn ----

bool TokenizerWorker::poll(Nanos now) {
  bool worked = false;
  while (auto encoded = pool_.take()) {
    worked = true;
    if (encoded->ticket.kind == EncodeTicket::Kind::kRequest) {
      requests_.encoded(encoded->ticket.number, std::move(encoded->ids), now);
    } else if (const auto query = queries_.extract(encoded->ticket.number); !query.empty()) {
      answer(query.mapped(), encoded->ids);
    }
  }
  while (auto attached = attacher_.take()) {
    worked = true;
    on_attached(std::move(*attached), now);
  }
  const bool more = requests_.read_rings(now);
  handle_lost(now);
  return more || worked;
}

void TokenizerWorker::check_peers(Nanos now) {
  requests_.check_peers(now);
  handle_lost(now);
}

void TokenizerWorker::flush(Nanos now) {
  requests_.flush(now);
  handle_lost(now);
}

Nanos TokenizerWorker::run_timers(Nanos now) {
  if (register_at_ <= now) {
    send_register();
    register_at_ = now + times_.register_again;
  }
  if (heartbeat_at_ <= now) {
    // pidfds ring the bell by themselves; this catches a death whose edge was lost.
    check_peers(now);
    if (registered()) send_heartbeat();
    heartbeat_at_ = now + times_.heartbeat;
  }
  if (drain_until_ <= now && !drain_over_) {
    drain_over_ = true;
    requests_.end_all(Code::kUnavailable, identity_.name + " was stopped", now);
    for (const auto& [number, tag] : std::exchange(queries_, {}))
      answer(tag, Error{Code::kUnavailable, identity_.name + " was stopped"});
  }
  attach_wanted(now);
  Nanos next = std::min({register_at_, heartbeat_at_, requests_.run_timers(now)});
  if (!drain_over_) next = std::min(next, drain_until_);
  if (links_.waiting() > 0) next = std::min(next, now + kRetryCommands);
  for (const Wanted& w : wanted_)
    if (w.state == Wanted::State::kToAttach) next = std::min(next, std::max(w.try_at, now));
  return next;
}

void TokenizerWorker::drain(Nanos now) {
  if (draining_) {
    drain_until_ = now;
    return;
  }
  log::info("draining: {} requests run on", requests_.live());
  draining_ = true;
  drain_until_ = now + times_.drain;
  // Not Linked{up = false}: for the router that ends the requests that still run over the pair.
  requests_.refuse_new(identity_.name + " is being stopped; retry");
}

bool TokenizerWorker::drained() const {
  if (drain_over_) return true;
  return draining_ && requests_.live() == 0 && !requests_.unsent() && queries_.empty() &&
         links_.waiting() == 0;
}

// ---- to the router ----

void TokenizerWorker::send_register() {
  builder_.Clear();
  const auto model =
      msg::CreateModelInfo(builder_, builder_.CreateString(identity_.model), identity_.weights_hash,
                           identity_.vocab_size, identity_.context_length);
  const auto name = builder_.CreateString(identity_.name);
  msg::RegisterBuilder body(builder_);
  body.add_kind(msg::WorkerKind::tokenizer_worker);
  body.add_name(name);
  body.add_pid(identity_.pid);
  body.add_instance(identity_.instance);
  body.add_model(model);
  body.add_max_live(identity_.max_live);
  announce_links_ = true;
  send(msg::RouterBody::Register, body.Finish());
}

void TokenizerWorker::send_heartbeat() {
  builder_.Clear();
  const auto waiting = static_cast<uint32_t>(pool_.in_flight() + links_.waiting());
  const auto load = msg::CreateLoad(builder_, requests_.live(), waiting);
  send(msg::RouterBody::Heartbeat,
       msg::CreateHeartbeat(builder_, identity_.instance, load, msg::WorkerKind::tokenizer_worker));
}

void TokenizerWorker::send_linked(std::string_view gpu_worker, uint64_t gpu_instance, bool up) {
  builder_.Clear();
  const auto name = builder_.CreateString(gpu_worker);
  send(msg::RouterBody::Linked, msg::CreateLinked(builder_, name, gpu_instance, up));
}

template <typename Body>
void TokenizerWorker::send(msg::RouterBody type, flatbuffers::Offset<Body> body) {
  const msg::Bytes message = msg::seal<msg::RouterMessage>(builder_, type, body.Union());
  if (outbox_.send(kRouter, "", message) != actor::Sent::kOk) counters_.add(Counter::kSendsRefused);
}

}  // namespace ringmaster::tokenizer_worker
