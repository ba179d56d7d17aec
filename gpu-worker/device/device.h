// The narrow interface at the level of a step behind which `fake`, `cpu` and `cuda` live. A device owns
// weights, KV memory and lanes; it knows blocks and lanes by number and nothing of requests.
//
// Thread: all calls come from the worker's loop thread. A device computes on threads of its own and rings the
// doorbell it was given when a step is done; a device driven by a timer says when to look again (next_event).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "gpu-worker/schedule/step_plan.h"
#include "shm/doorbell.h"

namespace ringmaster::gpu_worker {

struct DeviceInfo {
  std::string kind;     // "fake", "cpu", "cuda"
  std::string variant;  // instruction set or chip: "avx512", "avx2", "generic"
  std::string model;    // what the file calls itself
  uint64_t weights_hash = 0;
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;
  uint32_t num_blocks = 0;
  uint32_t block_tokens = 0;
  uint32_t num_lanes = 0;
  uint64_t weights_bytes = 0;
  uint64_t kv_bytes = 0;
  Nanos step_limit = kNever;  // a step that takes longer will not end any more
};

class Device {
 public:
  // Steps submitted and not yet retired: one runs, one waits ready behind it.
  static constexpr uint32_t kMaxInFlight = 2;

  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  // Enqueues a step and returns at once. REQUIRES: fewer than kMaxInFlight in flight; every id below
  // vocab_size or kFromLane; blocks and lanes in range. Steps run in order.
  virtual void submit(StepPlan plan) = 0;
  // The oldest finished step, or nothing yet. Steps retire in order. One with an error means that the device
  // is lost (kWorkerLost: it failed, kResourceExhausted: its memory, kInternal: an impossible plan): later
  // steps have errors too, and the process is to end. A device that is lost or hangs (info().step_limit)
  // cannot be taken down in order, so the process ends without destroying it.
  virtual std::optional<StepResult> retire(Nanos now) = 0;
  // When to call retire() again although no doorbell rings; kNever for a device that rings.
  virtual Nanos next_event() const { return kNever; }
};

// Loads the model and makes the device the configuration asks for. `bell` outlives it. Every refusal (missing
// file, truncated, unsupported, too little memory) comes before memory is taken, with the numbers.
Result<std::unique_ptr<Device>> make_device(const GpuWorkerConfig& config, const std::string& model_path,
                                            shm::Doorbell& bell);

}  // namespace ringmaster::gpu_worker
