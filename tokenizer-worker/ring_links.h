// The rings to all gpu-workers, one link (a shm::TokenizerEnd) each. Commands of a request leave in the order
// they were given; what a full ring does not take waits here in a bounded list and goes out later (flush()).
// Tokens come in through poll(), every field checked against the record's size before it is used: the peer's
// memory is hostile.
//
// A link ends when its gpu-worker dies or refuses it, its ring is broken, a record is malformed, or it does
// not read its commands. It then takes and gives nothing more, and take_lost() reports it once; the owner
// ends the affected requests.
//
// Not here: what a request is, and whether an epoch or a token number is right (Requests). No ZeroMQ, no
// clock. Thread: the stream thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/sampling.h"
#include "base/status.h"
#include "shm/records.h"
#include "shm/slot.h"

namespace ringmaster::tokenizer_worker {

using LinkId = uint32_t;  // never used again in this process's life

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0;
};

// A start command with its prompt. RingLinks fills in epoch, counts and written sizes of both records from
// the rest.
struct StartCommand {
  shm::StartRecord record{};
  std::vector<TokenId> ids;   // the prompt, then output ids that the client already has
  uint32_t prompt_count = 0;  // how many of them are prompt
  std::vector<TokenId> stop_ids;
  std::vector<LogitBias> bias;
};

// Who gets what poll() reads. The spans and views are valid during the call.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_token(LinkId link, const shm::TokenRow& row, std::span<const TokenLogprob> top) = 0;
  virtual void on_ended(LinkId link, const shm::EndedRecord& record, std::string_view message) = 0;
};

struct LinkInfo {
  LinkId id = 0;
  std::string gpu_worker;
  uint64_t gpu_instance = 0;
};

// A link for an audit: how far this side has written and read its rings, in bytes.
struct LinkHolding {
  LinkInfo link;
  uint32_t slot = 0;
  uint64_t commands_written = 0, prompts_written = 0, tokens_read = 0;
  size_t waiting = 0;  // commands that wait for room
};

struct LostLink {
  LinkInfo link;
  std::string why;
};

struct LinkLimits {
  // Starts that wait behind a full ring: more are refused. Four times gpu-worker.max_running by default, so
  // that a gpu-worker that comes back to its rings finds a full batch, while a prompt each stays below the
  // prompt ring's size.
  size_t max_waiting_starts = 256;
  // Commands of all kinds that wait. A running request owes a few at most, so this many (four command rings
  // full) mean that the gpu-worker has stopped reading.
  size_t max_waiting = 16'384;
  // Records read from one link in one poll(): bounds how long messages wait behind a flood of tokens.
  size_t records_per_poll = 64;
};

class RingLinks {
 public:
  explicit RingLinks(LinkLimits limits = {}) : limits_(limits) {}

  // Told of every descriptor that becomes readable when a gpu-worker dies (then check_peers() is due), and of
  // its end before it is closed.
  void watch_peers(std::function<void(int fd)> add, std::function<void(int fd)> remove);

  LinkId add(const std::string& gpu_worker, uint64_t gpu_instance, shm::TokenizerEnd end);
  // Ends a link on our side (the router took the gpu-worker from us); reported by take_lost() like any other
  // end.
  void drop(LinkId link, const std::string& why);

  // Links that are up.
  std::optional<LinkId> find(std::string_view gpu_worker, uint64_t gpu_instance) const;
  std::vector<LinkInfo> all() const;
  std::vector<LinkHolding> holdings() const;

  // Commands; they leave at the next flush(). Ignored (start: kWorkerLost) when the link is not up.
  // kOverloaded: too many starts wait; kTooLarge: the prompt does not fit the ring.
  Status start(LinkId link, StartCommand command);
  void grant(LinkId link, Epoch epoch, uint32_t granted);
  void stop_at(LinkId link, Epoch epoch, uint32_t token_count);
  // A start that still waits is taken back instead.
  void cancel(LinkId link, Epoch epoch);

  // Reads tokens of all links; true when there may be more.
  bool poll(TokenSink& sink);
  // Writes what waits, publishes, rings the bells of those who got something.
  void flush();
  // Notices dead gpu-workers. What they had written is read first.
  void check_peers(TokenSink& sink);
  std::vector<LostLink> take_lost();

  // Commands that a full ring holds back: flush() again soon, nobody rings when there is room.
  size_t waiting() const;

 private:
  struct Waiting {
    shm::RecordType type{};
    Epoch epoch = 0;
    uint32_t value = 0;
    std::unique_ptr<StartCommand> start;  // kStart only
    bool prompt_written = false;
  };
  struct Link {
    LinkInfo info;
    shm::TokenizerEnd end;
    std::deque<Waiting> waiting;
    size_t waiting_starts = 0;
    bool wrote = false;  // something to publish
  };

  Link* up(LinkId link) const { return link < links_.size() ? links_[link].get() : nullptr; }
  void give(LinkId link, Waiting command);
  bool write(Link& link, Waiting& command);
  bool write_start(Link& link, Waiting& command);
  bool write_waiting(Link& link);
  bool read(Link& link, TokenSink& sink, size_t budget);
  bool read_record(const Link& link, const shm::Record& record, TokenSink& sink);
  bool read_tokens(LinkId link, std::span<const std::byte> payload, TokenSink& sink);
  bool read_ended(LinkId link, std::span<const std::byte> payload, TokenSink& sink);
  void lose(LinkId link, std::string why);

  LinkLimits limits_;
  std::vector<std::unique_ptr<Link>> links_;  // by LinkId; null once ended
  std::vector<LostLink> lost_;
  std::vector<std::unique_ptr<Link>> retired_;  // mapped until take_lost(): a call may still be reading them
  std::function<void(int fd)> watch_, unwatch_;
};

}  // namespace ringmaster::tokenizer_worker
