// Chooses the next token of one sequence from its logits. The order of operations is that of Hugging Face's
// generate():
//
//   1. log-probabilities: log-softmax of the raw logits
//   2. + logit_bias
//   3. repetition penalty over prompt and output: logit > 0 ? logit / r : logit * r
//   4. - frequency_penalty * count - presence_penalty * (count > 0), over output (OpenAI)
//   5. stop ids suppressed while the token number is below min_tokens
//   6. temperature below 1e-5: the largest logit, lowest id among equals. Otherwise / temperature, then
//   7. top-k, 8. top-p (the smallest set, likeliest first, whose probability reaches p, over what top-k
//   left),
//   9. min-p (at least min_p times the likeliest), 10. one draw, ids in ascending order, by uniform(seed,
//   token number)
//
// A row depends on its own lane and logits only. A row whose logits are not all finite fails alone.
// Not thread-safe; one LaneSampler is used by one thread at a time, a Scratch belongs to one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "gpu-worker/kernels/kernels.h"
#include "gpu-worker/schedule/step_plan.h"

namespace ringmaster::gpu_worker {

// Temperatures below mean greedy: their reciprocal would turn differences of the last bit into certainty
// anyway.
inline constexpr float kGreedyTemperature = 1e-5f;

struct Candidate {
  float logit = 0;
  TokenId id = 0;
  float weight = 0;  // exp((logit - largest) / temperature)
};

// Buffers of one thread, grown to the vocabulary at first use and kept.
struct SamplerScratch {
  std::vector<float> block_maxima;
  std::vector<float> sorted_maxima;
  std::vector<double> block_sums;
  std::vector<Candidate> candidates;
  std::vector<Candidate> shuffled;
  std::vector<float> values;
  std::vector<float> weights;
};

class LaneSampler {
 public:
  // A sequence takes the lane. Ids at or above vocab_size are ignored (they were refused at the door).
  void open(const LaneOpen& open, uint32_t vocab_size);
  // logits: [vocab_size]; changed in place. Notes the sampled id for later penalties and as last_id().
  SampledRow sample(const kernels::Table& table, std::span<float> logits, uint32_t token_number,
                    SamplerScratch& scratch);
  TokenId last_id() const { return last_id_; }

 private:
  void adjust(std::span<float> logits, uint32_t token_number) const;
  void count(TokenId id, bool output);

  Lane lane_ = 0;
  Sampling sampling_;
  std::vector<TokenId> suppressed_;
  uint32_t min_tokens_ = 0;
  uint32_t logprobs_ = 0;
  TokenId last_id_ = 0;
  bool penalises_ = false;
  // How often each id came out; ids of the prompt alone count 0. Kept only when penalties ask for it.
  std::unordered_map<TokenId, uint32_t> seen_;
};

}  // namespace ringmaster::gpu_worker
