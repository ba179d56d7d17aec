// What the tokenizer-worker counts: one closed list. A counter only grows.
// Books that must balance at any moment: requests_assigned = requests_ended + requests_forgotten + live
// requests. Thread: the stream thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ringmaster::tokenizer_worker {

enum class Counter : uint8_t {
  kRequestsAssigned,   // that got an epoch here
  kRequestsEnded,      // by a Done
  kRequestsForgotten,  // while alive, on the router's word
  kTokens,             // accepted
  kTokensLate,         // of requests that have ended or were forgotten: dropped
  kTokensPastStop,     // run ahead of a stop string: dropped, not billed
  kProtocolErrors,     // records that no correct gpu-worker writes
  kMessagesMalformed,  // from the router
  kMessagesUnknown,    // about epochs that are not here (any more)
  kAcksIgnored,        // of something never sent
  kSendsRefused,       // by the transport: by design a bug; tried again
  kLinksLost,
  kCount,
};

inline constexpr std::array<std::string_view, static_cast<size_t>(Counter::kCount)> kCounterNames = {
    "requests_assigned", "requests_ended",   "requests_forgotten", "tokens",
    "tokens_late",       "tokens_past_stop", "protocol_errors",    "messages_malformed",
    "messages_unknown",  "acks_ignored",     "sends_refused",      "links_lost"};
static_assert(!kCounterNames.back().empty(), "every counter has a name");

class Counters {
 public:
  void add(Counter counter, uint64_t n = 1) { values_[static_cast<size_t>(counter)] += n; }
  uint64_t operator[](Counter counter) const { return values_[static_cast<size_t>(counter)]; }
  std::string to_string() const;  // "requests_assigned 12, requests_ended 12, ..."

 private:
  std::array<uint64_t, static_cast<size_t>(Counter::kCount)> values_{};
};

}  // namespace ringmaster::tokenizer_worker
