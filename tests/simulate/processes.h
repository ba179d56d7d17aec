// Router, tokenizer-worker and gpu-worker as processes of the simulation: what their main() builds, without
// sockets and threads. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "gpu-worker/gpu_worker.h"
#include "router/router.h"
#include "tests/simulate/process.h"
#include "tests/simulate/slots.h"
#include "tests/simulate/watched_device.h"
#include "tokenizer-worker/tokenizer_worker.h"

namespace ringmaster::simulate {

class RouterProcess final : public Process {
 public:
  RouterProcess(World& world, uint64_t life, uint32_t incarnation, actor::Outbox& outbox);

  std::optional<int> exit_code() const override;
  void drain(Nanos now) override;
  Status check() const override;
  Status check_baseline() const override;
  const router::Router& router() const { return router_; }

 private:
  void take(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) override;
  Nanos turn(Nanos now) override;

  router::Router router_;
};

class GpuProcess final : public Process {
 public:
  GpuProcess(World& world, std::string name, uint64_t life, MortalOutbox& outbox);

  std::optional<int> exit_code() const override { return worker_->finished(); }
  void drain(Nanos now) override {
    as_process([&] { worker_->drain(now); });
  }
  Status check() const override;
  Status check_baseline() const override;
  Slots& slots() { return *slots_; }
  const gpu_worker::GpuWorker& worker() const { return *worker_; }

 private:
  void take(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) override;
  Nanos turn(Nanos now) override;

  shm::UniqueFd life_read_, life_write_;  // the read end hangs up when this object is gone
  std::unique_ptr<WatchedDevice> device_;
  Slots* slots_ = nullptr;  // the worker's
  std::unique_ptr<gpu_worker::GpuWorker> worker_;
};

class TokenizerProcess final : public Process {
 public:
  // `find_gpu`: the living gpu-worker that listens there, or null.
  using FindGpu = std::function<GpuProcess*(const std::string& ring_socket)>;
  TokenizerProcess(World& world, std::string name, uint64_t life, actor::Outbox& outbox,
                   const tokenizer_worker::Tokenizer& tokenizer, FindGpu find_gpu);
  ~TokenizerProcess() override;

  std::optional<int> exit_code() const override;
  void drain(Nanos now) override {
    as_process([&] { worker_.drain(now); });
  }
  Status check() const override;
  Status check_baseline() const override;
  // A pidfd has become readable.
  void peer_died() { peers_changed_ = true; }
  const tokenizer_worker::Requests& requests() const { return requests_; }

  class Attaching;

 private:
  void take(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) override;
  Nanos turn(Nanos now) override;
  void plan_encoding();

  std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);  // for what the agenda still holds
  const tokenizer_worker::PromptBuilder builder_;
  tokenizer_worker::EncodePool pool_;
  std::unique_ptr<Attaching> attacher_;
  tokenizer_worker::RingLinks links_;
  tokenizer_worker::Counters counters_;
  tokenizer_worker::Requests requests_;
  tokenizer_worker::TokenizerWorker worker_;
  bool peers_changed_ = false;
  bool encoding_planned_ = false;
};

}  // namespace ringmaster::simulate
