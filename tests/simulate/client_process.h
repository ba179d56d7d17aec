// A simulated client: the real protocol logic (client/cpp/session.h) and somebody who starts requests, takes
// events at his own pace, and compares everything with the oracle: on the wire, and as the caller sees it.
// It outlives its connection: a fault may end that and give it another. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/session.h"
#include "tests/simulate/oracle.h"
#include "tests/simulate/process.h"

namespace ringmaster::simulate {

// Which endings a later version of the cluster must not need any more.
struct Expectations {
  // Today the death of a worker ends its requests with worker_lost. Once requests move to another worker,
  // this is false and such an ending is a fault.
  bool worker_death_may_end_requests = true;
};

class ClientProcess final : public Process {
 public:
  ClientProcess(World& world, uint32_t number, const tokenizer_worker::Tokenizer& tokenizer,
                const Expectations& expectations);

  // Its connection; null while there is none: what is sent then is lost.
  void connect(actor::Outbox* outbox, const std::string& node) {
    outbox_ = outbox;
    node_ = node;
  }
  void disconnect() { outbox_ = nullptr; }
  const std::string& node() const override { return node_; }
  void start(const PlannedRequest& planned, Nanos now);
  void cancel(Uid uid);
  // It never comes back: nothing is expected for its requests any more.
  void vanish() { vanished_ = true; }

  bool all_ended() const;
  std::string missing() const;  // requests without an ending, for a person
  const std::map<std::string, uint32_t>& endings() const { return endings_; }  // by reason and code

  Status check() const override { return ok_status(); }
  Status check_baseline() const override;

 private:
  // What was seen of one request.
  struct Seen {
    const PlannedRequest* planned = nullptr;
    std::unique_ptr<Oracle> oracle;
    Nanos started_at = 0;
    std::optional<Nanos> cancelled_at;
    uint32_t asked = 0;         // Generates sent
    bool done_on_wire = false;  // after the first of them
    bool accepted = false;
    std::vector<TokenId> ids;
    std::string text;
    std::optional<client::Ending> ending;
    uint32_t told = 0;  // tokens that the cluster was told are here, by acknowledgement or resume
  };

  void take(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) override;
  Nanos turn(Nanos now) override;

  Status send(msg::Bytes bytes);
  void tell(Uid uid, uint32_t tokens);
  void check_message(actor::Bytes message);
  void check_chunk(const msg::Chunk& chunk);
  void take_event(const client::Event& event, Nanos now);
  void take_piece(Seen& seen, const client::Piece& piece);
  void take_ending(Seen& seen, const client::Ending& ending, Nanos now);
  std::string late(const Seen& seen, Nanos now) const;
  std::string judge(const Seen& seen, const client::Ending& ending, Nanos now) const;
  std::string judge_complete(const Seen& seen, const client::Ending& ending) const;
  bool excused(const Seen& seen, const client::Ending& ending, Nanos now) const;
  Seen* find(Uid uid);
  void wrong(const Seen& seen, const std::string& what);

  const tokenizer_worker::Tokenizer& tokenizer_;
  const Expectations expectations_;
  const Nanos read_pause_;
  actor::Outbox* outbox_ = nullptr;
  std::string node_;
  client::Session session_;
  std::map<Uid, Seen> seen_;
  std::map<std::string, uint32_t> endings_;
  Nanos read_at_ = 0;
  bool vanished_ = false;
};

}  // namespace ringmaster::simulate
