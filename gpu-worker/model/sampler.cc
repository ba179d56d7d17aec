#include "gpu-worker/model/sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "gpu-worker/model/philox.h"

namespace ringmaster::gpu_worker {
namespace {

using kernels::kExtentBlock;

// Likelier first, the lower id first among equals: the one order every cut is defined by.
bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// One row of logits while it is being sampled from.
class Row {
 public:
  Row(const kernels::Table& table, std::span<const float> logits, SamplerScratch& scratch)
      : table_(table), logits_(logits), scratch_(scratch) {
    scratch.block_maxima.resize((logits.size() + kExtentBlock - 1) / kExtentBlock);
    table.block_maxima(scratch.block_maxima.data(), logits.data(), logits.size());
    const auto top = std::max_element(scratch.block_maxima.begin(), scratch.block_maxima.end());
    max_ = *top;
    index_ = static_cast<TokenId>((top - scratch.block_maxima.begin()) * kExtentBlock);
    while (index_ + 1 < logits.size() && !(logits[index_] == max_)) ++index_;
  }

  float max() const { return max_; }
  TokenId index_of_max() const { return index_; }

  // Sum over all logits of exp((logit - max) * scale); leaves the blocks' sums in the scratch.
  double sum_of_exponentials(float scale) {
    scratch_.block_sums.resize(scratch_.block_maxima.size());
    table_.block_exp_sums(scratch_.block_sums.data(), logits_.data(), logits_.size(), max_, scale);
    double sum = 0;
    for (const double block : scratch_.block_sums) sum += block;
    return sum;
  }

  // A value that at least `count` logits reach and few more: the count-th largest of the blocks' maxima.
  float reached_by(size_t count) {
    std::vector<float>& maxima = scratch_.sorted_maxima;
    maxima = scratch_.block_maxima;
    if (count > maxima.size()) return -std::numeric_limits<float>::infinity();
    std::nth_element(maxima.begin(), maxima.begin() + static_cast<ptrdiff_t>(count - 1), maxima.end(),
                     std::greater<>());
    return maxima[count - 1];
  }

  // Every logit of at least `threshold`, in order of id, with weights at this scale.
  std::vector<Candidate>& collect(float threshold, float scale) {
    std::vector<Candidate>& out = scratch_.candidates;
    out.clear();
    for (size_t b = 0; b < scratch_.block_maxima.size(); ++b) {
      if (!(scratch_.block_maxima[b] >= threshold)) continue;
      const size_t end = std::min(logits_.size(), (b + 1) * kExtentBlock);
      for (size_t i = b * kExtentBlock; i < end; ++i)
        if (logits_[i] >= threshold) out.push_back({logits_[i], static_cast<TokenId>(i), 0});
    }
    weigh(out, scale);
    return out;
  }

  // One draw over the whole vocabulary: the block first, then inside it.
  TokenId draw_from_all(float scale, double u) {
    const double target = u * sum_of_exponentials(scale);
    double below = 0;
    size_t b = 0;
    while (b + 1 < scratch_.block_sums.size() && below + scratch_.block_sums[b] <= target)
      below += scratch_.block_sums[b++];
    while (scratch_.block_sums[b] == 0 && b > 0) --b;  // rounding ran past the last block with any weight
    const size_t first = b * kExtentBlock, n = std::min(kExtentBlock, logits_.size() - first);
    scratch_.weights.resize(kExtentBlock);
    table_.exponentials(scratch_.weights.data(), logits_.data() + first, n, max_, scale);
    size_t chosen = 0;
    for (size_t i = 0; i < n; ++i) {
      if (scratch_.weights[i] == 0) continue;
      chosen = i;
      below += static_cast<double>(scratch_.weights[i]);
      if (below > target) break;
    }
    return static_cast<TokenId>(first + chosen);
  }

 private:
  void weigh(std::vector<Candidate>& candidates, float scale) {
    scratch_.values.clear();
    for (const Candidate& c : candidates) scratch_.values.push_back(c.logit);
    scratch_.weights.resize(candidates.size());
    table_.exponentials(scratch_.weights.data(), scratch_.values.data(), candidates.size(), max_, scale);
    for (size_t i = 0; i < candidates.size(); ++i) candidates[i].weight = scratch_.weights[i];
  }

