#include "router/request_life.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace ringmaster::router {
namespace {

// A client has at most as many streams as the cluster admits; more entries than this are an attack on the
// loop.
constexpr size_t kMaxAcks = 16'384;

std::string seconds(Nanos duration) {
  return fmt::format("{:.1f} s", static_cast<double>(duration) / kSecond);
}

// SplitMix64 (Steele, Lea, Flood 2014): seeds of requests need to differ, not to be secret.
uint64_t split_mix(uint64_t& state) {
  uint64_t z = (state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

Counter ended_counter(msg::FinishReason reason) {
  return static_cast<Counter>(static_cast<int>(Counter::kEndedStop) + static_cast<int>(reason));
}
static_assert(static_cast<int>(Counter::kEndedError) - static_cast<int>(Counter::kEndedStop) ==
              static_cast<int>(msg::FinishReason::MAX));

bool alive(const WorkerPtr& worker) {
  return worker && worker->state != Worker::State::kDead;
}
uint32_t received_tokens(const msg::Generate& request) {
  return request.received_ids() ? request.received_ids()->size() : 0;
}
std::string_view tenant_of(const msg::Generate& request) {
  return request.tenant() ? request.tenant()->string_view() : std::string_view();
}

}  // namespace

RequestLife::RequestLife(RequestTable& table, WorkerRegistry& registry, Placer& placer, Replies& replies,
                         Counters& counters, const RequestLimits& limits, uint32_t incarnation,
                         uint64_t random_seed)
    : table_(table),
      registry_(registry),
      placer_(placer),
      replies_(replies),
      counters_(counters),
      limits_(limits),
      next_epoch_((Epoch{incarnation} << 32) | 1),
      random_(random_seed) {}

// ---- from clients ----

void RequestLife::generate(std::string_view route, const msg::Generate& request, actor::Bytes bytes,
                           Nanos now) {
  counters_.add(Counter::kRequestsReceived);
  const Uid uid = msg::to_uid(*request.uid());
  const auto refuse = [&](const Error& error) {
    counters_.add(Counter::kRequestsRefused);
    replies_.refused(route, uid, error);
  };
  if (const auto checked = check_request(request); !checked) return refuse(checked.error());
  if (Request* known = table_.find(uid)) return resume(*known, route, request, now);

  std::optional<Placement> place;
  if (const auto admitted = admit(request); !admitted) return refuse(admitted.error());
  if (waiting_.empty()) place = placer_.place();
  if (!place && waiting_bytes_ + bytes.size() > limits_.max_waiting_bytes)
    return refuse({Code::kOverloaded,
                   fmt::format("no worker has room and {} bytes of prompts wait already; retry later",
                               waiting_bytes_)});

  Request& r = table_.add(uid, next_epoch_++, route, now);
  r.tenant = std::string(tenant_of(request));
  r.priority = request.priority();
  r.grace = request.resume_grace_ms() * kMillisecond;
  if (request.deadline_ms() != 0) r.deadline_at = now + request.deadline_ms() * kMillisecond;
  const auto given = request.sampling() ? request.sampling()->seed() : flatbuffers::nullopt;
  r.seed = given ? *given : split_mix(random_);
  r.sent_tokens = r.acked_tokens = received_tokens(request);
  r.sent_text = r.acked_text = request.received_text_offset();
  counters_.add(Counter::kRequestsAccepted);

  // The worker's message first: its way is long, and the client's processes do not run before it is sent.
  const bool placed = place && try_place(r, *place, bytes, now);
  replies_.accepted(r, r.sent_tokens != 0, r.sent_tokens);
  if (!placed) {
    r.generate.assign(bytes.begin(), bytes.end());
    waiting_.insert(waiting_key(r));
    waiting_bytes_ += r.generate.size();
  }
  set_due(r);
}

Status RequestLife::admit(const msg::Generate& request) const {
  if (refusing_) return Error{Code::kUnavailable, "the cluster is shutting down and takes no new requests"};
  if (table_.live() >= limits_.max_live)
    return Error{
        Code::kOverloaded,
        fmt::format(
            "{} requests are running or waiting, as many as router.max_live_requests allows; retry later",
            table_.live())};
  if (static_cast<uint32_t>(next_epoch_) == 0)
    return Error{Code::kResourceExhausted, "this router has numbered 4294967295 requests; restart it"};
  if (received_tokens(request) != 0 && !(request.sampling() && request.sampling()->seed()))
    return Error{
        Code::kInvalidArgument,
        "received_ids without sampling.seed: a stream continues only with the seed that Accepted told"};
  return check_against_model(request, registry_.limits());
}

void RequestLife::resume(Request& r, std::string_view route, const msg::Generate& request, Nanos now) {
  const auto refuse = [&](const Error& error) {
    counters_.add(Counter::kRequestsRefused);
    replies_.refused(route, r.uid, error);
  };
  if (r.tenant != tenant_of(request))
    return refuse({Code::kPermissionDenied, "this uid belongs to another tenant"});
  // A client may be ahead of what was sent in this life of the request (acks() says why).
  const uint32_t received = std::min(received_tokens(request), r.sent_tokens);
  const uint64_t received_text = std::min(request.received_text_offset(), r.sent_text);
  counters_.add(Counter::kRequestsResumed);
  table_.attach(r, route, now);
  r.orphan_since = 0;
  r.lost_pieces = false;
  // What was acknowledged may have been freed: a client that says it has less is told so by next_token. What
  // it says it has is acknowledged by that, since the worker frees it on Resend.
  const uint32_t next_token = r.acked_tokens = std::max(received, r.acked_tokens);
  const uint64_t text_offset = r.acked_text = std::max(received_text, r.acked_text);
  replies_.accepted(r, true, next_token);
  if (r.state() == State::kRunning || r.state() == State::kEnding)
    replies_.resend(r, next_token, text_offset);
  if (r.state() == State::kEnded) replay_ending(r, next_token, text_offset, now);
  set_due(r);
}

void RequestLife::replay_ending(Request& r, uint32_t next_token, uint64_t text_offset, Nanos now) {
  const bool has_all = next_token >= r.sent_tokens && text_offset >= r.sent_text;
  if (r.made_here || has_all) {
    replies_.to_client(r.route(), r.done);
  } else if (r.kept_by_worker && alive(r.tokenizer)) {
    replies_.resend(r, next_token, text_offset);
    r.replay_by = now + limits_.end_limit;
  } else {
    replies_.to_client(r.route(), replies_.make_done(r,
                                                     {msg::FinishReason::error, Code::kWorkerLost,
                                                      "the worker that kept the end of this stream is gone"},
                                                     now));
  }
}

Status RequestLife::acks(std::string_view route, const msg::Acks& message, Nanos now) {
  const auto& acks = *message.acks();
  if (acks.size() > kMaxAcks)
    return Error{Code::kTooLarge,
                 fmt::format("Acks has {} entries; allowed: at most {}", acks.size(), kMaxAcks)};
  ack_scratch_.clear();
  for (const msg::Ack* ack : acks) {
    Request* r = table_.find(msg::to_uid(*ack->uid()));
    if (!r || r->route() != route) {
      counters_.add(Counter::kAcksIgnored);
      continue;
    }
    // More than was sent: of a former life of the request, whose last pieces met the resume that began this
    // one. They will be sent once more and counted then; until then the client has all that was sent.
    const uint32_t next_token = std::min(ack->next_token(), r->sent_tokens);
    const uint64_t text_offset = std::min(ack->text_offset(), r->sent_text);
    const bool news = next_token > r->acked_tokens || text_offset > r->acked_text;
    r->acked_tokens = std::max(r->acked_tokens, next_token);
    r->acked_text = std::max(r->acked_text, text_offset);
    // Of a stream that has ended the last one frees it, also when a resume has said the same before.
    const bool wanted = r->live() ? news && r->state() != State::kWaiting : r->kept_by_worker;
    if (wanted && alive(r->tokenizer))
      ack_scratch_.push_back({r->tokenizer.get(), r->epoch, r->acked_tokens, r->acked_text});
    if (!r->live() && r->all_acked()) {
      r->kept_by_worker = false;  // the worker frees it on this acknowledgement
      if (expiry(*r) <= now)
        forget_ended(*r);
      else
        set_due(*r);
    }
  }
  counters_.add(Counter::kAcksForwarded, ack_scratch_.size());
  while (!ack_scratch_.empty()) {  // one message for each worker
    const Worker* worker = ack_scratch_.front().worker;
    const auto others = std::stable_partition(ack_scratch_.begin(), ack_scratch_.end(),
                                              [&](const AckToForward& a) { return a.worker == worker; });
    batch_scratch_.assign(ack_scratch_.begin(), others);
    replies_.acked(batch_scratch_);
    ack_scratch_.erase(ack_scratch_.begin(), others);
  }
  return ok_status();
}

void RequestLife::cancel(std::string_view route, const msg::Cancel& message, Nanos now) {
  Request* r = table_.find(msg::to_uid(*message.uid()));
  // Unknown and foreign look alike: crossing with an ending is normal, and nobody learns of others' requests.
  if (!r || r->route() != route || !r->live()) return counters_.add(Counter::kCancelsIgnored);
  end(*r, {msg::FinishReason::cancelled, Code::kCancelled, "cancelled by the client"}, now);
}

void RequestLife::client_heard(std::string_view route, Nanos now) {
  Client* client = table_.touch(route, now);
  if (!client || !client->gone) return;
  table_.revive(*client, now);
  for (Request* r : client->requests) {  // nothing here erases
    const bool lost = std::exchange(r->lost_pieces, false);
    r->orphan_since = 0;
    if (lost && (r->state() == State::kRunning || r->state() == State::kEnding))
      replies_.resend(*r, r->acked_tokens, r->acked_text);
    if (lost && r->state() == State::kEnded) replay_ending(*r, r->acked_tokens, r->acked_text, now);
    set_due(*r);
  }
}

// ---- placement ----

bool RequestLife::try_place(Request& r, const Placement& place, actor::Bytes generate, Nanos now) {
  r.tokenizer = place.tokenizer;
  r.gpu = place.gpu;
  r.assigned_at = now;
  // A worker that is gone is handled after this turn; then waiting requests are placed again.
  if (replies_.assign(r, generate, registry_.limits().context_length) != actor::Sent::kOk ||
      !enter(r, State::kRunning)) {
    r.tokenizer = r.gpu = nullptr;
    r.assigned_at = 0;
    return false;
  }
  ++r.tokenizer->live;
  ++r.gpu->live;
  return true;
}

void RequestLife::place_waiting(Nanos now) {
  while (!waiting_.empty()) {
    const auto place = placer_.place();
    if (!place) return;
    Request& r = *table_.find(std::get<Epoch>(*waiting_.begin()));
    // The workers' limits may have been unknown, or larger, when it came in. Its bytes were verified then.
    const auto* message = flatbuffers::GetRoot<msg::RouterMessage>(r.generate.data());
    if (const auto fits = check_against_model(*message->body_as_Generate(), registry_.limits()); !fits) {
      finish(r, {msg::FinishReason::refused, fits.error().code, fits.error().message}, now);
      continue;
    }
    if (!try_place(r, *place, r.generate, now)) return;
    stop_waiting(r);
    set_due(r);
  }
}

void RequestLife::stop_waiting(Request& r) {
  if (waiting_.erase(waiting_key(r)) == 0) return;
  waiting_bytes_ -= r.generate.size();
  r.generate = {};
}

Ending RequestLife::not_placed() const {
  const std::string waited = " within " + seconds(limits_.place_limit) + "; retry later";
  if (placer_.any_ready())
    return {msg::FinishReason::refused, Code::kOverloaded, "all workers are full, none had room" + waited};
  return {
      msg::FinishReason::refused, Code::kUnavailable,
      "no gpu-worker with a tokenizer-worker attached became ready" + waited + " (see `ringmaster status`)"};
}

// ---- endings ----

void RequestLife::end(Request& r, Ending ending, Nanos now) {
  if (r.state() == State::kWaiting) return finish(r, std::move(ending), now);
  if (r.state() != State::kRunning || !enter(r, State::kEnding)) return;  // the first reason stands
  r.ending = std::move(ending);
  r.end_by = now + limits_.end_limit;
  replies_.end(r, r.ending);
  set_due(r);
}

void RequestLife::finish(Request& r, Ending ending, Nanos now) {
  if (!enter(r, State::kEnded)) return;
  r.ending = std::move(ending);
  r.made_here = true;
  r.done = replies_.make_done(r, r.ending, now);
  if (!r.lost_pieces) r.lost_pieces = replies_.to_client(r.route(), r.done) != actor::Sent::kOk;
  if (alive(r.tokenizer)) replies_.forget(*r.tokenizer, r.epoch);  // late pieces of it are stale from now on
  close(r, now);
}

void RequestLife::worker_ended(Request& r, const msg::Done& done, Nanos now) {
  if (!r.live()) {  // the repetition that a resumed client was waiting for
    r.replay_by = 0;
    return set_due(r);
  }
  if (!enter(r, State::kEnded)) return;
  r.ending = {done.reason(), msg::to_code(done.code()),
              done.message() ? done.message()->str() : std::string()};
  r.done = replies_.copy_done(done);
  r.kept_by_worker = !r.all_acked();
  if (!r.kept_by_worker) replies_.forget(*r.tokenizer, r.epoch);  // no acknowledgement will come to free it
  close(r, now);
}

void RequestLife::lost(Request& r, std::string why, Nanos now) {
  // What was asked to end ends as asked. Any other request could move here: enter kWaiting again under a new
  // epoch and be placed with the ids it has; until that is built it ends.
  if (r.state() == State::kEnding) return finish(r, r.ending, now);
  finish(r, {msg::FinishReason::error, Code::kWorkerLost, std::move(why)}, now);
}

bool RequestLife::enter(Request& r, State to) {
  const State from = r.state();
  if (table_.enter(r, to)) return true;
  counters_.add(Counter::kImpossible);
  log::with(to_string(r.uid), r.epoch)
      .error("request cannot go from {} to {}; kept as it is", name(from), name(to));
  return false;
}

// Everything that follows an ending, whoever made it. `r` may be gone afterwards.
void RequestLife::close(Request& r, Nanos now) {
  counters_.add(ended_counter(r.ending.reason));
  stop_waiting(r);
  if (r.tokenizer) {
    --r.tokenizer->live;
    --r.gpu->live;
  }
  r.ended_at = now;
  ended_order_.push_back(r.epoch);
  if (expiry(r) <= now)
    forget_ended(r);
  else
    set_due(r);
  drop_oldest_endings();
}

void RequestLife::forget_ended(Request& r) {
  if (r.kept_by_worker && alive(r.tokenizer)) replies_.forget(*r.tokenizer, r.epoch);
  table_.erase(r);
}

void RequestLife::drop_oldest_endings() {
  while (!ended_order_.empty()) {
    Request* oldest = table_.find(ended_order_.front());
    if (oldest && table_.size() - table_.live() <= limits_.max_ended) return;
    ended_order_.pop_front();
    if (oldest) forget_ended(*oldest);
  }
}

// An ending is kept for resume_grace so that a client that lost it can have it again; longer, up to the
// linger of the tokenizer-workers, while a client that is there has not acknowledged all of it.
Nanos RequestLife::expiry(const Request& r) const {
  if (!r.kept_by_worker) return r.ended_at + r.grace;
  return r.ended_at + (r.orphan_since != 0 ? std::min(r.grace, limits_.linger) : limits_.linger);
}

// ---- faults and time ----

void RequestLife::client_lost(std::string_view route, bool unreachable, Nanos now) {
  Client* client = table_.find_client(route);
  if (!client) return;
  if (!client->gone) counters_.add(Counter::kClientsLost);
  table_.set_gone(*client);
  std::vector<Epoch> epochs;
  for (const Request* r : client->requests) epochs.push_back(r->epoch);
  for (const Epoch epoch : epochs) {
    Request& r = *table_.find(epoch);
    if (r.orphan_since == 0) r.orphan_since = now;
    // Of an ended request only what met the closed door itself is known to be lost; the client asks for the
    // rest.
    r.lost_pieces |= unreachable && r.live();
    set_due(r);
  }
  run_due(now);  // those without grace end now
}

void RequestLife::worker_lost(const Worker& worker, Nanos now) {
  const auto concerned = table_.select(
      [&](const Request& r) { return r.tokenizer.get() == &worker || (r.live() && r.gpu.get() == &worker); });
  for (const Epoch epoch : concerned) {
    Request* r = table_.find(epoch);
    if (!r) continue;
    if (r->live()) {
      lost(*r, worker.name + ", which ran this request, is gone", now);
      continue;
    }
    r->kept_by_worker = false;
    if (std::exchange(r->replay_by, 0) != 0) replay_ending(*r, r->acked_tokens, r->acked_text, now);
    set_due(*r);
  }
}

void RequestLife::pair_lost(const Worker& tokenizer, std::string_view gpu_worker, Nanos now) {
  const auto concerned = table_.select([&](const Request& r) {
    return r.live() && r.tokenizer.get() == &tokenizer && r.gpu && r.gpu->name == gpu_worker;
  });
  for (const Epoch epoch : concerned)
    if (Request* r = table_.find(epoch))
      lost(*r,
           fmt::format("the rings between {} and {}, which ran this request, are gone", tokenizer.name,
                       gpu_worker),
           now);
}

void RequestLife::end_all(const Ending& ending, Nanos now) {
  for (const Epoch epoch : table_.select([](const Request& r) { return r.live(); }))
    if (Request* r = table_.find(epoch)) end(*r, ending, now);
}

void RequestLife::run_due(Nanos now) {
  while (Request* r = table_.take_due(now)) on_due(*r, now);
}

void RequestLife::set_due(Request& r) {
  Nanos due = kNever;
  const auto at_most = [&](Nanos time) { due = std::min(due, time); };
  switch (r.state()) {
    case State::kWaiting:
      at_most(r.received_at + limits_.place_limit);
      [[fallthrough]];
    case State::kRunning:
      if (r.deadline_at != 0) at_most(r.deadline_at);
      if (r.orphan_since != 0) at_most(r.orphan_since + r.grace);
      break;
    case State::kEnding:
      at_most(r.end_by);
      break;
    case State::kEnded:
      at_most(r.replay_by != 0 ? r.replay_by : expiry(r));
      break;
  }
  table_.set_due(r, due);
}

void RequestLife::on_due(Request& r, Nanos now) {
  switch (r.state()) {
    case State::kWaiting:
    case State::kRunning:
      if (r.orphan_since != 0 && r.orphan_since + r.grace <= now)
        return finish(r,
                      {msg::FinishReason::cancelled, Code::kCancelled,
                       "the client did not come back within " + seconds(r.grace)},
                      now);
      if (r.deadline_at != 0 && r.deadline_at <= now)
        return end(r,
                   {msg::FinishReason::deadline, Code::kDeadlineExceeded,
                    "the deadline passed " + seconds(r.deadline_at - r.received_at) + " after the request"},
                   now);
      if (r.state() == State::kWaiting) return finish(r, not_placed(), now);
      return set_due(r);
    case State::kEnding:
      log::with(to_string(r.uid), r.epoch)
          .warning("{} did not answer End within {}; ended here", r.tokenizer->name,
                   seconds(limits_.end_limit));
      return finish(r, r.ending, now);
    case State::kEnded:
      if (r.replay_by == 0) return forget_ended(r);
      r.replay_by = 0;
      replies_.to_client(r.route(), replies_.make_done(r,
                                                       {msg::FinishReason::error, Code::kUnavailable,
                                                        r.tokenizer->name +
                                                            " did not repeat the end of this stream in time"},
                                                       now));
      return set_due(r);
  }
}

}  // namespace ringmaster::router
