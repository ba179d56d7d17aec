// Everything that a seed decides before the run begins: the cluster's shape and settings, the network, what
// clients ask for and when, which faults strike. A value; made once, never changed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "client/cpp/ringmaster.h"
#include "shm/slot.h"
#include "tests/simulate/random.h"

namespace ringmaster::simulate {

struct Fault {
  enum class Kind {
    kKill,    // kill -9, restarted by the supervisor after `length`
    kPause,   // SIGSTOP for `length`
    kDrain,   // SIGTERM, then restarted
    kBreak,   // a client's connection: what is on its way is lost; back under the same name after `length`
    kMove,    // the same, and back under another name
    kVanish,  // a client that never comes back
  };
  Nanos at = 0;
  Kind kind = Kind::kKill;
  std::string target;  // process, or client number as text
  Nanos length = 0;
  bool last_words = false;  // kKill: messages that were on their way arrive
  // kKill: in the middle of a turn, at this send or call of the device from then on; 0: between two turns.
  uint32_t in_turn = 0;
};

// A fault in the cluster itself, put there to see that it is found (simulate_test.cc).
enum class Sabotage {
  kNone,
  kWrongId,         // one prompt id of one step is another
  kNoEnding,        // no terminal message reaches a client
  kMoreCredit,      // tokenizer-workers send one token more than the credit
  kUnnoticedDeath,  // gpu-workers are never told that a tokenizer-worker has died
};

struct PlannedRequest {
  Nanos at = 0;
  uint32_t client = 0;
  Uid uid;
  client::Request request;
  Nanos cancel_after = 0;  // 0: never
};

struct Network {
  Nanos latency = 0;
  Nanos client_jitter = 0;  // each way, each client apart: paths overtake each other
  Nanos worker_jitter = 0;
  uint32_t drop_percent = 0;  // of messages between clients and router, while faults last
  uint32_t duplicate_percent = 0;
};

struct Plan {
  uint64_t seed = 0;
  uint32_t num_clients = 1;
  ClusterConfig config;
  Nanos place_limit = 0;
  Nanos end_limit = 2 * kSecond;
  uint32_t encode_queue = 0;
  shm::SlotSizes slot_sizes;
  client::Options client_options;
  std::vector<Nanos> read_pause;  // [clients] between two events taken; 0: reads at once
  Network network;
  std::vector<PlannedRequest> requests;  // by time
  std::vector<Fault> faults;             // by time
  Nanos calm_from = 0;                   // no new requests and no faults from here on
  Random run{0};                         // for chance during the run
  Sabotage sabotage = Sabotage::kNone;

  // Which endings other than the asked-for ones may happen at all.
  bool worker_faults = false, router_faults = false, client_faults = false, device_fails = false;
  // Tokenizer-workers are stopped for moments that everybody must bear: rings fill, and endings made without
  // them meet pieces that are late. Excuses no ending.
  bool slow_readers = false;
  bool memory_fails = false;  // an allocation of one process, once
  bool tight = false;         // queues and limits small enough to refuse

  // Nothing at all comes late.
  bool prompt() const { return !any_faults() && !slow_readers; }
  bool any_faults() const { return worker_faults || router_faults || client_faults || device_fails; }
};

std::string worker_name(bool gpu, uint32_t index);
std::string client_name(uint32_t client, uint32_t life);  // a new name for each move
std::string_view name(Fault::Kind kind);

inline constexpr Nanos kStart = 1000 * kSecond;  // of the fake clock

Plan make_plan(uint64_t seed);
std::string describe(const Plan& plan);

}  // namespace ringmaster::simulate
