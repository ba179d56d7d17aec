// What the processes of a cluster hold, each in its own words: the answer to Client::books(). Plain values. A
// snapshot of several processes is not taken at one moment; what that means, and what should agree with what,
// is in docs/audit.md. Lists hold at most 4,096 entries, `unlisted` counts the rest (`encoding`: of queries).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"

namespace ringmaster::client {

enum class RequestPhase : uint8_t { kWaiting, kRunning, kEnding, kEnded };
enum class StreamPhase : uint8_t { kEncoding, kRunning, kStopping, kEnded };
enum class SequencePhase : uint8_t { kWaiting, kRunning, kPaused, kFinished };

struct RequestBooks {
  Epoch epoch = 0;
  std::optional<uint32_t> tokenizer, gpu;  // places in ClusterBooks::workers; never beyond it
  RequestPhase phase = RequestPhase::kWaiting;
};

struct RouterBooks {
  std::vector<RequestBooks> requests;  // live ones, by epoch
  uint32_t unlisted = 0;
  uint32_t live = 0, waiting = 0, ended_kept = 0, clients = 0, clients_gone = 0;
  uint64_t accepted = 0, ended = 0;
  std::vector<uint64_t> queries;  // tags of tokenize queries
};

// One side's view of a slot; positions in bytes since the slot was given.
struct SlotBooks {
  uint32_t slot = 0;
  std::string peer;
  int peer_pid = 0;            // at a gpu-worker
  uint64_t peer_instance = 0;  // at a tokenizer-worker
  uint64_t commands = 0, prompts = 0, tokens = 0;
  uint32_t waiting = 0;
  bool broken = false;
};

struct StreamBooks {
  Epoch epoch = 0;
  std::optional<uint32_t> link;  // place in TokenizerWorkerBooks::slots; never beyond it
  StreamPhase phase = StreamPhase::kEncoding;
};

struct TokenizerWorkerBooks {
  std::vector<StreamBooks> streams;  // that have not ended, by epoch
  uint32_t unlisted = 0;
  uint32_t live = 0, ended_kept = 0, clients = 0;
  uint64_t assigned = 0, ended = 0, forgotten = 0;
  uint32_t encoding = 0;
  std::vector<uint64_t> queries;
  std::vector<SlotBooks> slots;
  uint32_t attaching = 0;
};

struct SequenceBooks {
  Epoch epoch = 0;
  uint32_t slot = 0, blocks = 0;
  SequencePhase phase = SequencePhase::kWaiting;
  bool lane = false;
};

struct GpuWorkerBooks {
  std::vector<SequenceBooks> sequences;  // by epoch; finished ones wait for their last step
  uint32_t unlisted = 0;
  uint32_t live = 0, lanes_taken = 0, lanes = 0, in_flight = 0;
  uint32_t blocks = 0, blocks_free = 0, blocks_cached = 0, blocks_used = 0;
  uint32_t blocks_held = 0;  // different blocks in tables and waiting releases
  uint64_t references = 0, table_references = 0;
  uint32_t deferred = 0;
  std::vector<SlotBooks> slots;  // held ones
  uint32_t slots_total = 0;
  std::string fault;
};

struct WorkerBooks {
  std::string name;
  bool gpu = false;
  int pid = 0;
  uint64_t instance = 0;
  std::string state;  // "ready", "starting", "refused: ...", "dead"
  uint32_t live = 0;  // requests that the router has placed on it
  struct LinkedTo {
    std::string gpu_worker;
    uint64_t gpu_instance = 0;
  };
  std::vector<LinkedTo> linked;  // as the router knows it
  // Neither: it did not answer within 500 ms.
  std::optional<TokenizerWorkerBooks> tokenizer_books;
  std::optional<GpuWorkerBooks> gpu_books;

  bool answered() const { return tokenizer_books || gpu_books; }
};

struct ClusterBooks {
  uint32_t incarnation = 0;
  RouterBooks router;
  std::vector<WorkerBooks> workers;  // by name
};

}  // namespace ringmaster::client
