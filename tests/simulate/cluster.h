// The processes of one run, their supervisor, and the faults that strike them. One event at a time:
// step() lets exactly one thing happen. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/simulate/client_process.h"
#include "tests/simulate/processes.h"
#include "tests/tokenizer-worker/worker/tiny_tokenizer.h"

namespace ringmaster::simulate {

class Cluster {
 public:
  Cluster(World& world, const Expectations& expectations);
  ~Cluster();

  // The next event up to `limit`; false when there is none, and the clock is at `limit`.
  bool step(Nanos limit);

  bool all_ended() const;
  std::string missing() const;
  // Everything is as if nothing had ever been asked. To be asked when every linger has passed.
  Status check_baseline() const;
  std::map<std::string, uint32_t> endings() const;
  uint64_t deaths() const { return deaths_; }

 private:
  struct ClientState {
    std::unique_ptr<ClientProcess> process;
    uint32_t connection = 0;
    std::string node;  // its name in the network
    bool vanished = false;
  };

  void start_process(const std::string& name);
  std::unique_ptr<Process> make_process(const std::string& name, uint64_t life);
  void died_in_turn(const std::string& name);
  void end_process(const std::string& name, bool last_words);
  void restart_later(const std::string& name, Nanos after);
  Process* find(const std::string& name) const;
  GpuProcess* find_gpu(const std::string& name) const;
  std::vector<TokenizerProcess*> tokenizers() const;

  void plan_network();
  void plan_events();
  void calm_network();
  void strike(const Fault& fault);
  void strike_client(const Fault& fault);
  void pause(const std::string& node, Nanos length);
  void connect_client(ClientState& client, const std::string& node);
  void answer_bells();
  void notice_exits();

  World& world_;
  const Expectations expectations_;
  const tokenizer_worker::TinyTokenizer tokenizer_;
  std::map<std::string, actor::Outbox*> outboxes_;
  std::map<std::string, std::unique_ptr<MortalOutbox>> mortals_;  // of the life that is, or was last
  std::map<std::string, std::unique_ptr<Process>> processes_;     // the living
  std::vector<ClientState> clients_;
  std::set<std::string> paused_;
  std::vector<int> rules_;
  uint64_t lives_ = 100;
  uint32_t incarnation_ = 0;
  uint64_t deaths_ = 0;
};

}  // namespace ringmaster::simulate
