// The forward pass of a decoder described by data, on a team of threads. A step is cut into rounds; a round
// is one program of phases that every thread of the team goes through, from the embedding to the sampled ids.
//
// Bits: a token's results depend on its sequence alone. Every kernel is batch-invariant and attention sums
// keys in spans counted from position 0, so chunking, company, prefix hits, threads and splitting change
// nothing. Thread: run() from the executor's thread. Owner of nothing but lanes; memory belongs to the
// device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu-worker/device/cpu/kv_memory.h"
#include "gpu-worker/device/cpu/round.h"
#include "gpu-worker/device/cpu/step_buffers.h"
#include "gpu-worker/device/cpu/team.h"
#include "gpu-worker/kernels/kernels.h"
#include "gpu-worker/model/description.h"
#include "gpu-worker/model/sampler.h"
#include "gpu-worker/model/weights.h"

namespace ringmaster::gpu_worker {

// Refuses by name what the forward pass below does not execute.
Status check_executable(const ModelDescription& description);

class Decoder {
 public:
  // All arguments outlive it. REQUIRES: check_executable(description), buffers placed.
  Decoder(const ModelDescription& description, const Weights& weights, const kernels::Table& table,
          const KvMemory& kv, StepBuffers& buffers, Team& team, uint32_t num_lanes);

  // REQUIRES: a plan whose ids, lanes and blocks are in range.
  std::vector<SampledRow> run(const StepPlan& plan);

 private:
  using Member = Team::Member;
  class NormedRows;

  size_t phases_of(const Round& round) const;
  void forward(Member& member, const StepPlan& plan, const Round& round);
  void embed(Member& member, const Round& round);
  void attention(Member& member, const StepPlan& plan, const Round& round, uint32_t layer);
  void project_qkv(Member& member, const Round& round, const LayerWeights& layer);
  void turn_and_store(Member& member, const StepPlan& plan, const Round& round, uint32_t layer);
  void attend_piece(unsigned thread, const StepPlan& plan, const Round& round, const AttentionPiece& piece,
                    uint32_t layer);
  void merge_parts(unsigned thread, const AttentionMerge& merge, kernels::InputForm form);
  void finish_attention(float* sums, const float* max_sums, uint32_t token, uint32_t kv_head,
                        kernels::InputForm form);
  void feed_forward(Member& member, const Round& round, const LayerWeights& layer);
  void sample(Member& member, const StepPlan& plan, const Round& round);

  const ModelDescription& d_;
  const Weights& weights_;
  const kernels::Table& table_;
  const KvMemory& kv_;
  StepBuffers& buffers_;
  Team& team_;
  const uint32_t group_;  // query heads that share a key-value head
  std::vector<LaneSampler> lanes_;
  std::vector<SampledRow> results_;
};

}  // namespace ringmaster::gpu_worker
