#include "gpu-worker/device/cpu/round.h"

#include <algorithm>

#include "gpu-worker/kernels/kernels.h"

namespace ringmaster::gpu_worker {
namespace {

using kernels::kSpan;

// Spans worth a piece of their own when a decode step is split: below, the merge costs more than it gains.
constexpr uint32_t kSpansPerPiece = 2;

class RoundMaker {
 public:
  RoundMaker(const StepPlan& plan, const RoundLimits& limits) : plan_(plan), limits_(limits) {}

  std::vector<Round> make() {
    uint32_t result = 0;
    for (uint32_t r = 0; r < plan_.rows.size(); ++r) {
      const StepRow& row = plan_.rows[r];
      for (uint32_t done = 0; done < row.num_tokens;) {
        if (rounds_.empty() || rounds_.back().tokens.size() == limits_.tokens) rounds_.emplace_back();
        Round& round = rounds_.back();
        const auto room = limits_.tokens - static_cast<uint32_t>(round.tokens.size());
        const uint32_t taken = std::min(room, row.num_tokens - done);
        for (uint32_t t = 0; t < taken; ++t)
          round.tokens.push_back({plan_.ids[row.first_id + done + t], row.first_position + done + t, r});
        done += taken;
        if (done == row.num_tokens && row.samples)
          round.samples.push_back({static_cast<uint32_t>(round.tokens.size()) - 1, r, result++});
      }
    }
    for (Round& round : rounds_) divide(round);
    return std::move(rounds_);
  }

 private:
  void divide(Round& round) {
    uint32_t stretches = 0;  // neighbouring tokens of one row
    for (size_t i = 0; i < round.tokens.size(); ++i)
      stretches += i == 0 || round.tokens[i].row != round.tokens[i - 1].row ? 1 : 0;
    // Enough sequences to go round keep the threads busy without splitting any of them.
    const bool split = limits_.threads > 1 && stretches * limits_.kv_heads < 4 * limits_.threads;
    uint32_t parts = 0;
    for (uint32_t first = 0; first < round.tokens.size();) {
      uint32_t end = first + 1;
      while (end < round.tokens.size() && round.tokens[end].row == round.tokens[first].row) ++end;
      const uint32_t spans = round.tokens[first].position / kSpan + 1;
      const bool split_this = split && end - first == 1 && spans >= 2 * kSpansPerPiece &&
                              parts + spans * limits_.kv_heads <= limits_.parts;
      for (uint32_t head = 0; head < limits_.kv_heads; ++head) {
        if (split_this) {
          split_token(round, first, head, spans, parts);
          parts += spans;
        } else {
          whole(round, first, end, head);
        }
      }
      first = end;
    }
    // The costly pieces, those that see most keys, first: what is claimed last should be short.
    std::stable_sort(
        round.pieces.begin(), round.pieces.end(), [](const AttentionPiece& a, const AttentionPiece& b) {
          return a.tokens * (a.last_span - a.first_span + 1) > b.tokens * (b.last_span - b.first_span + 1);
        });
  }

  void whole(Round& round, uint32_t first, uint32_t end, uint32_t head) {
    for (uint32_t t = first; t < end; t += limits_.query_tokens) {
      const uint32_t tokens = std::min(limits_.query_tokens, end - t);
      const uint32_t last_span = round.tokens[t + tokens - 1].position / kSpan;
      round.pieces.push_back({.row = round.tokens[t].row,
                              .kv_head = head,
                              .first_token = t,
                              .tokens = tokens,
                              .first_span = 0,
                              .last_span = last_span});
    }
  }

  void split_token(Round& round, uint32_t token, uint32_t head, uint32_t spans, uint32_t part) {
    for (uint32_t s = 0; s < spans; s += kSpansPerPiece)
      round.pieces.push_back({.row = round.tokens[token].row,
                              .kv_head = head,
                              .first_token = token,
                              .tokens = 1,
                              .first_span = s,
                              .last_span = std::min(spans, s + kSpansPerPiece) - 1,
                              .part = part + s});
    round.merges.push_back({.token = token, .kv_head = head, .part = part, .spans = spans});
  }

  const StepPlan& plan_;
  const RoundLimits& limits_;
  std::vector<Round> rounds_;
};

}  // namespace

std::vector<Round> make_rounds(const StepPlan& plan, const RoundLimits& limits) {
  return RoundMaker(plan, limits).make();
}

}  // namespace ringmaster::gpu_worker