  const kernels::Table& table_;
  std::span<const float> logits_;
  SamplerScratch& scratch_;
  float max_ = 0;
  TokenId index_ = 0;
};

void keep_until(std::vector<Candidate>& candidates, const Candidate& last) {
  std::erase_if(candidates, [&](const Candidate& c) { return before(last, c); });
}

void cut_top_k(std::vector<Candidate>& candidates, size_t k, SamplerScratch& scratch) {
  if (candidates.size() <= k) return;
  scratch.shuffled = candidates;
  const auto last = scratch.shuffled.begin() + static_cast<ptrdiff_t>(k - 1);
  std::nth_element(scratch.shuffled.begin(), last, scratch.shuffled.end(), before);
  keep_until(candidates, *last);
}

// Keeps the likeliest candidates until their weights reach `target`. Halves the undecided range by selection,
// so that flat distributions over a large vocabulary are never sorted as a whole.
void cut_mass(std::vector<Candidate>& candidates, double target, SamplerScratch& scratch) {
  constexpr ptrdiff_t kSorted = 64;  // small enough to sort outright
  scratch.shuffled = candidates;
  auto low = scratch.shuffled.begin(), high = scratch.shuffled.end();
  double above = 0;
  while (high - low > kSorted) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, before);
    double half = 0;
    for (auto c = low; c != middle; ++c) half += static_cast<double>(c->weight);
    if (above + half >= target) {
      high = middle;
    } else {
      above += half;
      low = middle;
    }
  }
  std::sort(low, high, before);
  auto last = low;
  above += static_cast<double>(last->weight);
  while (above < target && last + 1 != high) above += static_cast<double>((++last)->weight);
  keep_until(candidates, *last);
}

double mass(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += static_cast<double>(c.weight);
  return sum;
}

TokenId draw(const std::vector<Candidate>& candidates, double u) {
  const double target = u * mass(candidates);
  double below = 0;
  TokenId chosen = candidates.front().id;
  for (const Candidate& c : candidates) {
    if (c.weight == 0) continue;
    chosen = c.id;
    below += static_cast<double>(c.weight);
    if (below > target) break;
  }
  return chosen;
}

// Candidates that hold at least the likeliest share top_p of everything; few of them when the distribution is
// peaked.
std::vector<Candidate>& collect_mass(Row& row, float scale, double target, size_t vocab) {
  for (size_t count = 256;; count *= 4) {  // one pass suffices for all but nearly flat distributions
    std::vector<Candidate>& candidates = row.collect(row.reached_by(count), scale);
    if (candidates.size() == vocab || count > vocab || mass(candidates) >= target) return candidates;
  }
}

TokenId sample_with_temperature(Row& row, const Sampling& s, size_t vocab, double u,
                                SamplerScratch& scratch) {
  const float scale = 1 / s.temperature;
  const bool by_count = s.top_k > 0 && s.top_k < vocab;
  if (!by_count && !(s.top_p < 1) && !(s.min_p > 0)) return row.draw_from_all(scale, u);
  std::vector<Candidate>* candidates = nullptr;
  if (by_count) {
    candidates = &row.collect(row.reached_by(s.top_k), scale);
    cut_top_k(*candidates, s.top_k, scratch);
    if (s.top_p < 1) cut_mass(*candidates, static_cast<double>(s.top_p) * mass(*candidates), scratch);
  } else if (s.top_p < 1) {
    const double target = static_cast<double>(s.top_p) * row.sum_of_exponentials(scale);
    candidates = &collect_mass(row, scale, target, vocab);
    cut_mass(*candidates, target, scratch);
  } else {
    // A little lower than the limit, which is decided by weight below.
    const float limit = row.max() + (std::log(s.min_p) - 1e-3f) * s.temperature;
    candidates = &row.collect(limit, scale);
  }
  std::erase_if(*candidates,
                [&](const Candidate& c) { return c.weight < s.min_p; });  // the likeliest weighs 1
  return draw(*candidates, u);
}

