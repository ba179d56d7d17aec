// The C++ client of a Ringmaster cluster: the one public header of client/cpp. It speaks the protocol of
// docs/protocol.md over ZeroMQ and hides what a caller need not see: acknowledgements and credit, pings,
// repeated and missing pieces, resuming after the connection or the router was lost.
//
//   auto client = ringmaster::client::Client::connect(endpoint);
//   auto answer = client->generate(request, [](const Piece& piece) { std::cout << piece.text; }, timeout);
//
// or, with many streams at once:
//
//   client->start(request);  ...  while (auto event = client->next(deadline)) ...
//
// Thread: one Client belongs to one thread. Every wait has a deadline. A request that was started gets
// exactly one Ending.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/sampling.h"
#include "base/status.h"
#include "client/cpp/books.h"

namespace ringmaster::client {

struct ChatMessage {
  std::string role;
  std::string content;
};

struct Request {
  // Text as it is, a conversation for the model's chat template, or ready-made ids.
  std::variant<std::string, std::vector<ChatMessage>, std::vector<TokenId>> prompt;
  Sampling sampling;
  bool has_seed = false;               // false: the router draws sampling.seed and Accepted tells it
  std::optional<uint32_t> max_tokens;  // none: up to the end of the context
  uint32_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_ids;
  bool ignore_eos = false;
  bool include_stop = false;
  bool skip_special = true;
  std::optional<uint8_t> logprobs;  // n: the chosen token's and the n best
  int8_t priority = 0;
  uint32_t deadline_ms = 0;  // 0: none
  std::string tenant;
  uint32_t resume_grace_ms = 10'000;  // how long the cluster keeps the stream when this client vanishes
};

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0;
};
struct Logprobs {
  float chosen = 0;
  std::vector<TokenLogprob> top;
};

// New tokens of a stream, in order, without gaps or repeats. Text may lag behind the ids while a character or
// a possible stop string is incomplete, so a piece may have ids without text and text without ids.
struct Piece {
  uint32_t first_token = 0;
  std::vector<TokenId> ids;
  std::string text;
  std::vector<Logprobs> logprobs;
};

struct Accepted {
  Epoch epoch = 0;
  uint64_t seed = 0;
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kDeadline, kRefused, kError };
std::string_view name(FinishReason reason);  // "stop"

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t output_tokens = 0;
};

// Stage durations in the order a request passes them; their sum is `total`.
struct Timings {
  Nanos route = 0, tokenize = 0, queue = 0, prefill = 0, decode = 0, detokenize = 0, total = 0;
};

struct Ending {
  FinishReason reason = FinishReason::kError;
  Code code = Code::kOk;
  std::string message;
  std::string stop;  // the stop string that ended it
  Usage usage;
  Timings timings;
};

struct Event {
  Uid uid;
  std::variant<Accepted, Piece, Ending> what;
};

struct Answer {
  Accepted accepted;
  std::vector<TokenId> ids;
  std::string text;
  std::vector<Logprobs> logprobs;
  Ending ending;
};

struct WorkerStatus {
  std::string kind, name, state, device;
  int pid = 0;
  uint32_t live = 0, running = 0, waiting = 0, blocks_free = 0, blocks_total = 0;
  uint64_t steps = 0, age_ms = 0;
};

struct ClusterStatus {
  uint32_t incarnation = 0;
  bool ready = false;
  std::string model;
  uint32_t context_length = 0, vocab_size = 0, live_requests = 0;
  std::vector<WorkerStatus> workers;
  std::vector<std::pair<std::string, uint64_t>> counters;
};

struct Options {
  Nanos ping_interval = 2 * kSecond;   // while streams are open
  Nanos silence_limit = 20 * kSecond;  // nothing heard for so long: open streams end with kUnavailable
  uint32_t ack_every = 256;            // tokens; well below the credit of a stream (1,024)
  // A stream that says nothing for so long is asked for again, then at growing intervals: a message may be
  // lost with a connection. Above the wait for a first token under ordinary load.
  Nanos ask_again_after = 5 * kSecond;
};

class Client {
 public:
  // Never blocks: ZeroMQ connects in the background, so a cluster that is still starting is fine.
  static Result<Client> connect(const std::string& endpoint, Options options = {});
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  // Sends the request. Its events come from next(), the last of them an Ending.
  Result<Uid> start(Request request);
  Status cancel(Uid uid);
  // The next event of any stream; nothing at the deadline. Handing a piece out is what acknowledges it.
  Result<std::optional<Event>> next(Nanos deadline);
  size_t open_streams() const;  // whose Ending next() has not handed out yet

  // One request from start to ending. At `timeout` it is cancelled and the Ending says so. Events of other
  // streams wait for next() meanwhile.
  Result<Answer> generate(Request request, const std::function<void(const Piece&)>& on_piece, Nanos timeout);
  Result<std::vector<TokenId>> tokenize(const Request& request, Nanos timeout);
  Result<ClusterStatus> status(Nanos timeout);
  // What every process holds, for an audit. kOverloaded: another audit is on its way, ask again.
  Result<ClusterBooks> books(Nanos timeout);

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringmaster::client
