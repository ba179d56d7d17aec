// What the device benchmarks share: a device of a model, a blocking step, and one decode batch kept two steps
// deep as the worker keeps it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "gpu-worker/device/device.h"
#include "shm/doorbell.h"

namespace ringmaster::gpu_worker {

class BenchDevice {
 public:
  using Make = std::function<Result<std::unique_ptr<Device>>(shm::Doorbell& bell)>;
  explicit BenchDevice(const Make& make) : bell_(take(shm::Doorbell::create())), device_(take(make(bell_))) {}

  Device& operator*() { return *device_; }
  Device* operator->() { return device_.get(); }
  const Device* operator->() const { return device_.get(); }

  // The oldest step in flight.
  StepResult wait(Nanos spin = 0) {
    const Nanos deadline = monotonic_now() + 60 * kSecond;
    for (;;) {
      const uint32_t seen = bell_.sequence();
      if (std::optional<StepResult> result = device_->retire(monotonic_now())) {
        if (result->error) fail(result->error->message);
        return std::move(*result);
      }
      if (monotonic_now() > deadline) fail("a step did not finish in 60 s");
      bell_.wait(seen, deadline, spin);
    }
  }

  StepResult step(StepPlan plan) {
    device_->submit(std::move(plan));
    return wait();
  }

  template <typename T>
  static T take(Result<T> result) {
    if (!result) fail(result.error().message);
    return std::move(*result);
  }

  [[noreturn]] static void fail(const std::string& message) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::exit(1);
  }

 private:
  shm::Doorbell bell_;
  std::unique_ptr<Device> device_;
};

}  // namespace ringmaster::gpu_worker
