#include "tokenizer-worker/requests.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/log.h"
#include "base/utf8.h"

namespace ringmaster::tokenizer_worker {
namespace {

// A gpu-worker's words travel to the client: text, and no more than a person reads.
constexpr size_t kMaxMessageText = 1024;

std::string readable(std::string_view message) {
  if (message.size() > kMaxMessageText || !is_valid_utf8(message))
    return "(a message of " + std::to_string(message.size()) + " bytes that cannot be shown)";
  return std::string(message);
}

std::string_view bytes_of(const flatbuffers::Vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Requests::Requests(const RequestLimits& limits, const Tokenizer& tokenizer, EncodePool& pool,
                   RingLinks& links, actor::Outbox& outbox, Counters& counters)
    : limits_(limits),
      tokenizer_(tokenizer),
      pool_(pool),
      links_(links),
      counters_(counters),
      writer_(outbox, counters) {}

// ---- from the router ----

void Requests::acknowledge(const msg::AckedEpochs& acks) {
  for (const msg::EpochAck* ack : *acks.acks()) {
    Stream* stream = table_.find(ack->epoch());
    if (stream == nullptr) {
      counters_.add(Counter::kMessagesUnknown);
      continue;
    }
    if (!stream->output.acknowledge({ack->next_token(), ack->text_offset()})) {
      counters_.add(Counter::kAcksIgnored);
      continue;
    }
    if (stream->phase == Phase::kRunning) grant(*stream);
    if (stream->phase == Phase::kEnded && stream->output.all_acknowledged()) stream->output.release();
  }
}

void Requests::resend(const msg::Resend& resend, Nanos now) {
  Stream* stream = table_.find(resend.epoch());
  if (stream == nullptr) return counters_.add(Counter::kMessagesUnknown);
  table_.move_to_client(*stream, bytes_of(*resend.client()));
  if (stream->phase == Phase::kEncoding) return;
  const Status rewound = stream->output.rewind({resend.next_token(), resend.text_offset()});
  if (!rewound && stream->phase != Phase::kEnded) return fail(*stream, rewound.error(), now);
  // Ended before, but not for this client: it cannot have the whole stream. One that was refused before it
  // began has nothing to send again, whatever the client has of a former life of it.
  if (!rewound && stream->output.next_token() > 0) {
    stream->ending.reason = reason_for(rewound.error().code);
    stream->ending.code = rewound.error().code;
    stream->ending.message = rewound.error().message;
  }
  stream->done_sent = false;
  table_.mark(*stream);
  if (stream->phase == Phase::kRunning) grant(*stream);
}

void Requests::end(const msg::End& end, Nanos now) {
  Stream* stream = table_.find(end.epoch());
  if (stream == nullptr || stream->phase == Phase::kEnded) return counters_.add(Counter::kMessagesUnknown);
  if (stream->phase == Phase::kStopping)  // it had ended by itself; only the account is missing
    return finish(*stream, msg::FinishReason::stop, Code::kOk, "", now);
  const bool known = end.reason() <= msg::FinishReason::MAX && end.code() <= msg::Code::MAX;
  if (!known) counters_.add(Counter::kMessagesMalformed);
  stop_work(*stream);
  finish(*stream, known ? end.reason() : msg::FinishReason::error,
         known ? msg::to_code(end.code()) : Code::kInternal,
         end.message() == nullptr ? "" : readable(end.message()->string_view()), now);
}

void Requests::forget(Epoch epoch) {
  Stream* stream = table_.find(epoch);
  if (stream == nullptr) return counters_.add(Counter::kMessagesUnknown);
  if (stream->phase != Phase::kEnded) {
    stop_work(*stream);
    counters_.add(Counter::kRequestsForgotten);
    --live_;
  }
  table_.erase(*stream);
}

void Requests::end_all(Code code, const std::string& message, Nanos now) {
  for (const Epoch epoch : table_.epochs())
    if (Stream* stream = table_.find(epoch); stream->phase != Phase::kEnded)
      fail(*stream, {code, message}, now);
}

void Requests::forget_all() {
  for (const Epoch epoch : table_.epochs()) forget(epoch);
}

void Requests::link_lost(LinkId link, const std::string& why, Nanos now) {
  for (const Epoch epoch : table_.epochs()) {
    Stream* stream = table_.find(epoch);
    if (stream->link != link || stream->phase == Phase::kEnded) continue;
    if (stream->phase == Phase::kStopping)
      finish(*stream, msg::FinishReason::stop, Code::kOk, "", now);
    else
      fail(*stream, {Code::kWorkerLost, why}, now);
  }
}

// ---- from the gpu-workers ----

bool Requests::read_rings(Nanos now) {
  now_ = now;
  return links_.poll(*this);
}

void Requests::check_peers(Nanos now) {
  now_ = now;
  links_.check_peers(*this);
}

void Requests::on_token(LinkId link, const shm::TokenRow& row, std::span<const TokenLogprob> top) {
  Stream* stream = table_.find(row.epoch);
  if (stream == nullptr || stream->phase == Phase::kEnded) return counters_.add(Counter::kTokensLate);
  if (stream->link != link || stream->phase == Phase::kEncoding) {
    return foreign_record(link, row.epoch);
  }
  if (stream->phase == Phase::kStopping) return counters_.add(Counter::kTokensPastStop);
  if (const auto wrong = why_wrong(*stream, row, top.size())) return protocol_error(*stream, *wrong);
  counters_.add(Counter::kTokens);
  if (stream->marks.first_token == 0) stream->marks.first_token = now_;
  stream->marks.last_token = now_;
  stream->output.add_token(row.id, row.logprob, top);
  stream->output.add_text(stream->text->push(row.id));
  table_.mark(*stream);
  if (stream->text->stopped()) stop_found(*stream);
}

std::optional<std::string> Requests::why_wrong(const Stream& stream, const shm::TokenRow& row,
                                               size_t top_count) const {
  const uint32_t expected = stream.output.next_token();
  if (row.token_number != expected)
    return "token number " + std::to_string(row.token_number) + "; expected " + std::to_string(expected);
  if (row.token_number >= stream.granted)
    return "token number " + std::to_string(row.token_number) + "; granted were " +
           std::to_string(stream.granted);
  if (row.token_number >= stream.max_tokens)
    return "token number " + std::to_string(row.token_number) + "; max_tokens is " +
           std::to_string(stream.max_tokens);
  if (row.id >= tokenizer_.vocab_size())
    return "token id " + std::to_string(row.id) + "; allowed: 0 to " +
           std::to_string(tokenizer_.vocab_size() - 1);
  if (top_count > stream.top_logprobs)
    return std::to_string(top_count) + " log-probabilities; asked for " + std::to_string(stream.top_logprobs);
  return std::nullopt;
}

void Requests::stop_found(Stream& stream) {
  links_.stop_at(stream.link, stream.epoch, stream.output.next_token());
  stream.phase = Phase::kStopping;
  stream.ending.stop = stream.text->stop_string();
  awaiting_account_.emplace_back(now_ + limits_.account_wait, stream.epoch);
}

void Requests::on_ended(LinkId link, const shm::EndedRecord& record, std::string_view message) {
  Stream* stream = table_.find(record.epoch);
  if (stream == nullptr || stream->phase == Phase::kEnded) return;  // cancelled here before: nothing to learn
  if (stream->link != link || stream->phase == Phase::kEncoding) {
    return foreign_record(link, record.epoch);
  }
  take_account(*stream, record);
  if (stream->phase == Phase::kStopping) return finish(*stream, msg::FinishReason::stop, Code::kOk, "", now_);

  const auto reason = static_cast<msg::FinishReason>(record.reason);
  const bool complete = reason == msg::FinishReason::stop || reason == msg::FinishReason::length;
  if (reason > msg::FinishReason::MAX || record.code > static_cast<uint8_t>(kLastCode))
    return protocol_error(*stream, "an end with reason " + std::to_string(record.reason) + " and code " +
                                       std::to_string(record.code));
  if (complete && record.output_tokens != stream->output.next_token())
    return protocol_error(*stream, "an end after " + std::to_string(record.output_tokens) + " tokens; " +
                                       std::to_string(stream->output.next_token()) + " came");
  finish(*stream, reason, static_cast<Code>(record.code), readable(message), now_);
}

void Requests::take_account(Stream& stream, const shm::EndedRecord& record) {
  stream.ending.cached_tokens = std::min(record.cached_tokens, stream.prompt_tokens);
  if (record.first_step_at > 0) stream.marks.first_step = record.first_step_at;
  if (record.first_token_at > 0) stream.marks.first_token = record.first_token_at;
  // Past a stop string the gpu-worker's last token is not the stream's.
  if (record.last_token_at > 0 && stream.phase == Phase::kRunning)
    stream.marks.last_token = record.last_token_at;
}

// Not this gpu-worker's request: the record must not touch it.
void Requests::foreign_record(LinkId link, Epoch epoch) {
  counters_.add(Counter::kProtocolErrors);
  // The 1st, 2nd, 4th, 8th...: a gpu-worker gone mad must not fill the log.
  if (std::has_single_bit(counters_[Counter::kProtocolErrors]))
    log::with("", epoch).error(
        "a record came over link {}, which does not run this request ({} wrong records so far)", link,
        counters_[Counter::kProtocolErrors]);
}

void Requests::protocol_error(Stream& stream, const std::string& what) {
  counters_.add(Counter::kProtocolErrors);
  log::with(to_string(stream.uid), stream.epoch).error("the gpu-worker broke the protocol: {}", what);
  fail(stream, {Code::kInternal, "the gpu-worker broke the protocol: " + what}, now_);
}

// ---- common ----

void Requests::grant(Stream& stream) {
  const uint32_t step = std::max(limits_.credit / 2, 1u);
  const uint64_t limit = uint64_t{stream.output.acknowledged().next_token} + limits_.credit;
  if (limit < uint64_t{stream.granted} + step || stream.granted >= stream.max_tokens) return;
  stream.granted = static_cast<uint32_t>(std::min<uint64_t>(limit, std::numeric_limits<uint32_t>::max()));
  links_.grant(stream.link, stream.epoch, stream.granted);
}

void Requests::fail(Stream& stream, const Error& error, Nanos now) {
  stop_work(stream);
  finish(stream, reason_for(error.code), error.code, error.message, now);
}

void Requests::stop_work(Stream& stream) {
  if (stream.phase == Phase::kEncoding) pool_.cancel({EncodeTicket::Kind::kRequest, stream.epoch});
  if (stream.phase == Phase::kRunning) links_.cancel(stream.link, stream.epoch);
  // kStopping: the gpu-worker has been told already.
}

void Requests::finish(Stream& stream, msg::FinishReason reason, Code code, std::string message, Nanos now) {
  Ending& ending = stream.ending;
  if (stream.text && !stream.text->stopped()) {
    stream.output.add_text(stream.text->finish());
    // The mark for an incomplete character may itself complete a stop string.
    if (stream.text->stopped() && reason == msg::FinishReason::length) {
      reason = msg::FinishReason::stop;
      ending.stop = stream.text->stop_string();
    }
  }
  ending.reason = reason;
  ending.code = code;
  ending.message = std::move(message);
  ending.prompt_tokens = stream.prompt_tokens;
  ending.output_tokens = stream.output.next_token();
  ending.timings = stage_timings(stream.marks, now);
  stream.phase = Phase::kEnded;
  stream.text.reset();
  stream.params.reset();
  --live_;
  counters_.add(Counter::kRequestsEnded);
  table_.mark(stream);
  lingering_.emplace_back(now + limits_.linger, stream.epoch);
}

void Requests::flush(Nanos now) {
  pool_.end_turn();
  links_.flush();
  if (retry_send_at_ != kNever && now < retry_send_at_) return;
  retry_send_at_ = writer_.write(table_.to_send()) ? kNever : now + limits_.send_retry;
}

Nanos Requests::run_timers(Nanos now) {
  while (!awaiting_account_.empty() && awaiting_account_.front().first <= now) {
    Stream* stream = table_.find(awaiting_account_.front().second);
    awaiting_account_.pop_front();
    if (stream != nullptr && stream->phase == Phase::kStopping)
      finish(*stream, msg::FinishReason::stop, Code::kOk, "", now);
  }
  while (!lingering_.empty() &&
         (lingering_.front().first <= now || lingering_.size() > limits_.max_lingering)) {
    Stream* stream = table_.find(lingering_.front().second);
    lingering_.pop_front();
    if (stream != nullptr) table_.erase(*stream);
  }
  Nanos next = retry_send_at_;
  if (!awaiting_account_.empty()) next = std::min(next, awaiting_account_.front().first);
  if (!lingering_.empty()) next = std::min(next, lingering_.front().first);
  return next;
}

}  // namespace ringmaster::tokenizer_worker
