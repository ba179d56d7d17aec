// The workers the router knows: who registered under which name and route, what they said last, which
// tokenizer-worker is linked to which gpu-worker. Decides who is usable and who is dead; sends nothing and
// knows no request (the caller ends the requests of a worker that this reports as gone).
//
// A registration is one Worker object. A worker that comes back with another instance is another object:
// whoever still holds the former one sees State::kDead and never speaks to the successor by mistake. Thread:
// the router's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "router/admission.h"
#include "schemas/codec.h"

namespace ringmaster::router {

inline constexpr size_t kMaxWorkers = 1024;

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

struct WorkerLoad {
  uint32_t running = 0, waiting = 0, blocks_free = 0, blocks_total = 0;
  uint64_t steps = 0;
};

struct Link {
  std::string gpu_worker;
  uint64_t gpu_instance = 0;
};

struct Worker {
  enum class State : uint8_t {
    kUsable,
    kRefused,  // speaks to us, but must not get requests: `refusal` says why
    kDead,     // kept for status until its name registers again
  };

  msg::WorkerKind kind = msg::WorkerKind::tokenizer_worker;
  State state = State::kUsable;
  std::string name;
  std::string peer;
  int32_t pid = 0;
  uint64_t instance = 0;
  std::string model_name;
  uint64_t weights_hash = 0;
  ModelLimits limits;
  std::string device;
  std::string ring_socket;
  uint32_t max_live = 0;  // 0: no limit of its own
  std::string refusal;
  Nanos last_seen = 0;
  WorkerLoad load;
  std::vector<Link> links;  // tokenizer-worker only

  uint32_t live = 0;         // requests that are placed on it now; kept by the request table's owner
  uint64_t last_placed = 0;  // order of placements, so that equals take turns

  bool usable() const { return state == State::kUsable; }
  bool has_room() const { return max_live == 0 || live < max_live; }
  bool is_gpu() const { return kind == msg::WorkerKind::gpu_worker; }
  bool linked_to(const Worker& gpu) const;
};
using WorkerPtr = std::shared_ptr<Worker>;

class WorkerRegistry {
 public:
  struct Added {
    WorkerPtr worker;      // as it stands now, perhaps refused
    WorkerPtr replaced;    // its former self, to be lost; null: none
    bool renewed = false;  // the same instance was known already: nothing else changed
  };

  // Errors: fields that are wrong; nothing was changed.
  Result<Added> add(const msg::Register& message, std::string_view peer, Nanos now);
  // The worker that speaks through this route; null: register first.
  WorkerPtr find(std::string_view peer) const;
  // A refused worker may have become compatible since (the others are gone). Returns whether it is usable now
  // and was not.
  bool reconsider(Worker& worker);
  // From now on dead. Its route may belong to its successor already.
  void bury(Worker& worker);
  // Those that were silent for longer than `timeout`. The caller buries them.
  std::vector<WorkerPtr> silent(Nanos now, Nanos timeout) const;
  Nanos next_silent(Nanos timeout) const;
  // The router itself was stopped: their silence was ours and starts anew.
  void forgive(Nanos now);

  // Everyone, dead and refused included, by name.
  const std::vector<WorkerPtr>& all() const { return all_; }
  // Limits that every placement can keep: the least of the usable workers. 0: nobody has told.
  ModelLimits limits() const;
  std::string_view model_name() const;

 private:
  std::string mismatch(const Worker& candidate) const;  // empty: it fits the usable ones
  Status make_room();

  std::vector<WorkerPtr> all_;  // sorted by name; one entry a name
  std::unordered_map<std::string, WorkerPtr, StringHash, std::equal_to<>> by_peer_;
};

}  // namespace ringmaster::router
