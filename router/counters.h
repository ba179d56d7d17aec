// What the router counts: one closed list, shown by name in StatusReply. A counter only grows.
// Books that must balance at any moment: requests_accepted = the six ended_* together + live requests.
// Thread: the router's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ringmaster::router {

enum class Counter : uint8_t {
  kRequestsReceived,  // Generate messages that could be read
  kRequestsAccepted,  // admitted as a new request
  kRequestsResumed,   // the same uid again
  kRequestsRefused,   // answered with Done(refused) at the door; never accepted
  kEndedStop,         // in the order of msg::FinishReason
  kEndedLength,
  kEndedCancelled,
  kEndedDeadline,
  kEndedRefused,
  kEndedError,
  kChunksForwarded,
  kTokensForwarded,
  kChunksStale,     // pieces or endings of another owner, another route or after the end: dropped
  kStreamsRebuilt,  // payloads that were part stale
  kAcksForwarded,
  kAcksIgnored,  // of an unknown request or another client's
  kCancelsIgnored,
  kTokenizeQueries,
  kMessagesRejected,        // from clients: malformed, too large, too new, not allowed
  kWorkerMessagesRejected,  // from workers
  kClientsLost,             // lease run out or unreachable, with requests
  kWorkersLost,
  kWorkersRefused,  // registrations: another model, bad fields
  kSendsFull,       // high-water mark: by design a bug
  kImpossible,      // a transition the state machine does not have: a bug
  kCount,
};

inline constexpr std::array<std::string_view, static_cast<size_t>(Counter::kCount)> kCounterNames = {
    "requests_received", "requests_accepted", "requests_resumed",  "requests_refused",
    "ended_stop",        "ended_length",      "ended_cancelled",   "ended_deadline",
    "ended_refused",     "ended_error",       "chunks_forwarded",  "tokens_forwarded",
    "chunks_stale",      "streams_rebuilt",   "acks_forwarded",    "acks_ignored",
    "cancels_ignored",   "tokenize_queries",  "messages_rejected", "worker_messages_rejected",
    "clients_lost",      "workers_lost",      "workers_refused",   "sends_full",
    "impossible"};
static_assert(!kCounterNames.back().empty(), "every counter has a name");

class Counters {
 public:
  void add(Counter counter, uint64_t n = 1) { values_[static_cast<size_t>(counter)] += n; }
  uint64_t operator[](Counter counter) const { return values_[static_cast<size_t>(counter)]; }
  const auto& all() const { return values_; }

 private:
  std::array<uint64_t, static_cast<size_t>(Counter::kCount)> values_{};
};

}  // namespace ringmaster::router
