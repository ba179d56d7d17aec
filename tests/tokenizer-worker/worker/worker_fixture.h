// The whole actor in a world of its own (world.h), with an attacher whose answers the test gives.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "tests/tokenizer-worker/worker/world.h"
#include "tokenizer-worker/tokenizer_worker.h"

namespace ringmaster::tokenizer_worker {

class HandAttacher final : public Attacher {
 public:
  bool attach(AttachJob job) override {
    if (full) return false;
    jobs.push_back(std::move(job));
    return true;
  }
  std::optional<Attached> take() override {
    if (results.empty()) return std::nullopt;
    auto result = std::move(results.front());
    results.pop_front();
    return result;
  }
  bool full = false;
  std::vector<AttachJob> jobs;
  std::deque<Attached> results;
};

class Worker : public ::testing::Test {
 protected:
  Worker() {
    times.drain = 10 * kSecond;
    worker.emplace(WorkerIdentity{"tokenizer-worker.0", 4711, 0xABC, "tiny", 5, kTinyVocabulary, 256, 64},
                   times, w.requests, w.pool, w.links, attacher, w.outbox, w.counters);
  }

  template <typename Make>
  void receive(msg::TokenizerWorkerBody type, Make make) {
    flatbuffers::FlatBufferBuilder b;
    const auto body = make(b);
    worker->receive(0, "", msg::seal<msg::TokenizerWorkerMessage>(b, type, body.Union()), w.now);
  }
  using Listed = std::vector<std::pair<std::string, uint64_t>>;
  void gpu_workers(uint32_t incarnation, const Listed& listed) {
    receive(msg::TokenizerWorkerBody::GpuWorkers, [&](auto& b) {
      std::vector<flatbuffers::Offset<msg::GpuWorker>> workers;
      for (const auto& [name, instance] : listed)
        workers.push_back(msg::CreateGpuWorkerDirect(b, name.c_str(), instance, ("/run/" + name).c_str()));
      return msg::CreateGpuWorkersDirect(b, incarnation, &workers);
    });
  }
  void assign(Epoch epoch, const std::string& text) {
    receive(msg::TokenizerWorkerBody::Assign, [&](auto& b) {
      msg::AssignT assign;
      assign.epoch = epoch;
      assign.client = {'c'};
      assign.gpu_worker = "gpu-worker.0";
      assign.gpu_instance = 7;
      assign.request = World::sealed(World::text_request(text));
      return msg::CreateAssign(b, &assign);
    });
  }
  void attached(FakeGpu& gpu, const std::string& name = "gpu-worker.0", uint64_t instance = 7) {
    attacher.results.push_back({name, instance, gpu.take_end()});
  }
  // A turn of the loop.
  void turn() {
    while (w.pool.run_one()) {
    }
    worker->poll(w.now);
    next_timer = worker->run_timers(w.now);
    worker->flush(w.now);
  }
  void pass(Nanos time) {
    w.now += time;
    turn();
  }
  void registered_and_linked() {
    turn();
    gpu_workers(3, {{"gpu-worker.0", 7}});
    attached(w.gpu);
    turn();
    w.outbox.clear();
  }
  template <typename Body>
  std::vector<Body> sent(Body* (msg::RouterBodyUnion::*as)()) {
    std::vector<Body> all;
    for (auto& message : w.outbox.others)
      if (auto* body = (message->body.*as)()) all.push_back(std::move(*body));
    return all;
  }
  std::vector<msg::RegisterT> registers() { return sent<msg::RegisterT>(&msg::RouterBodyUnion::AsRegister); }
  std::vector<msg::HeartbeatT> heartbeats() {
    return sent<msg::HeartbeatT>(&msg::RouterBodyUnion::AsHeartbeat);
  }
  std::vector<msg::LinkedT> linked() { return sent<msg::LinkedT>(&msg::RouterBodyUnion::AsLinked); }
  std::vector<msg::TokenizedT> tokenized() {
    return sent<msg::TokenizedT>(&msg::RouterBodyUnion::AsTokenized);
  }

  World w{{.linked = false}};
  WorkerTimes times;
  HandAttacher attacher;
  std::optional<TokenizerWorker> worker;
  Nanos next_timer = 0;
};

}  // namespace ringmaster::tokenizer_worker
