// What happens to the requests of this tokenizer-worker: assigned, encoded, started on a gpu-worker, their
// tokens turned into text and sent, acknowledged, ended. Decides everything about a request and owns no
// socket, thread or clock.
//
// Invariants
//   - every epoch that is assigned gets exactly one Done, or is forgotten on the router's word
//   - a token is accepted once, in order, within its grant; anything else ends its request as a protocol
//   error
//   - granted = acknowledged + credit, raised in steps of half a credit
//   - where a stop string ends a stream is decided here alone; tokens past it are dropped and not billed
//
// Thread: the stream thread. Everything referred to outlives this.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "schemas/codec.h"
#include "tokenizer-worker/counters.h"
#include "tokenizer-worker/encode_pool.h"
#include "tokenizer-worker/ring_links.h"
#include "tokenizer-worker/stream_table.h"
#include "tokenizer-worker/stream_writer.h"
#include "tokenizer-worker/text/tokenizer.h"

namespace ringmaster::tokenizer_worker {

struct RequestLimits {
  uint32_t context_length = 0;
  uint32_t max_live = 4096;     // router.max_live_requests
  uint32_t credit = 1024;       // router.credit_tokens
  Nanos linger = 30 * kSecond;  // tokenizer-worker.linger
  // How long the Done after a stop string waits for the gpu-worker's account of the request (cached tokens,
  // times of its steps): a decode step or a few, but not a long prefill of somebody else.
  Nanos account_wait = 50 * kMillisecond;
  // How soon a message that the transport did not take is tried again.
  Nanos send_retry = 10 * kMillisecond;
  // Ended streams that linger: the oldest goes first. At 30 s of linger this is a load of 500 requests a
  // second.
  size_t max_lingering = 16'384;
};

class Requests : private TokenSink {
 public:
  Requests(const RequestLimits& limits, const Tokenizer& tokenizer, EncodePool& pool, RingLinks& links,
           actor::Outbox& outbox, Counters& counters);

  // The router's messages; what is wrong with one is counted and logged, and ends its request where there is
  // one.
  void assign(const msg::Assign& assign, Nanos now);
  void acknowledge(const msg::AckedEpochs& acks);
  void resend(const msg::Resend& resend, Nanos now);
  void end(const msg::End& end, Nanos now);
  void forget(Epoch epoch);

  // The pool's answer to a request.
  void encoded(Epoch epoch, Result<std::vector<TokenId>> ids, Nanos now);

  // Takes no new requests from now on.
  void refuse_new(const std::string& why) { refuse_new_ = why; }
  // Ends all that live with this error.
  void end_all(Code code, const std::string& message, Nanos now);
  void forget_all();
  // The gpu-worker behind the link is gone: its requests end with worker_lost.
  void link_lost(LinkId link, const std::string& why, Nanos now);

  // Reads tokens; true when there may be more.
  bool read_rings(Nanos now);
  void check_peers(Nanos now);
  // Sends all that became available since the last call, and commands.
  void flush(Nanos now);
  // Runs what is due; returns when it wants to be called next.
  Nanos run_timers(Nanos now);

  uint32_t live() const { return live_; }  // not ended
  bool unsent() const { return !table_.all_sent(); }
  const StreamTable& table() const { return table_; }

 private:
  using Phase = Stream::Phase;

  // Before it runs (request_start.cc).
  Status accept(Stream& stream, const msg::Assign& assign, const msg::Generate& request);
  Status replay_received(Stream& stream);
  bool finish_if_complete(Stream& stream, Nanos now);
  Status start(Stream& stream, FittedPrompt prompt, Nanos now);
  StartCommand start_command(const Stream& stream, FittedPrompt prompt) const;

  // TokenSink
  void on_token(LinkId link, const shm::TokenRow& row, std::span<const TokenLogprob> top) override;
  void on_ended(LinkId link, const shm::EndedRecord& record, std::string_view message) override;
  std::optional<std::string> why_wrong(const Stream& stream, const shm::TokenRow& row,
                                       size_t top_count) const;
  void take_account(Stream& stream, const shm::EndedRecord& record);
  void stop_found(Stream& stream);
  void foreign_record(LinkId link, Epoch epoch);
  void protocol_error(Stream& stream, const std::string& what);

  void grant(Stream& stream);
  // The one way to end a request; its Done leaves at the next flush.
  void finish(Stream& stream, msg::FinishReason reason, Code code, std::string message, Nanos now);
  void fail(Stream& stream, const Error& error, Nanos now);
  // Ends it where it is now: in the encode pool or on the gpu-worker.
  void stop_work(Stream& stream);

  const RequestLimits limits_;
  const Tokenizer& tokenizer_;
  EncodePool& pool_;
  RingLinks& links_;
  Counters& counters_;
  StreamTable table_;
  StreamWriter writer_;
  uint32_t live_ = 0;
  std::string refuse_new_;
  Nanos now_ = 0;  // of the present read_rings(), for the TokenSink
  Nanos retry_send_at_ = kNever;
  // Both waits are equally long for all, so a queue is a timer.
  std::deque<std::pair<Nanos, Epoch>> lingering_;
  std::deque<std::pair<Nanos, Epoch>> awaiting_account_;
};

}  // namespace ringmaster::tokenizer_worker
