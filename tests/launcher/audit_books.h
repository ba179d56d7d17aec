// The books that tests of `ringmaster audit` break: one pair of workers that serves one request, balanced.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launcher/audit.h"

namespace ringmaster::launcher {

inline constexpr Epoch kEpoch = (Epoch{3} << 32) | 7;
inline constexpr uint64_t kGpuInstance = 11;

inline std::string show(const Finding& f) {
  return f.process + ": " + f.rule + ": " + f.thing + ": expected " + f.expected + ", found " + f.found;
}
inline std::vector<std::string> show(const std::vector<Finding>& findings) {
  std::vector<std::string> out;
  for (const Finding& f : findings) out.push_back(show(f));
  return out;
}

// Supervisor, router, one gpu-worker with 16 slots, one tokenizer-worker; one request that runs with two
// blocks of its own and one that is shared with a release that waits.
inline AuditSnapshot balanced() {
  AuditSnapshot s;
  s.slots = 16;
  s.processes = {
      {.name = "supervisor",
       .pid = 1,
       .state = "ready",
       .alive = true,
       .threads = 1,
       .descriptors = {.pidfds = 4}},
      {.name = "router",
       .pid = 2,
       .state = "ready",
       .alive = true,
       .threads = 4,
       .descriptors = {.bells = 1,
                       .eventfds = 6,
                       .epolls = 3,
                       .signalfds = 1,
                       .files = 1,
                       .listening = 2,
                       .worker_connections = 2,
                       .client_connections = 2},
       .mapped_bells = 1},
      {.name = "gpu-worker.0",
       .pid = 3,
       .state = "ready",
       .alive = true,
       .threads = 4,
       .descriptors = {.slots = 16,
                       .bells = 2,
                       .pidfds = 1,
                       .eventfds = 5,
                       .epolls = 4,
                       .timerfds = 1,
                       .signalfds = 1,
                       .files = 1,
                       .listening = 1,
                       .sockets = 1},
       .mapped_slots = 16,
       .mapped_bells = 2},
      {.name = "tokenizer-worker.0",
       .pid = 4,
       .state = "ready",
       .alive = true,
       .threads = 6,
       .descriptors = {.slots = 1,
                       .bells = 2,
                       .pidfds = 1,
                       .eventfds = 5,
                       .epolls = 3,
                       .signalfds = 1,
                       .files = 1,
                       .sockets = 1},
       .mapped_slots = 1,
       .mapped_bells = 2},
  };

  client::ClusterBooks& books = s.books.emplace();
  books.router = {.requests = {{kEpoch, 1, 0, client::RequestPhase::kRunning}},
                  .live = 1,
                  .clients = 1,
                  .accepted = 5,
                  .ended = 4,
                  .queries = {70}};
  client::WorkerBooks gpu{
      .name = "gpu-worker.0", .gpu = true, .pid = 3, .instance = kGpuInstance, .state = "ready", .live = 1};
  gpu.gpu_books = {.sequences = {{kEpoch, 0, 3, client::SequencePhase::kRunning, true}},
                   .live = 1,
                   .lanes_taken = 1,
                   .lanes = 64,
                   .in_flight = 1,
                   .blocks = 100,
                   .blocks_free = 90,
                   .blocks_cached = 7,
                   .blocks_used = 3,
                   .blocks_held = 3,
                   .references = 4,
                   .table_references = 3,
                   .deferred = 1,
                   .slots = {{.slot = 0,
                              .peer = "tokenizer-worker.0",
                              .peer_pid = 4,
                              .commands = 640,
                              .prompts = 1024,
                              .tokens = 192}},
                   .slots_total = 16};
  client::WorkerBooks tokenizer{.name = "tokenizer-worker.0",
                                .pid = 4,
                                .instance = 21,
                                .state = "ready",
                                .live = 1,
                                .linked = {{"gpu-worker.0", kGpuInstance}}};
  tokenizer.tokenizer_books = {.streams = {{kEpoch, 0, client::StreamPhase::kRunning}},
                               .live = 1,
                               .assigned = 5,
                               .ended = 3,
                               .forgotten = 1,
                               .queries = {70},
                               .slots = {{.slot = 0,
                                          .peer = "gpu-worker.0",
                                          .peer_instance = kGpuInstance,
                                          .commands = 640,
                                          .prompts = 1024,
                                          .tokens = 192}}};
  books.workers = {gpu, tokenizer};
  return s;
}

// The same cluster after the request: nothing is held.
inline AuditSnapshot idle() {
  AuditSnapshot s = balanced();
  s.books->router = {.accepted = 5, .ended = 5};
  client::WorkerBooks& gpu = s.books->workers[0];
  client::WorkerBooks& tokenizer = s.books->workers[1];
  gpu.live = tokenizer.live = 0;
  gpu.gpu_books->sequences.clear();
  gpu.gpu_books->live = gpu.gpu_books->lanes_taken = gpu.gpu_books->in_flight = 0;
  gpu.gpu_books->blocks_used = gpu.gpu_books->blocks_held = gpu.gpu_books->deferred = 0;
  gpu.gpu_books->references = gpu.gpu_books->table_references = 0;
  gpu.gpu_books->blocks_free = 93;
  tokenizer.tokenizer_books->streams.clear();
  tokenizer.tokenizer_books->live = 0;
  tokenizer.tokenizer_books->ended = 4;
  tokenizer.tokenizer_books->queries.clear();
  return s;
}

inline client::ClusterBooks& books(AuditSnapshot& s) {
  return *s.books;
}
inline client::GpuWorkerBooks& gpu(AuditSnapshot& s) {
  return *s.books->workers[0].gpu_books;
}
inline client::TokenizerWorkerBooks& tok(AuditSnapshot& s) {
  return *s.books->workers[1].tokenizer_books;
}

}  // namespace ringmaster::launcher