std::vector<TopToken> top_tokens(Row& row, size_t count, double log_sum, SamplerScratch& scratch) {
  std::vector<Candidate>& candidates = row.collect(row.reached_by(count), 1);
  cut_top_k(candidates, count, scratch);
  std::sort(candidates.begin(), candidates.end(), before);
  std::vector<TopToken> top;
  for (const Candidate& c : candidates)
    top.push_back({c.id, static_cast<float>(static_cast<double>(c.logit) - log_sum)});
  return top;
}

}  // namespace

void LaneSampler::open(const LaneOpen& open, uint32_t vocab_size) {
  lane_ = open.lane;
  sampling_ = open.sampling;
  std::erase_if(sampling_.logit_bias, [&](const LogitBias& bias) { return bias.id >= vocab_size; });
  suppressed_ = open.suppressed;
  std::erase_if(suppressed_, [&](TokenId id) { return id >= vocab_size; });
  min_tokens_ = open.min_tokens;
  logprobs_ = open.logprobs;
  last_id_ = open.context.empty() ? 0 : open.context.back();
  penalises_ = sampling_.repetition_penalty != 1 || sampling_.frequency_penalty != 0 ||
               sampling_.presence_penalty != 0;
  seen_.clear();
  if (!penalises_) return;
  for (size_t i = 0; i < open.context.size(); ++i)
    if (open.context[i] < vocab_size) count(open.context[i], i >= open.prompt_count);
}

void LaneSampler::count(TokenId id, bool output) {
  uint32_t& times = seen_[id];
  if (output) ++times;
}

void LaneSampler::adjust(std::span<float> logits, uint32_t token_number) const {
  for (const LogitBias& bias : sampling_.logit_bias) logits[bias.id] += bias.bias;
  for (const auto& [id, times] : seen_) {
    float& logit = logits[id];
    logit = logit > 0 ? logit / sampling_.repetition_penalty : logit * sampling_.repetition_penalty;
    if (times > 0)
      logit -= sampling_.frequency_penalty * static_cast<float>(times) + sampling_.presence_penalty;
    logit = std::clamp(logit, -FLT_MAX, FLT_MAX);  // extreme penalties overflow
  }
  if (token_number < min_tokens_)
    for (const TokenId id : suppressed_) logits[id] = -std::numeric_limits<float>::infinity();
}

SampledRow LaneSampler::sample(const kernels::Table& table, std::span<float> logits, uint32_t token_number,
                               SamplerScratch& scratch) {
  SampledRow result;
  result.lane = lane_;
  const kernels::Extent extent = table.extent(logits.data(), logits.size());
  if (!extent.finite) {
    result.failed = true;
    return result;
  }
  double log_sum = 0;
  // The raw logits are needed again for the chosen token, of which nothing is known yet: keep the few that
  // change.
  std::unordered_map<TokenId, float> raw;
  if (logprobs_ > 0) {
    Row row(table, logits, scratch);
    log_sum = static_cast<double>(row.max()) + std::log(row.sum_of_exponentials(1));
    if (logprobs_ > 1)
      result.top = top_tokens(row, std::min<size_t>(logprobs_ - 1, logits.size()), log_sum, scratch);
    for (const LogitBias& bias : sampling_.logit_bias) raw.emplace(bias.id, logits[bias.id]);
    for (const auto& [id, times] : seen_) raw.emplace(id, logits[id]);
  }
  adjust(logits, token_number);
  const bool greedy = sampling_.temperature < kGreedyTemperature;
  const bool as_they_were = sampling_.logit_bias.empty() && seen_.empty() && token_number >= min_tokens_;
  if (greedy && as_they_were) {
    result.id = extent.index;
  } else {
    Row row(table, logits, scratch);
    if (row.max() == -std::numeric_limits<float>::infinity()) {  // every id of the vocabulary is suppressed
      result.failed = true;
      return result;
    }
    result.id = greedy ? row.index_of_max()
                       : sample_with_temperature(row, sampling_, logits.size(),
                                                 uniform(sampling_.seed, token_number), scratch);
  }
  if (logprobs_ > 0) {
    const auto kept = raw.find(result.id);
    const float logit = kept != raw.end() ? kept->second : logits[result.id];
    result.logprob = static_cast<float>(static_cast<double>(logit) - log_sum);
  }
  last_id_ = result.id;
  if (penalises_) count(result.id, true);
  return result;
}

}  // namespace ringmaster::gpu_worker
