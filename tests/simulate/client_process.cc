#include "tests/simulate/client_process.h"

#include <algorithm>
#include <utility>

namespace ringmaster::simulate {
namespace {

std::string short_name(Uid uid) {
  return fmt::format("request {:04x}", uid.hi >> 48);
}

// In a cluster that nothing disturbs, what a client asked to end has ended by then: a few messages of at most
// 20 ms each way.
constexpr Nanos kEndsWithin = 500 * kMillisecond;

}  // namespace

ClientProcess::ClientProcess(World& world, uint32_t number, const tokenizer_worker::Tokenizer& tokenizer,
                             const Expectations& expectations)
    : Process(world, "client." + std::to_string(number), number),
      tokenizer_(tokenizer),
      expectations_(expectations),
      read_pause_(world.plan.read_pause[number]),
      session_(world.plan.client_options, [this](msg::Bytes bytes) { return send(bytes); }) {}

void ClientProcess::start(const PlannedRequest& planned, Nanos now) {
  Seen& seen = seen_[planned.uid];
  seen.planned = &planned;
  seen.oracle =
      std::make_unique<Oracle>(planned.request, tokenizer_, world_.plan.config.gpu_worker.context_length);
  seen.started_at = now;
  world_.trace("{} starts {}: {} prompt tokens, then {}", name_, short_name(planned.uid),
               seen.oracle->prompt_tokens(), seen.oracle->ids().size());
  // Copied by the caller: the variant of libstdc++ 12 does not survive a copy of strings and vectors that
  // throws (it takes it for one that can never be without a value).
  client::Request request = planned.request;
  as_process([&] { (void)session_.start(planned.uid, std::move(request), now); });
}

void ClientProcess::cancel(Uid uid) {
  Seen* seen = find(uid);
  if (seen == nullptr || seen->ending) return;
  seen->cancelled_at = world_.now();
  as_process([&] { (void)session_.cancel(uid); });
}

// ---- messages ----

// Notes what the cluster is told: it may have so many tokens more under way as the credit says.
Status ClientProcess::send(msg::Bytes bytes) {
  const Runs outside(false);
  if (outbox_ == nullptr) return ok_status();  // lost, as in a socket whose peer is gone
  const auto message = msg::open<msg::RouterMessage>(bytes);
  if (!message) {
    world_.fail(name_ + " sends what cannot be read: " + message.error().message);
  } else if (const auto* acks = (*message)->body_as_Acks()) {
    for (const msg::Ack* ack : *acks->acks()) tell(msg::to_uid(*ack->uid()), ack->next_token());
  } else if (const auto* generate = (*message)->body_as_Generate()) {
    const Uid uid = msg::to_uid(*generate->uid());
    if (Seen* seen = find(uid)) ++seen->asked;
    if (generate->received_ids()) tell(uid, generate->received_ids()->size());
  }
  outbox_->send(0, "", bytes);
  return ok_status();
}

void ClientProcess::tell(Uid uid, uint32_t tokens) {
  Seen* seen = find(uid);
  if (seen == nullptr) return;
  seen->told = std::max(seen->told, tokens);
  world_.tell(uid, tokens);
}

void ClientProcess::take(actor::Channel, std::string_view, actor::Bytes message, Nanos now) {
  check_message(message);
  session_.receive(message, now);
  if (session_.rejected) world_.fail(name_ + " was rejected: " + session_.rejected->message);
}

void ClientProcess::check_message(actor::Bytes message) {
  const Runs outside(false);
  const auto opened = msg::open<msg::ClientMessage>(message);
  if (!opened) return world_.fail(name_ + " got what cannot be read: " + opened.error().message);
  if (const auto* stream = (*opened)->body_as_Stream(); stream && stream->chunks())
    for (const msg::Chunk* chunk : *stream->chunks()) check_chunk(*chunk);
  if (const auto* stream = (*opened)->body_as_Stream(); stream && stream->ends())
    for (const msg::Done* done : *stream->ends())
      if (Seen* seen = find(msg::to_uid(*done->uid()))) seen->done_on_wire = seen->asked == 1;
}

// Whatever comes over the wire, repeated or late, belongs where it says.
void ClientProcess::check_chunk(const msg::Chunk& chunk) {
  Seen* seen = find(msg::to_uid(*chunk.uid()));
  if (seen == nullptr) return world_.fail(name_ + " got a piece of a request that it never started");
  // Nothing was lost or asked for again, and the path keeps its order.
  if (seen->done_on_wire && seen->asked == 1 && !world_.plan.client_faults && !world_.plan.router_faults)
    return wrong(*seen, "a piece after the ending");
  const std::vector<TokenId>& right = seen->oracle->ids();
  const uint32_t count = chunk.ids() ? chunk.ids()->size() : 0;
  const uint32_t end = chunk.first_token() + count;
  if (end > right.size())
    return wrong(*seen, fmt::format("tokens {} to {} came, the stream has {}", chunk.first_token(), end,
                                    right.size()));
  for (uint32_t i = 0; i < count; ++i)
    if (chunk.ids()->Get(i) != right[chunk.first_token() + i])
      return wrong(*seen, fmt::format("token {} is {} instead of {}", chunk.first_token() + i,
                                      chunk.ids()->Get(i), right[chunk.first_token() + i]));
  const std::string_view text = chunk.text() ? chunk.text()->string_view() : std::string_view();
  const std::string_view whole = seen->oracle->text_up_to(end);
  if (chunk.text_offset() > whole.size() || whole.substr(chunk.text_offset(), text.size()) != text)
    return wrong(*seen, fmt::format("text '{}' at byte {} after {} tokens; the text is '{}'", text,
                                    chunk.text_offset(), end, whole));
  const uint32_t credit = world_.plan.config.router.credit_tokens;
  if (!seen->ending && end > seen->told + credit)
    wrong(*seen,
          fmt::format("{} tokens came, {} were acknowledged, the credit is {}", end, seen->told, credit));
}

// ---- the caller ----

Nanos ClientProcess::turn(Nanos now) {
  if (vanished_) return kNever;
  while (session_.has_events() && read_at_ <= now) {
    take_event(*session_.take_event(), now);
    if (read_pause_ > 0) read_at_ = now + read_pause_;
  }
  const Nanos next = session_.keep_alive(now);
  return session_.has_events() ? std::min(next, std::max(read_at_, now)) : next;
}

void ClientProcess::take_event(const client::Event& event, Nanos now) {
  const Runs outside(false);
  Seen* seen = find(event.uid);
  if (seen == nullptr) return world_.fail(name_ + ": an event of a request that was never started");
  if (seen->ending) return wrong(*seen, "an event after the ending");
  if (std::holds_alternative<client::Accepted>(event.what)) {
    if (seen->accepted) wrong(*seen, "accepted twice");
    seen->accepted = true;
  } else if (const auto* piece = std::get_if<client::Piece>(&event.what)) {
    take_piece(*seen, *piece);
  } else {
    take_ending(*seen, std::get<client::Ending>(event.what), now);
  }
}

void ClientProcess::take_piece(Seen& seen, const client::Piece& piece) {
  if (!seen.accepted) wrong(seen, "a piece before it was accepted");
  if (piece.first_token != seen.ids.size())
    return wrong(seen,
                 fmt::format("a piece from token {} on after {} tokens", piece.first_token, seen.ids.size()));
  seen.ids.insert(seen.ids.end(), piece.ids.begin(), piece.ids.end());
  seen.text += piece.text;
  const bool logprobs = seen.planned->request.logprobs.has_value();
  if (piece.logprobs.size() != (logprobs ? piece.ids.size() : 0))
    return wrong(seen,
                 fmt::format("{} log-probabilities for {} tokens", piece.logprobs.size(), piece.ids.size()));
  const std::vector<TokenId>& right = seen.oracle->ids();
  if (seen.ids.size() > right.size() || !std::equal(seen.ids.begin(), seen.ids.end(), right.begin()))
    return wrong(seen, "the ids handed out are not those of the stream");
  if (!seen.oracle->text_up_to(static_cast<uint32_t>(seen.ids.size())).starts_with(seen.text))
    wrong(seen, fmt::format("the text handed out is '{}'", seen.text));
}

void ClientProcess::take_ending(Seen& seen, const client::Ending& ending, Nanos now) {
  ++endings_[fmt::format("{} {}", client::name(ending.reason), ringmaster::name(ending.code))];
  world_.trace("{} sees the end of {}: {} {} after {} tokens: {}", name_, short_name(seen.planned->uid),
               client::name(ending.reason), ringmaster::name(ending.code), seen.ids.size(), ending.message);
  if (const std::string what = judge(seen, ending, now); !what.empty()) wrong(seen, what);
  if (const std::string what = late(seen, now); !what.empty()) wrong(seen, what);
  seen.ending = ending;
}

// ---- judging an ending ----

std::string ClientProcess::late(const Seen& seen, Nanos now) const {
  if (!world_.plan.prompt() || read_pause_ > 0) return {};
  const uint32_t deadline = seen.planned->request.deadline_ms;
  const Nanos due = std::min(seen.cancelled_at.value_or(kNever),
                             deadline == 0 ? kNever : seen.started_at + deadline * kMillisecond);
  if (due == kNever || now <= due + kEndsWithin) return {};
  return fmt::format("ended {} ms after it was cancelled or its deadline passed", (now - due) / kMillisecond);
}

std::string ClientProcess::judge(const Seen& seen, const client::Ending& ending, Nanos now) const {
  using client::FinishReason;
  const std::string as_it_was =
      fmt::format("ended with {} {} ({}) after {} of {} tokens", client::name(ending.reason),
                  ringmaster::name(ending.code), ending.message, seen.ids.size(), seen.oracle->ids().size());
  if (ending.reason == FinishReason::kStop || ending.reason == FinishReason::kLength) {
    const std::string what = judge_complete(seen, ending);
    return what.empty() ? what : as_it_was + ": " + what;
  }
  return excused(seen, ending, now) ? "" : as_it_was + ", for which there is no reason";
}

std::string ClientProcess::judge_complete(const Seen& seen, const client::Ending& ending) const {
  const Oracle& right = *seen.oracle;
  if (!right.fits()) return "it does not fit the context and must be refused";
  if (seen.ids.size() != right.ids().size()) return "not the whole stream";
  if (seen.text != right.whole_text())
    return fmt::format("the text is '{}' instead of '{}'", seen.text, right.whole_text());
  if (ending.reason != right.reason()) return fmt::format("instead of {}", client::name(right.reason()));
  if (ending.code != Code::kOk) return "a code although all went well";
  if (ending.stop != right.stop())
    return fmt::format("stop string '{}' instead of '{}'", ending.stop, right.stop());
  if (ending.usage.output_tokens != right.ids().size() || ending.usage.prompt_tokens != right.prompt_tokens())
    return fmt::format("usage {} + {} instead of {} + {}", ending.usage.prompt_tokens,
                       ending.usage.output_tokens, right.prompt_tokens(), right.ids().size());
  return {};
}

// Whether what the seed has done to the cluster, or what was asked for, explains an ending that is none of
// the stream's own.
bool ClientProcess::excused(const Seen& seen, const client::Ending& ending, Nanos now) const {
  using client::FinishReason;
  const Plan& plan = world_.plan;
  const client::Request& asked = seen.planned->request;
  const bool workers = plan.worker_faults || plan.device_fails;
  switch (ending.reason) {
    case FinishReason::kCancelled:
      if (ending.code == Code::kUnavailable) return plan.router_faults;  // the cluster shuts down
      return ending.code == Code::kCancelled &&
             (seen.cancelled_at || plan.client_faults || plan.router_faults);
    case FinishReason::kDeadline:
      return ending.code == Code::kDeadlineExceeded && asked.deadline_ms != 0 &&
             now >= seen.started_at + asked.deadline_ms * kMillisecond;
    case FinishReason::kRefused:
      if (ending.code == Code::kContextLengthExceeded) return !seen.oracle->fits();
      if (ending.code == Code::kOverloaded) return plan.tight || plan.any_faults();
      if (ending.code == Code::kResourceExhausted) return plan.memory_fails;
      return ending.code == Code::kUnavailable && (workers || plan.router_faults);
    case FinishReason::kError:
      if (ending.code == Code::kWorkerLost) return workers && expectations_.worker_death_may_end_requests;
      if (ending.code == Code::kInternal) return plan.device_fails;
      return ending.code == Code::kUnavailable && plan.any_faults();
    default:
      return false;
  }
}

bool ClientProcess::all_ended() const {
  if (vanished_) return true;
  return std::all_of(seen_.begin(), seen_.end(),
                     [](const auto& entry) { return entry.second.ending.has_value(); });
}

std::string ClientProcess::missing() const {
  std::string out;
  for (const auto& [uid, seen] : seen_)
    if (!seen.ending)
      out += fmt::format(" {} of {} ({} of {} tokens)", short_name(uid), name_, seen.ids.size(),
                         seen.oracle->ids().size());
  return out;
}

Status ClientProcess::check_baseline() const {
  if (vanished_) return ok_status();
  return expect(session_.open_streams() == 0, fmt::format("{} streams are open", session_.open_streams()));
}

ClientProcess::Seen* ClientProcess::find(Uid uid) {
  const auto found = seen_.find(uid);
  return found == seen_.end() ? nullptr : &found->second;
}

void ClientProcess::wrong(const Seen& seen, const std::string& what) {
  world_.fail(fmt::format("{}, {}: {}", name_, short_name(seen.planned->uid), what));
}

}  // namespace ringmaster::simulate
